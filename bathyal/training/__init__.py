"""Training as the command line does it: steps, checkpoints, bars, and an end that loses nothing."""
