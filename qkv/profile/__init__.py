"""What `qkv cost` profiles: presets, run folders, modules, blocks, attention kinds."""
