"""JSON, as the dialects share it."""
