"""The strategies: their names, the registry that makes them, and each one's orders of operations."""
