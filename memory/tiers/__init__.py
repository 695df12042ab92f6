"""Places outside the arena, to which tensors move: the protocol, a file on a disk, and measured traffic."""
