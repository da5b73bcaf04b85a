"""Commands that train models and use them."""
