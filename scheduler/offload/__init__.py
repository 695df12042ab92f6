"""Moving tensors out of the arena and back: who leaves, when, and what is computed again instead."""
