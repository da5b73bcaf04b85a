"""Translation: sentence pairs of Tatoeba or of two files."""
