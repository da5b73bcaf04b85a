"""Multiplications that the forms of each kind run."""
