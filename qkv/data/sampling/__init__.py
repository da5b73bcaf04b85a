"""How training examples are drawn from a text."""
