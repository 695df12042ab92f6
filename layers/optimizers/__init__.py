"""Optimizers: what they declare of themselves, from which updates, state and checkpoints follow, and SGD."""
