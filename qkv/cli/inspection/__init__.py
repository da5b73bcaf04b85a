"""Commands that inspect: cost, check, bench, problems, look, serve, list."""
