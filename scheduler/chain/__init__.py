"""Optimal checkpointing of a chain of blocks: the chain model, programs that plan a chain, and lower bounds."""
