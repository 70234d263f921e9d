"""s3://, gs://, az://, by obstore: its client signs, and finds credentials as each cloud's own tools do.

It follows redirects of a cloud's own endpoint by itself, wherever they lead, S3's session token with them; it has no
switch for that (obstore 0.12), so that http.py's rules do not hold here. It retries nothing, so that all stores are
asked again in one way.

Source of credentials: for S3 the environment (AWS_ACCESS_KEY_ID, a web identity's token, a container's), then a profile
of ~/.aws/credentials, then the instance's metadata; for Google GOOGLE_APPLICATION_CREDENTIALS, gcloud's default, then
metadata; for Azure AZURE_STORAGE_ACCOUNT_NAME with a key, token or workload identity, then the managed identity.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NoReturn

from tensorgate.gateway.config import SourceConfig
from tensorgate.gateway.contract.extras import install_command
from tensorgate.gateway.contract.locations import Location
from tensorgate.gateway.stores.errors import Changed, NotAllowed, NotThere, Unreachable
from tensorgate.gateway.stores.http import CHUNK_BYTES, Policy, patiently
from tensorgate.gateway.stores.listing import Listing, RemoteFile, checked

_NO_CREDENTIALS: Final = (
    "no credentials were found, or they cannot be had (stores.sources: anonymous: true asks without any)"
)
_MAX_LISTED: Final = 1000
_STREAM_BYTES: Final = 4 * CHUNK_BYTES
_WRONG: Final = ("UnknownConfigurationKeyError", "InvalidPathError", "NotSupportedError")
_NOT_ALLOWED: Final = ("PermissionDeniedError", "UnauthenticatedError")


class ObjectStore:
    """Buckets of one cloud, reached in one way."""

    def __init__(self, scheme: str, source: SourceConfig, policy: Policy) -> None:
        self._scheme = scheme
        self._source = source
        self._policy = policy
        self._buckets: dict[str, Any] = {}

    def list(self, location: Location) -> Listing:
        """See Store.list. A name that ends with a slash is a folder's own entry, and no file."""

        def ask() -> Listing:
            try:
                return self._listed(location)
            except Exception as error:
                _fail(error, location.url)

        return patiently(self._policy, ask)

    def _listed(self, location: Location) -> Listing:
        import obstore

        bucket, files = self._bucket(location.host), []
        for page in obstore.list(bucket, location.path or None, chunk_size=_MAX_LISTED):
            for each in page:
                path = each["path"].removeprefix(location.path).lstrip("/")
                if path and not each["path"].endswith("/"):
                    files.append(self._file(path, location.host, each))
        if files:
            return checked(Listing(location, tuple(files)))
        if not location.path:
            raise NotThere(f"{location.url}: the bucket is empty")
        found = obstore.head(bucket, location.path)
        one = self._file(location.path.rpartition("/")[2], location.host, found)
        return checked(Listing(location, (one,), is_file=True))

    @contextmanager
    def open(self, file: RemoteFile, offset: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """See Store.open."""
        host, _, path = file.address.partition("/")
        options: Any = {"if_match": file.tag} if file.tag.startswith('"') else {}
        if offset:
            options["range"] = {"offset": offset}
        url = f"{self._scheme}://{file.address}"
        try:
            import obstore

            found = obstore.get(self._bucket(host), path, options=options)
            if file.tag and _tag(found.meta) != file.tag:
                raise Changed(f"{url} has changed since it was listed")
        except Exception as error:
            _fail(error, url)
        yield offset, _chunks(found, url)

    def _file(self, path: str, host: str, found: Mapping[str, Any]) -> RemoteFile:
        return RemoteFile(path, int(found["size"]), f"{host}/{found['path']}", tag=_tag(found))

    def _bucket(self, name: str) -> Any:
        if name not in self._buckets:
            try:
                self._buckets[name] = self._open_bucket(name)
            except Exception as error:
                _fail(error, f"{self._scheme}://{name}")
        return self._buckets[name]

    def _open_bucket(self, name: str) -> Any:
        from obstore import store

        source, policy = self._source, self._policy
        seconds = timedelta(seconds=policy.timeout_seconds)
        plain = (source.endpoint or "").startswith("http://")
        common: dict[str, Any] = {
            "client_options": {"connect_timeout": seconds, "read_timeout": seconds, "timeout": timedelta(days=1)},
            "retry_config": {"max_retries": 0},
        }
        if plain:
            common["client_options"]["allow_http"] = True
        config: dict[str, Any] = {"skip_signature": True} if source.anonymous else {}
        if self._scheme == "s3":
            return store.S3Store(name, config=_any({**config, **_s3(source)}), **common)
        if self._scheme == "gs":
            more = {"base_url": source.endpoint} if source.endpoint else {}
            return store.GCSStore(name, config=_any({**config, **more}), **common)
        more = {"endpoint": source.endpoint} if source.endpoint else {}
        return store.AzureStore(name, config=_any({**config, **more}), **common)


def _any(options: Any) -> Any:
    """obstore declares every key of every store; which of them are here is known when it reads them."""
    return options


def _s3(source: SourceConfig) -> dict[str, str]:
    """Where S3 is, and a profile's keys where the environment has none."""
    profile = {} if source.anonymous or os.environ.get("AWS_ACCESS_KEY_ID") else _profile()
    region = source.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    profile["region"] = region or profile.get("region") or "us-east-1"
    return profile | ({"endpoint": source.endpoint} if source.endpoint else {})


def _profile() -> dict[str, str]:
    """The keys of a profile of AWS' own files; empty where there is none. Source: AWS SDKs, shared config files."""
    home = Path.home() / ".aws"
    files = [
        os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or str(home / "credentials"),
        os.environ.get("AWS_CONFIG_FILE") or str(home / "config"),
    ]
    profile = os.environ.get("AWS_PROFILE") or "default"
    parser = configparser.RawConfigParser()
    with suppress(configparser.Error, OSError, UnicodeDecodeError):
        parser.read(files, encoding="utf-8")
    found: dict[str, str] = {}
    for section in (f"profile {profile}", profile):
        if parser.has_section(section):
            found |= dict(parser.items(section))
    keys = {"aws_access_key_id": "access_key_id", "aws_secret_access_key": "secret_access_key"}
    keys |= {"aws_session_token": "session_token", "region": "region"}
    return {ours: found[theirs] for theirs, ours in keys.items() if theirs in found}


def _chunks(found: Any, url: str) -> Iterator[bytes]:
    try:
        for chunk in found.stream(min_chunk_size=_STREAM_BYTES):
            yield memoryview(chunk)  # type: ignore[misc]
    except Exception as error:
        _fail(error, url)


def _tag(found: Mapping[str, Any]) -> str:
    """The ETag in quotes, which Azure leaves out of its listings; or the time of the last change."""
    tag = str(found.get("e_tag") or "").strip('"')
    return f'"{tag}"' if tag else str(found["last_modified"])


def _fail(error: Exception, url: str) -> NoReturn:
    """Raise what a store's error means. Its text is left out: it has whole requests and answers in it."""
    name = type(error).__name__
    if isinstance(error, (NotThere, NotAllowed, Unreachable)):
        raise error
    if isinstance(error, ImportError):
        raise ImportError(f"{url} needs the package obstore: {install_command('stores')}") from None
    if isinstance(error, FileNotFoundError):
        raise NotThere(f"{url}: there is no such thing") from None
    if name in _NOT_ALLOWED:
        raise NotAllowed(f"{url}: the store refuses this server, or its credentials") from None
    if name == "PreconditionError":
        raise Changed(f"{url} has changed since it was listed") from None
    if name in ("UnknownConfigurationKeyError", "InvalidPathError", "NotSupportedError") or isinstance(
        error, ValueError
    ):
        raise ValueError(f"{url}: obstore refuses it ({name})") from None
    raise Unreachable(f"{url}: {_hint(str(error))}") from None


def _hint(text: str) -> str:
    """The part of an error that says what to do, by words that obstore is known to say."""
    lower = text.lower()
    if "169.254." in text:
        return _NO_CREDENTIALS
    if "dns error" in lower or "failed to lookup" in lower:
        return "the store's name is not known"
    if "timed out" in lower or "timeout" in lower:
        return "the store does not answer in time"
    return _NO_CREDENTIALS if "metadata" in lower or "credential" in lower else "the store does not answer well"
