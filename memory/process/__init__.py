"""The memory of the process and its machine: how much is free, how much is in use, and a limit set on other processes."""
