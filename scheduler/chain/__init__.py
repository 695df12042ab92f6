"""Optimal checkpointing of a chain of blocks: the chain model, the programs that plan a chain, and bounds on its time."""
