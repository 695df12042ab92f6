"""The accounting of the SuperNeurons paper: its layers, its recomputation, and its figures beside those of our planner."""
