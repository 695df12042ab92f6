"""The accounting of the SuperNeurons paper, its networks, and its figures beside those of our planner."""
