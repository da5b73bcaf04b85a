"""Readers and writers of user file formats."""
