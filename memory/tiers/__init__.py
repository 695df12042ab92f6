"""Places outside the arena that tensors are moved to, called tiers.

`tier` is the protocol of a tier and `disk` a tier in a file. Below it lie `spill_folder`, which chooses the file's
folder, `spill_file`, which creates the file, and `file_lane`, which moves bytes in one direction. `timed` wraps any
tier and counts what passes through it.
"""
