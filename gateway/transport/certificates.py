"""The certificates of a port, which are read again when their files change. No connection ends by that.

A port has one context that hands each handshake to the newest one. Files that cannot be used are an error when the
configuration is read; later the certificates from before stay.
"""

from __future__ import annotations

import logging
import ssl
from typing import Final

from tensorgate.gateway.config.listeners import TlsFiles

log = logging.getLogger(__name__)

HTTP2: Final = "h2"


class Certificates:
    """The certificates of one port, as they are now.

    Asked once per new connection, at the cost of looking at the files' dates.
    """

    def __init__(self, files: TlsFiles, protocol: str) -> None:
        self._files = files
        self._protocol = protocol
        self._stamp = files.stamp()
        self._newest = files.context(protocol)

    def newest(self) -> ssl.SSLContext:
        """The context of the files as they are."""
        try:
            stamp = self._files.stamp()
            if stamp != self._stamp:
                self._stamp = stamp
                self._files.check()
                self._newest = self._files.context(self._protocol)
                log.info("%s: read again", self._files.certificate)
        except (OSError, ValueError) as error:
            log.error("the certificates from before stay: %s", error)
        return self._newest

    def context(self) -> ssl.SSLContext:
        """A context for the whole life of a port; each handshake takes the newest certificates."""
        context = self._files.context(self._protocol)

        def exchange(connection: ssl.SSLObject, name: str | None, given: ssl.SSLContext) -> None:
            connection.context = self.newest()

        context.sni_callback = exchange
        return context
