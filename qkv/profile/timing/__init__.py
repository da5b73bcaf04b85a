"""Predict how long a forward pass takes on this CPU."""
