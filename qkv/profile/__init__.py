"""Targets of `qkv cost`: presets, run folders, modules, blocks, attention kinds."""
