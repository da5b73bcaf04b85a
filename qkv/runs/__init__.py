"""Run folders: configuration, loading, hashes of training files."""
