"""Compare several models on one task: quality, cost, speed, memory."""
