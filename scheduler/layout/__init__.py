"""From an order of operations to a plan's parts: lifetimes, kernels and addresses."""
