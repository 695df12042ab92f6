"""The same training by PyTorch and by Bathyal, each in a process of its own under one limit on memory."""
