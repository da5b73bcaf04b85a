"""Private modules that the kinds share."""
