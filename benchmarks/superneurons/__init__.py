"""The accounting of the SuperNeurons paper: its layers, its recomputation, and its figures beside ours."""
