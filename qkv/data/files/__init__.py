"""Readers of the file formats that users bring."""
