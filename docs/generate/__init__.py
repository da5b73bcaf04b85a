"""Generate the pages that are computed."""
