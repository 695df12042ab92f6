"""Where bytes lie and how they move: the mechanism, without any policy.

- `errors`, `sizes` and `registry` serve the whole package: the errors that users meet, sizes as users write them, and
  things that are chosen by name.
- `region` says what an arena is, and `arena` is the one in the memory of this machine: the single block that holds
  every tensor of a training step. `allocator` is the heap pool, which chooses addresses in a range of bytes online.
- `process/` tells what memory the process may still take, has taken, and may be limited to.
- `tiers/` holds the places outside the arena that tensors are moved to, such as a file on a disk.
- `devices/` holds what computes on an arena and copies to and from it: the host, and a simulated device that finds
  races.
- `cuda/` is an NVIDIA GPU as a device, with its arena, streams and pinned memory.

Nothing here knows layers, graphs or plans.
"""
