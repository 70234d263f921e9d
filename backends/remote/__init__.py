"""Models that another server computes: one more kind of backend, so that any dialect in reaches any dialect out.

options.py       what the YAML says of the server, TLS and headers
backend.py       the backend: what the model takes and gives, requests there and back
naming.py        tensors that the server calls otherwise
pool.py          the server's addresses: which of them are well, and who is asked next
connection.py    one address over gRPC or HTTP: messages there and back
grpc_lane.py     unary gRPC calls without TLS, by a connection of its own: http2.py, frames.py, exchange.py,
                 hpack.py
departure.py     what ends when the callers who wait for it have left

What the messages say is for the dialect's Client to know (see ports), which the composition root hands over.
"""

from backends.remote.backend import KIND

__all__ = ["KIND"]
