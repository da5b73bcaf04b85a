"""The identities that every attention kind must satisfy, and the check that proves them."""
