"""What every attention kind must satisfy, and the check that proves it."""
