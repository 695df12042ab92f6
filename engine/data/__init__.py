"""Batches of images and labels: arrays, folders, synthetic sources, and checks of what they give."""
