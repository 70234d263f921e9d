"""hf://: repositories of the Hugging Face hub, or of what answers like it at HF_ENDPOINT, by two plain addresses.

GET /api/models/REPO/revision/REV says which commit a revision is, GET /api/models/REPO/tree/COMMIT?recursive=true its
files, with the SHA-256 of large ones and Git's own digest of the others; /REPO/resolve/COMMIT/PATH has a file.
Credentials: HF_TOKEN, or the file that `hf auth login` writes. Source: huggingface.co, Hub API endpoints.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urljoin

from tensorgate.gateway.config import SourceConfig
from tensorgate.gateway.contract.locations import Location
from tensorgate.gateway.contract.tensor import NOTHING
from tensorgate.gateway.stores.errors import NotThere
from tensorgate.gateway.stores.http import Web
from tensorgate.gateway.stores.listing import MAX_FILES, Listing, RemoteFile, checked

_HUB: Final = "https://huggingface.co"
_NEXT: Final = re.compile(r'<([^>]+)>;\s*rel="?next"?')
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")


class HubStore:
    """A hub's repositories of models."""

    def __init__(self, web: Web, source: SourceConfig) -> None:
        self._web = web
        self._source = source
        self._endpoint = (source.endpoint or os.environ.get("HF_ENDPOINT") or _HUB).rstrip("/")

    def list(self, location: Location) -> Listing:
        """See Store.list. A listing of a commit is final."""
        api = f"{self._endpoint}/api/models/{location.path}"
        commit = location.revision
        if not _COMMIT.fullmatch(commit):
            _, content = self._web.document(f"{api}/revision/{quote(commit, safe='')}", self._headers())
            commit = str(json.loads(content)["sha"])
        url: str | None = f"{api}/tree/{quote(commit, safe='')}?recursive=true"
        entries: list[Mapping[str, Any]] = []
        while url is not None and len(entries) <= MAX_FILES:
            answer, content = self._web.document(url, self._headers())
            entries += json.loads(content)
            found = _NEXT.search(answer.headers.get("link", ""))
            url = urljoin(url, found[1]) if found else None
            if url is not None and not url.startswith(f"{self._endpoint}/"):
                raise ValueError(f"{location.url}: the hub continues its listing on another host")
        resolve = f"{self._endpoint}/{location.path}/resolve/{quote(commit, safe='')}"
        files = [_file(each, resolve) for each in entries if each.get("type") == "file"]
        return part(Listing(location, tuple(files), is_final=commit == location.revision))

    def open(self, file: RemoteFile, offset: int) -> AbstractContextManager[tuple[int, Iterator[bytes]]]:
        """See Store.open."""
        is_own = file.address.startswith(f"{self._endpoint}/")  # a listing may be older than the configuration
        return self._web.ranged(file.address, offset, "", self._headers() if is_own else NOTHING)

    def _headers(self) -> dict[str, str]:
        token = "" if self._source.anonymous else _token()
        return {"Authorization": f"Bearer {token}"} if token else {}


def part(listing: Listing) -> Listing:
    """What of a repository or an artifact is below the location, or is the one file that it names. Raises NotThere."""
    sub = listing.location.sub
    if not listing.files:
        raise NotThere(f"{listing.location.url}: there are no files")
    if not sub:
        return checked(listing)
    start = f"{sub}/"
    below = [replace(each, path=each.path.removeprefix(start)) for each in listing.files if each.path.startswith(start)]
    one = [replace(each, path=sub.rpartition("/")[2]) for each in listing.files if each.path == sub]
    if not below and not one:
        raise NotThere(f"{listing.location.url}: there is no such file or folder")
    return checked(Listing(listing.location, tuple(below or one), not below, listing.is_final))


def _file(entry: Mapping[str, Any], resolve: str) -> RemoteFile:
    large = entry.get("lfs") or {}
    digest = f"sha256:{large['oid']}" if "oid" in large else f"git:{entry['oid']}"
    path = str(entry["path"])
    return RemoteFile(path, int(large.get("size", entry["size"])), f"{resolve}/{quote(path)}", digest)


def _token() -> str:
    if token := os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN"):
        return token.strip()
    home = os.environ.get("HF_HOME") or str(Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    with suppress(OSError, UnicodeDecodeError, RuntimeError):
        return Path(os.environ.get("HF_TOKEN_PATH") or f"{home}/token").expanduser().read_text(encoding="utf-8").strip()
    return ""
