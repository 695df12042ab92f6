"""Optimal checkpointing of a chain of blocks: the chain model, solvers that plan a chain, and lower bounds."""
