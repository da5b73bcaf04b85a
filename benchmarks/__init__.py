"""Speed and memory, measured beside peers in one run."""
