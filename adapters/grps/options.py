"""What the YAML may say about grps: of the dialect as a whole, and of single models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from pydantic import Field

from gateway.ports import ModelView, Options

MapName: TypeAlias = Literal["s_s", "s_b", "s_i32", "s_i64", "s_f", "s_d"]


class GrpsOptions(Options):
    """`http_status`: failures answer with the HTTP status that their envelope names (mirror), or with 200 always, as
    the C++ server does, so that clients which treat any other status as a broken transport still see the envelope.

    `offline_grpc_code` is what CheckReadiness says over gRPC while offline: 503, as over HTTP, or the Python server's
    403. `initially_online` and `default_model` (a public name, the answer to an empty model) are the composition
    root's.
    """

    http_status: Literal["mirror", "always_200"] = "mirror"
    offline_grpc_code: Literal[503, 403] = 503
    initially_online: bool = False
    default_model: str | None = None


class GrpsReply(Options):
    """Which output becomes the whole reply, as text or as raw bytes; with both, the request's own kind decides."""

    str_data: str | None = None
    bin_data: str | None = None


class GrpsMapping(Options):
    """How a model takes what is no tensor: the input that str_data or bin_data fills, and for each of gmap's six maps
    which entry fills which input: `gmap: {s_i64: {count: counters}}`.

    Without it, text and bytes go to the model's only BYTES input, and gmap is refused.
    """

    str_data: str | None = None
    bin_data: str | None = None
    gmap: Mapping[MapName, Mapping[str, str]] = Field(default_factory=dict)
    reply: GrpsReply = GrpsReply()


_UNMAPPED = GrpsMapping()


def mapping_of(view: ModelView) -> GrpsMapping:
    """What the model's YAML says for grps, the defaults where it says nothing."""
    mapping: GrpsMapping = view.mappings.get("grps", _UNMAPPED)
    return mapping
