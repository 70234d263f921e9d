"""Protocol Buffers, as the dialects share them: messages, and the wire format of those too large to be parsed."""
