"""Where models lie that are not on this machine: URLs of object stores, registries and hubs, as the YAML writes them.

    s3://bucket/prefix     gs://bucket/prefix     az://container/prefix
    https://host/path/net.onnx                    a file; plain http to this machine alone
    https://host/path/                            a folder, whose SHA256SUMS lists its files
    hf://org/name@revision/sub/folder             a repository of a hub, at its revision main by default
    oci://registry/name:tag/sub/folder            an artifact of a registry, or name@sha256:digest
    mlflow://name/version/sub/folder              a registered model of a tracking server: a version, or @alias

A location has no secrets: none may stand in a URL, since URLs are shown, logged and compared.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from ipaddress import ip_address
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import quote, unquote, urlsplit

SCHEMES: Final = ("s3", "gs", "az", "https", "http", "hf", "oci", "mlflow")
OBJECT_STORES: Final = frozenset(("s3", "gs", "az"))

_MEMBER: Final = re.compile(r"(.+\.py):([^\W\d][\w.]*)")
_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_HOST: Final = r"(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?"
_BUCKET: Final = re.compile(r"(?P<host>[A-Za-z0-9][A-Za-z0-9._-]*)(?:/(?P<path>.*))?")
_WEB: Final = re.compile(rf"(?P<host>{_HOST})/(?P<path>.*)")
_HUB: Final = re.compile(rf"(?P<path>{_NAME}/{_NAME})(?:@(?P<revision>[^/@\s]+))?(?:/(?P<sub>.*))?")
_OCI: Final = re.compile(
    rf"(?P<host>{_HOST})/(?P<path>[a-z0-9]+(?:[._/-]+[a-z0-9]+)*)"
    r"(?:@(?P<revision>sha256:[0-9a-f]{64})|:(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))(?:/(?P<sub>.*))?"
)
_MLFLOW: Final = re.compile(r"(?P<path>[^/@:\s]+)(?:@(?P<alias>[^/@:\s]+)|/(?P<revision>[0-9]+))(?:/(?P<sub>.*))?")
_FORMS: Final[Mapping[str, tuple[re.Pattern[str], str]]] = {
    "s3": (_BUCKET, "s3://BUCKET/PREFIX"),
    "gs": (_BUCKET, "gs://BUCKET/PREFIX"),
    "az": (_BUCKET, "az://CONTAINER/PREFIX"),
    "https": (_WEB, "https://HOST/PATH"),
    "http": (_WEB, "http://HOST/PATH"),
    "hf": (_HUB, "hf://ORG/NAME@REVISION/FOLDER"),
    "oci": (_OCI, "oci://REGISTRY/NAME:TAG or oci://REGISTRY/NAME@sha256:DIGEST"),
    "mlflow": (_MLFLOW, "mlflow://NAME/VERSION or mlflow://NAME@ALIAS"),
}


@dataclass(frozen=True, slots=True)
class Location:
    """A place of another machine, by its parts.

    `host` is the bucket, container, host or registry; `path` the prefix, path, repository or model's name; `revision`
    the revision, digest or tag, version or @alias; `sub` the folder or file below it. No part begins or ends with a
    slash, except that the path of a web folder ends with one.
    """

    scheme: str
    host: str = ""
    path: str = ""
    revision: str = ""
    sub: str = ""

    @property
    def url(self) -> str:
        """The location as it could be written in a YAML file."""
        sub = f"/{self.sub}" if self.sub else ""
        match self.scheme:
            case "hf":
                return f"hf://{self.path}@{quote(self.revision, safe='')}{sub}"
            case "oci":
                mark = "@" if self.revision.startswith("sha256:") else ":"
                return f"oci://{self.host}/{self.path}{mark}{self.revision}{sub}"
            case "mlflow":
                mark = "" if self.revision.startswith("@") else "/"
                return f"mlflow://{self.path}{mark}{self.revision}{sub}"
        return f"{self.scheme}://{self.host}/{self.path}"

    @property
    def is_web(self) -> bool:
        """Whether it is a URL of the web."""
        return self.scheme in ("https", "http")

    @property
    def below(self) -> str:
        """The path of the folder or file within its bucket, host, repository or artifact."""
        return self.sub if self.scheme in ("hf", "oci", "mlflow") else self.path

    def parent(self) -> Location:
        """The folder that this file is in."""
        if self.scheme in ("hf", "oci", "mlflow"):
            return replace(self, sub=self.sub.rpartition("/")[0])
        path, slash, _ = self.path.rstrip("/").rpartition("/")
        return replace(self, path=path + slash if self.is_web else path)

    def child(self, name: str) -> Location:
        """A file or folder in this folder; a folder of the web has to be named with a slash at its end."""
        if self.scheme in ("hf", "oci", "mlflow"):
            return replace(self, sub=f"{self.sub}/{name}".lstrip("/"))
        return replace(self, path=f"{self.path.rstrip('/')}/{name}".lstrip("/"))


def is_url(written: str) -> bool:
    """Whether a text of the YAML names another machine, rightly or not; a path never looks like that."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", written) is not None


def parse_location(written: str) -> Location:
    """A URL -> its parts. Raises ValueError with what was expected; its text repeats no secret."""
    scheme, _, rest = written.partition("://")
    if scheme not in _FORMS:
        raise ValueError(f"no store of the kind {scheme}://; there are {', '.join(f'{each}://' for each in SCHEMES)}")
    pattern, form = _FORMS[scheme]
    is_web = scheme in ("https", "http")
    if is_web and "@" in rest.partition("/")[0]:
        raise ValueError("a URL carries no user and password, since URLs are shown: see docs/stores.md")
    if "?" in rest or "#" in rest:
        raise ValueError("a URL carries no query, whose signatures and tokens would be shown: see docs/stores.md")
    found = pattern.fullmatch(rest) if _is_plain(written) else None
    if found is None:
        raise ValueError(f"expected {form}")
    location = _of_parts(scheme, {key: value or "" for key, value in found.groupdict().items()}, is_web)
    if not all(is_safe_path(text) for text in (location.path.removesuffix("/"), location.sub) if text):
        raise ValueError("a URL's path has no empty parts, and neither . nor .. in it")
    if scheme == "http" and not is_of_this_machine(urlsplit(written).hostname or ""):
        raise ValueError("plain http is for this machine alone; expected https://")
    return location


def _of_parts(scheme: str, parts: Mapping[str, str], is_web: bool) -> Location:
    revision = parts.get("revision") or parts.get("tag") or (f"@{parts['alias']}" if parts.get("alias") else "")
    if scheme == "hf":
        revision = unquote(revision) or "main"
    path = parts["path"] if is_web else parts["path"].strip("/")
    return Location(scheme, parts.get("host", ""), path, revision, parts.get("sub", "").strip("/"))


def _is_plain(text: str) -> bool:
    return text.isprintable() and not any(character.isspace() for character in text)


def split_member(written: str) -> tuple[str, str]:
    """URL of a file.py:Class -> (URL of the file, Class), or ("", "") for any other text."""
    found = _MEMBER.fullmatch(written)
    return (found[1], found[2]) if found else ("", "")


def is_safe_path(path: str) -> bool:
    """Whether a relative path, of a store's listing for example, stays below the folder that it is relative to."""
    pure = PurePosixPath(path)
    plain = str(pure) == path and path.isprintable() and "\\" not in path and not pure.is_absolute()
    return plain and path not in ("", ".") and ".." not in pure.parts


def is_of_this_machine(host: str) -> bool:
    """Whether a host's name says that it is this machine."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
