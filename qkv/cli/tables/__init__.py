"""Tables that commands print."""
