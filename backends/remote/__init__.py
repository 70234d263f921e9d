"""Models that another server computes: one more kind of backend, so that any dialect in reaches any dialect out.

options.py          what the YAML says of the server, TLS and headers
backend.py          the backend: what the model takes and gives, requests there and back
naming.py           tensors that the server calls otherwise
pool.py             the server's addresses: which of them are well, and who is asked next; counts.py counts what they do
connection.py       one address: messages there and back, what can go wrong on the way, and how that is done over HTTP
grpc_connection.py  the same over gRPC, by connections of our own: link.py is one of them, exchange.py a call on it
departure.py        what ends when the callers who wait for it have left
legs.py             calls that are parts of traced calls

What the messages say is for the dialect's Client to know (see ports), which the composition root hands over.
"""

from tensorgate.backends.remote.backend import KIND

__all__ = ["KIND"]
