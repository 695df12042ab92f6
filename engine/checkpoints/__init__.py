"""Checkpoints: their folder, their format, reading, writing, and whether one belongs to a run."""
