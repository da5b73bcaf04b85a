"""Generated tasks: endless rows of tokens with answers at some places, each with a chance line."""
