"""Models that another server computes: one more kind of backend, so that any dialect in reaches any dialect out.

options.py          what the YAML says of the server, TLS and headers
backend.py          the backend: what the model takes and gives, requests there and back
tensor_mapping.py   tensors that have another name on the server
call_scope.py       for the time of one call: its span, and its end when all callers who wait for it have left
forwarding.py       calls in the server's own dialect, passed on as they are
server.py           which models a server has, for the section upstreams
pool.py             the server's addresses: which of them are well, and which is next; address.py counts calls to one
connection.py       one address: messages there and back, what can go wrong on the way; over HTTP
grpc_connection.py  one address over gRPC: http2_client.py is a connection of it, upstream_call.py a call on that

The messages are the dialect's Client's (gateway.contract.upstream), which the composition root hands over.
"""

from tensorgate.backends.remote.backend import KIND

__all__ = ["KIND"]
