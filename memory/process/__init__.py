"""The memory of the process and its machine: what is free, what is in use, and a limit set on other processes."""
