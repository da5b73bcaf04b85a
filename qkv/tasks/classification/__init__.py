"""Classification: points and images with one label each; one file per task."""
