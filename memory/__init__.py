"""Mechanism: where bytes lie and how they move; no policy.

`sizes` reads what a user calls a budget, `available` says how much the machine has left, `arena` is the one block that
holds every tensor, `allocator` hands out addresses in it, `device` says what a device is, `host` and `simulated` are
two of them. Nothing here knows layers, graphs or plans; `errors` is where the whole package takes its errors from.
"""
