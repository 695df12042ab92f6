"""Pictures of plans and of time against memory, drawn with matplotlib."""
