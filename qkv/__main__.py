"""`python -m qkv` is `qkv`, where the command is not installed."""

from qkv.cli import main

if __name__ == "__main__":
    main()
