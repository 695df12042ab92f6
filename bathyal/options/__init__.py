"""From options of the command line to a network, its settings and its data."""
