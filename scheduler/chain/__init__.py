"""Optimal checkpointing of a chain of blocks: what a chain is, the programs that solve it, and bounds."""
