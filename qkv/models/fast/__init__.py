"""Fused forms of models, for inference only."""
