"""Parts shared by commands: console output, progress, stdin, options."""
