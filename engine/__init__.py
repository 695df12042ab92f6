"""Execution: backends, lowering, profile, executor, trainer, data, checkpoints."""
