"""The identities that every attention kind must satisfy, and the numerical check of them."""
