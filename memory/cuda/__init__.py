"""An NVIDIA GPU as a device.

`device` is the device itself, `arena` its memory, `streams` its queues and events, `pinned` the memory of the host that
it moves tensors to, `bandwidth` measures the link between the two, and `runtime` finds the CUDA runtime.
"""
