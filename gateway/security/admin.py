"""The administrator's key: what callers must show who change the server's state."""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from tensorgate.gateway.config import Admin
from tensorgate.gateway.contract.errors import AdminRequired


class AdminKey:
    """A header and the value that it must have. The value is compared in constant time, and told to nobody."""

    def __init__(self, admin: Admin) -> None:
        self._header = admin.header
        self._key = admin.header.lower()
        self._value = admin.value()

    def check(self, headers: Mapping[str, str]) -> None:
        """Raises AdminRequired unless the headers carry the key."""
        shown = headers.get(self._key, "")
        if not hmac.compare_digest(shown.encode("utf-8", "surrogateescape"), self._value):
            raise AdminRequired(self._header)
