"""Sampling of training examples from text."""
