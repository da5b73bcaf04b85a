"""Processes that share a model: the mesh, the parts that are gathered together, sharded training and checkpoints."""
