"""Models that lie on other machines: the section `stores`."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from tensorgate.gateway.config.values import ByteSize
from tensorgate.gateway.contract.files import Existing, FileRef
from tensorgate.gateway.contract.locations import SCHEMES
from tensorgate.gateway.contract.options import Options


def _check_prefix(prefix: str) -> str:
    if prefix.partition("://")[0] not in SCHEMES or "://" not in prefix or "@" in prefix.split("/")[2]:
        raise ValueError(f"expected the beginning of URLs, like s3:// or https://host/: {', '.join(SCHEMES)}")
    return prefix


def _check_endpoint(endpoint: str) -> str:
    scheme, _, rest = endpoint.partition("://")
    if scheme not in ("https", "http") or not rest or "@" in rest or "?" in rest or endpoint.endswith("/"):
        raise ValueError("expected https://HOST:PORT, without a slash at its end, a user or a query")
    return endpoint


Prefix = Annotated[str, AfterValidator(_check_prefix)]
Endpoint = Annotated[str, AfterValidator(_check_endpoint)]


class CacheConfig(Options):
    """What was fetched is kept on this machine's disk, whole versions of models by their content."""

    folder: Annotated[FileRef, Existing("kept")] | None = None
    """Where; it is made if it does not exist. Several gateways may share one. null: tensorgate/models below
    XDG_CACHE_HOME, or below ~/.cache."""
    max_bytes: ByteSize | None = None
    """How much it may hold, a number, or text like 50GiB. What was used longest ago leaves first, and never what a
    model that is loaded was loaded from. null: no limit."""


class SourceConfig(Options):
    """How URLs are reached that begin alike. Credentials do not stand here: see docs/stores.md."""

    endpoint: Endpoint | None = None
    """Where the store, hub or registry answers, in place of its usual address: https://HOST:PORT."""
    region: str | None = Field(default=None, min_length=1)
    """Of s3://, the region; null: as the environment says, or us-east-1."""
    anonymous: bool = False
    """Whether requests carry no credentials, not even those that there are."""
    mirror: Prefix | None = None
    """What stands in the place of this beginning, in whatever store: all is fetched from there."""


class StoresConfig(Options):
    """Models that lie on other machines. Changes need a restart."""

    cache: CacheConfig = CacheConfig()
    """What is kept on this machine."""
    offline: bool = False
    """Whether nothing is fetched: what the cache has is served, and a model that it lacks is not loaded."""
    sources: dict[Prefix, SourceConfig] = Field(default_factory=dict)
    """A beginning of URLs, s3:// or s3://bucket/ -> how those are reached; the longest that fits counts."""
    connections: int = Field(default=4, ge=1, le=64)
    """How many files are fetched at a time."""
    timeout_seconds: float = Field(default=30, gt=0, allow_inf_nan=False)
    """How long a store may take to answer, or pause while it sends."""
    retries: int = Field(default=5, ge=0, le=100)
    """How often a request is sent again that a store did not answer, or only half, each time after twice the pause,
    half a second at first; a file is resumed where it broke off."""
    allow_private_redirects: bool = False
    """Whether a host of the internet may redirect to an address of this machine or of a private network."""

    def source(self, url: str) -> tuple[str, SourceConfig]:
        """The longest beginning of a URL for which something is said, and what."""
        fitting = [prefix for prefix in self.sources if url.startswith(prefix)]
        best = max(fitting, key=len, default="")
        return best, self.sources.get(best, SourceConfig())
