"""An NVIDIA GPU as a device: its arena, streams, pinned memory, and the speed of its link."""
