"""Triton kernels, one file per pass."""
