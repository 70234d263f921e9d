"""oci://: artifacts of a registry, as `oras push` makes them: each layer is a file, whose name is its title.

Credentials are those that `docker login` or `oras login` keeps; a registry may give a token for them, or for nothing.
Source: OCI distribution specification 1.1, pull; Docker's token authentication.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from tensorgate.gateway.config import SourceConfig
from tensorgate.gateway.contract.locations import Location, is_of_this_machine
from tensorgate.gateway.stores.errors import Changed, Damaged, NotAllowed
from tensorgate.gateway.stores.http import Web, WebAnswer, check_status, patiently
from tensorgate.gateway.stores.hub import part
from tensorgate.gateway.stores.listing import Listing, RemoteFile

_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
_ACCEPT: Final = f"{_MANIFEST}, application/vnd.docker.distribution.manifest.v2+json"
_TITLE: Final = "org.opencontainers.image.title"
_UNPACK: Final = "io.deis.oras.content.unpack"
_PARAMETER: Final = re.compile(r'(\w+)="([^"]*)"')
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_HUBS: Final = {"docker.io": "registry-1.docker.io"}


class RegistryStore:
    """Registries of artifacts."""

    def __init__(self, web: Web, source: SourceConfig) -> None:
        self._web = web
        self._source = source
        self._granted: dict[str, str] = {}

    def list(self, location: Location) -> Listing:
        """See Store.list. A listing of a digest is final."""
        base = f"{self._endpoint(location.host)}/v2/{location.path}"
        url = f"{base}/manifests/{quote(location.revision, safe=':')}"
        content = self._manifest(url, location)
        is_final = location.revision.startswith("sha256:")
        if is_final and f"sha256:{sha256(content).hexdigest()}" != location.revision:
            raise Damaged(f"{location.url}: the registry sends a manifest of another digest")
        manifest = json.loads(content)
        if not isinstance(manifest, dict) or not isinstance(manifest.get("layers"), list):
            raise ValueError(f"{location.url}: an index of several artifacts; name one of them by its digest")
        files = [_file(each, base, location) for each in manifest["layers"]]
        return part(Listing(location, tuple(files), is_final=is_final))

    @contextmanager
    def open(self, file: RemoteFile, offset: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """See Store.open."""
        base, host = file.address.partition("/blobs/")[0], file.tag
        if not base.startswith(f"{self._endpoint(host)}/"):  # a listing may be older than the configuration
            raise Changed(f"oci://{host} is another registry than it was when it was listed")
        try:
            with self._web.ranged(file.address, offset, "", self._headers(base)) as opened:
                yield opened
                return
        except NotAllowed:
            if not self._ask_for_token(f"{base}/manifests/", file.address, host):
                raise
        with self._web.ranged(file.address, offset, "", self._headers(base)) as opened:
            yield opened

    def _endpoint(self, host: str) -> str:
        if self._source.endpoint:
            return self._source.endpoint
        scheme = "http" if is_of_this_machine(urlsplit(f"//{host}").hostname or "") else "https"
        return f"{scheme}://{_HUBS.get(host, host)}"

    def _manifest(self, url: str, location: Location) -> bytes:
        base = url.partition("/manifests/")[0]

        def ask() -> bytes:
            for again in (False, True):
                with self._web.request("GET", url, {"Accept": _ACCEPT, **self._headers(base)}) as answer:
                    if answer.status == 401 and not again and self._take_token(answer, base, location.host):
                        continue
                    check_status(answer, url)
                    return answer.read()
            raise NotAllowed(f"{location.url}: the registry refuses this server, or its credentials")

        return patiently(self._web.policy, ask)

    def _headers(self, base: str) -> dict[str, str]:
        granted = self._granted.get(base)
        return {"Authorization": granted} if granted else {}

    def _ask_for_token(self, base: str, url: str, host: str) -> bool:
        """A token has run out, or there was none yet."""
        with self._web.request("HEAD", url) as answer:
            return self._take_token(answer, base.partition("/manifests/")[0], host)

    def _take_token(self, answer: WebAnswer, base: str, host: str) -> bool:
        """Do what a registry asks for -> whether there is something new to try. Raises as a request does."""
        challenge = answer.headers.get("www-authenticate", "")
        kind, _, rest = challenge.partition(" ")
        login = "" if self._source.anonymous else _login(host)
        if kind.lower() == "basic" and login:
            self._granted[base] = f"Basic {login}"
            return True
        asked = dict(_PARAMETER.findall(rest))
        realm = asked.get("realm", "")
        if kind.lower() != "bearer" or not realm:
            return False
        if not realm.startswith("https://") and not is_of_this_machine(urlsplit(realm).hostname or ""):
            raise NotAllowed(f"{host}: the registry wants credentials sent over plain http")
        query = urlencode({key: asked[key] for key in ("service", "scope") if key in asked})
        headers = {"Authorization": f"Basic {login}"} if login else {}
        _, content = self._web.document(f"{realm}?{query}", headers)
        found = json.loads(content)
        token = found.get("token") or found.get("access_token")
        self._granted[base] = f"Bearer {token}"
        return bool(token)


def _file(layer: Mapping[str, Any], base: str, location: Location) -> RemoteFile:
    digest, marks = str(layer["digest"]), layer.get("annotations") or {}
    title = marks.get(_TITLE)
    if title is None or marks.get(_UNPACK) == "true":
        raise ValueError(
            f"{location.url}: a layer is a packed folder, and no file; push files by their paths: "
            "oras push REGISTRY/NAME:TAG 1/model.onnx"
        )
    if not _DIGEST.fullmatch(digest):
        raise ValueError(f"{location.url}: a layer has a digest that is no SHA-256")
    return RemoteFile(str(title), int(layer["size"]), f"{base}/blobs/{digest}", digest, location.host)


def _login(host: str) -> str:
    """What `docker login` has kept for a registry, in base64; "" for nothing. Helpers that keep it are programs, and
    are not run.
    """
    folder = os.environ.get("DOCKER_CONFIG") or "~/.docker"
    names = [host, f"https://{host}", f"https://{host}/v1/"]
    names += ["https://index.docker.io/v1/"] if host == "docker.io" else []
    for file in filter(None, [os.environ.get("REGISTRY_AUTH_FILE"), f"{folder}/config.json"]):
        with suppress(OSError, ValueError, RuntimeError, AttributeError):
            known = json.loads(Path(file).expanduser().read_text(encoding="utf-8")).get("auths", {})
            for auth in [known[name].get("auth") for name in names if name in known]:
                base64.b64decode(auth, validate=True)
                return str(auth)
    return ""
