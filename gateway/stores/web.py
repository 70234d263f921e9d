"""https://: a file by its ETag; or a folder, by the nearest SHA256SUMS in it or above it, as sha256sum(1) prints it:

find . -type f ! -name SHA256SUMS -printf '%P\\0' | xargs -0 sha256sum > SHA256SUMS
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Final
from urllib.parse import quote, unquote

from tensorgate.gateway.config import SourceConfig
from tensorgate.gateway.contract.locations import Location
from tensorgate.gateway.stores.errors import NotThere
from tensorgate.gateway.stores.http import Web, tag_of
from tensorgate.gateway.stores.listing import Listing, RemoteFile, checked

SUMS: Final = "SHA256SUMS"
_LINE: Final = re.compile(r"([0-9a-fA-F]{64}) [ *](?:\./)?(.+)")


class WebStore:
    """Files of a web server."""

    def __init__(self, web: Web, source: SourceConfig) -> None:
        self._web = web
        self._source = source

    def list(self, location: Location) -> Listing:
        """See Store.list."""
        base = self._source.endpoint or f"{location.scheme}://{location.host}"
        url = f"{base}/{quote(location.path, safe='/%')}"
        if location.path and not location.path.endswith("/"):
            answer = self._web.head(url)
            length = answer.headers.get("content-length", "")
            size = int(length) if length.isdecimal() else None
            tag = tag_of(answer) or f"of {size} bytes"
            name = unquote(location.path.rpartition("/")[2])
            return checked(Listing(location, (RemoteFile(name, size, url, tag=tag),), is_file=True))
        return self._listed(location, url)

    def _listed(self, location: Location, url: str) -> Listing:
        """By the nearest SHA256SUMS, in the folder or in one above it."""
        base = f"{url.split('/', 3)[0]}//{url.split('/', 3)[2]}/"
        above = url
        while True:
            try:
                _, content = self._web.document(above + SUMS)
                break
            except NotThere:
                if above == base:
                    raise NotThere(f"{url}{SUMS}: there is none, nor in a folder above it") from None
                above = above.rstrip("/").rpartition("/")[0] + "/"
        start = unquote(url.removeprefix(above))
        files = []
        for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
            found = _LINE.fullmatch(line)
            if line and found is None:
                raise ValueError(f"{above}{SUMS}, line {number}: expected a digest and a name of a file")
            if found is not None and found[2].startswith(start):
                address = above + quote(found[2])
                files.append(RemoteFile(found[2].removeprefix(start), None, address, f"sha256:{found[1].lower()}"))
        if not files:
            raise NotThere(f"{above}{SUMS} lists nothing below {start or 'it'}")
        return checked(Listing(location, tuple(files)))

    def open(self, file: RemoteFile, offset: int) -> AbstractContextManager[tuple[int, Iterator[bytes]]]:
        """See Store.open."""
        return self._web.ranged(file.address, offset, "" if file.tag.startswith("of ") else file.tag)
