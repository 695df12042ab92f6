"""What the process and its machine have of memory: free bytes, limits, and the bytes in use."""
