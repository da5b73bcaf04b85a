"""`qkv predict --in FILE --out FOLDER`: a large file in parts."""
