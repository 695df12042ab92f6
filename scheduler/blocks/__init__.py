"""A training graph cut into a chain of blocks, the schedules of each block, and a lower bound on all plans."""
