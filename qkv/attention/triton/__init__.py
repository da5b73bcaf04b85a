"""GPU kernels of the feature-map kinds and of delta: dispatch, launch plans and custom operators."""
