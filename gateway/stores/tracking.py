"""mlflow://: models that are registered with an MLflow tracking server: a version, or what an alias names now.

The server says where a version's files lie: with itself, or in an object store, from which they are read then. Where
it is, and who asks, the environment says: MLFLOW_TRACKING_URI; MLFLOW_TRACKING_TOKEN, or _USERNAME and _PASSWORD.
Source: MLflow's REST API 2.0, registered models, model versions, and artifacts by proxy.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from tensorgate.gateway.config import SourceConfig
from tensorgate.gateway.contract.locations import OBJECT_STORES, Location, parse_location
from tensorgate.gateway.contract.tensor import NOTHING
from tensorgate.gateway.stores.http import Web
from tensorgate.gateway.stores.hub import part
from tensorgate.gateway.stores.listing import MAX_FILES, Listing, RemoteFile
from tensorgate.gateway.stores.store import Store

_PROXY: Final = "mlflow-artifacts:"
_MAX_DEPTH: Final = 16


class TrackingStore:
    """A tracking server's registered models; `elsewhere` finds the store of a URL that it names."""

    def __init__(self, web: Web, source: SourceConfig, elsewhere: Callable[[Location], Store]) -> None:
        self._web = web
        self._source = source
        self._elsewhere = elsewhere

    def list(self, location: Location) -> Listing:
        """See Store.list. What is registered as a version does not change, but may be deleted."""
        version = location.revision
        if version.startswith("@"):
            found = self._ask("registered-models/alias", name=location.path, alias=version[1:])
            version = str(found["model_version"]["version"])
        found = self._ask("model-versions/get-download-uri", name=location.path, version=version)
        artifacts = str(found["artifact_uri"])
        if artifacts.startswith("models:/"):  # MLflow 3: a version is a model that was logged
            logged = self._ask(f"logged-models/{quote(artifacts.removeprefix('models:/'), safe='')}")
            artifacts = str(logged["model"]["info"]["artifact_uri"])
        if artifacts.startswith(_PROXY):
            root = urlsplit(artifacts).path.strip("/")
            files = [*self._walk(root, "", f"{version} ", 0)]
        else:
            files = [*self._of_store(artifacts, location)]
        return part(Listing(location, tuple(files)))

    def open(self, file: RemoteFile, offset: int) -> AbstractContextManager[tuple[int, Iterator[bytes]]]:
        """See Store.open."""
        url, _, address = file.address.partition(" ")
        if address:
            there = RemoteFile(file.path, file.size, address, file.digest, file.tag)
            return self._elsewhere(parse_location(url)).open(there, offset)
        is_own = file.address.startswith(f"{self._endpoint()}/")  # a listing may be older than the configuration
        return self._web.ranged(file.address, offset, "", self._headers() if is_own else NOTHING)

    def _of_store(self, artifacts: str, location: Location) -> Iterator[RemoteFile]:
        scheme = artifacts.partition("://")[0]
        if scheme not in OBJECT_STORES:
            raise ValueError(
                f"{location.url}: its files lie at {scheme}:, which only the tracking server reaches; start it with "
                "--serve-artifacts, or with an artifact root of s3:// or gs://"
            )
        there = parse_location(artifacts)
        listing = self._elsewhere(there).list(there)
        for each in listing.files:
            yield replace(each, address=f"{there.scheme}://{there.host} {each.address}")

    def _walk(self, root: str, folder: str, tag: str, depth: int) -> Iterator[RemoteFile]:
        """The files below a folder of the server's own store; paths of its answers are relative to that folder."""
        path = f"{root}/{folder}".strip("/")
        base = f"{self._endpoint()}/api/2.0/mlflow-artifacts/artifacts"
        _, content = self._web.document(f"{base}?{urlencode({'path': path})}", self._headers())
        entries = json.loads(content).get("files", [])
        if len(entries) > MAX_FILES or depth > _MAX_DEPTH:
            raise ValueError(f"mlflow: more than {MAX_FILES} files, or folders deeper than {_MAX_DEPTH}")
        for each in entries:
            name = f"{folder}/{each['path'].rpartition('/')[2]}".lstrip("/")
            if each.get("is_dir"):
                yield from self._walk(root, name, tag, depth + 1)
            else:
                yield RemoteFile(name, int(each["file_size"]), f"{base}/{quote(f'{root}/{name}')}", tag=f"of {tag}")

    def _endpoint(self) -> str:
        found = self._source.endpoint or os.environ.get("MLFLOW_TRACKING_URI", "")
        if not found.startswith(("https://", "http://")):
            raise ValueError('mlflow:// needs MLFLOW_TRACKING_URI, or stores.sources: {"mlflow://": {endpoint: …}}')
        return found.rstrip("/")

    def _ask(self, what: str, **query: str) -> Any:
        url = f"{self._endpoint()}/api/2.0/mlflow/{what}"
        _, content = self._web.document(f"{url}?{urlencode(query)}" if query else url, self._headers())
        return json.loads(content)

    def _headers(self) -> dict[str, str]:
        if self._source.anonymous:
            return {}
        if token := os.environ.get("MLFLOW_TRACKING_TOKEN"):
            return {"Authorization": f"Bearer {token}"}
        user, password = os.environ.get("MLFLOW_TRACKING_USERNAME"), os.environ.get("MLFLOW_TRACKING_PASSWORD")
        if user and password:
            return {"Authorization": f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"}
        return {}
