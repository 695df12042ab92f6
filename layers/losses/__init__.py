"""Losses: what they declare of themselves, from which targets, gradients and metrics follow, and cross-entropy."""
