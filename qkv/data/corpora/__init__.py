"""Named data sets, one file each."""
