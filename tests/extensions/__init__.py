"""New parts by the recipes of CONTRIBUTING: each is copied into a copy of the repository and used there."""
