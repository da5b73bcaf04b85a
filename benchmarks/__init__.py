"""Speed and memory, measured against peers in one run."""
