"""Mechanism: where bytes lie and how they move; no policy.

`sizes` reads what a user calls a budget, `available` says how much the machine has left, `arena` is the one block that
holds every tensor, `allocator` hands out addresses in it. `tiers` says what a place outside the arena is; `host_tier`
is memory and `disk_tier` a file (its folder: `spill_folder`, the file itself: `spill_file`, its transfers: `file_lane`);
`bandwidth` measures them. `device` says what a device is; `host` and `simulated`, which finds races with `shadow`, are
two of them. Nothing here knows layers, graphs or plans; `errors` is where the whole package takes its errors from.
"""
