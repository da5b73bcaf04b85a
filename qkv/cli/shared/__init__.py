"""What commands share: console output, progress, stdin, options."""
