"""Malformed and hostile run folders, Hugging Face folders and data files, which must be refused in one sentence."""
