"""Short runnable scripts; the tests run each."""
