"""Protocols without sockets, for our ports and for servers that we ask alike: HTTP/1.1, HTTP/2, gRPC."""
