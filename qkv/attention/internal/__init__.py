"""Parts that the kinds share and that callers do not import."""
