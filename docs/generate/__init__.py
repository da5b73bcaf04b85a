"""The pages that code writes."""
