"""Sequence parallel: the tokens of each sequence are split over the processes of a group."""
