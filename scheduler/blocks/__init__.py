"""A training graph cut into a chain of blocks, the ways to run each block, and a bound on all plans."""
