"""Moving tensors out of the arena and back: which leave, when they do, and what is computed again instead."""
