"""Devices: the arena, its queues and events, on the host and simulated with race detection."""
