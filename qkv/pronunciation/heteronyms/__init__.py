"""Choose the reading of a heteronym."""
