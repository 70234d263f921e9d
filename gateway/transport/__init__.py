"""Sockets around the protocols: bytes <-> Call and Reply. No dialect is known here by name."""
