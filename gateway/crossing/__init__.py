"""How processes of one gateway hand each other tensors: doors and the engine, the engine and a model's own process.

messages   what is said, as typed msgpack
frames     a stream of bytes <-> messages; no sockets
arena      memory that one side allocates and the other side reads
tensors    arrays <-> messages and arenas
channel    a Unix socket with frames both ways, on the event loop
views      ModelView <-> message
failures   GatewayError <-> message
fork_server   processes that are forked from one with everything imported
model_messages   what the engine and a model's own process say
runs   requests of a batch and their outcomes <-> messages

The layout, version 1. Each direction of a Unix stream socket is a sequence of frames: four bytes of length, little
endian, then so many bytes of msgpack, one message. Both sides first say `Hello`; the file descriptor of the sender's
arena comes with its first byte. Tensors below `tensors.INLINE_MAX_BYTES` travel in their message. Larger ones lie in
the arena of whoever sends them, a memfd that the other side maps: the message says offset and size, and a number that
goes back in `Release` once the other side has no array of these bytes any more. Neither side trusts the other: lengths,
offsets, types, sizes and names are checked before anything is made of them, and what does not fit ends the connection.
"""
