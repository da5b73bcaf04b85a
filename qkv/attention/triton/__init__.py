"""GPU kernels of the feature-map kinds: dispatch, launch plans and custom operators."""
