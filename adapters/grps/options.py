"""The YAML options of the grps dialect, and of a model's section `grps`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from pydantic import Field, ValidationInfo, field_validator

from tensorgate.gateway.contract.canonical import ModelView
from tensorgate.gateway.contract.options import Options

PREFIX: Final = "/grps/v1"
MapName: TypeAlias = Literal["s_s", "s_b", "s_i32", "s_i64", "s_f", "s_d"]
MAP_DATATYPES: Final[Mapping[MapName, str]] = {
    "s_s": "BYTES",
    "s_b": "BYTES",
    "s_i32": "INT32",
    "s_i64": "INT64",
    "s_f": "FP32",
    "s_d": "FP64",
}
"""gmap's maps, and the datatype of what they hold."""


class StreamingControl(Options):
    """How a caller asks for a stream: by `ctrl_key` in the query or a header, whose value is true, or by that member of
    a JSON body. `res_content_type` is the type of what is streamed.
    """

    ctrl_mode: Literal["query_param", "header_param", "body_param"] = "query_param"
    ctrl_key: str = Field(default="streaming", min_length=1)
    res_content_type: str = Field(default="application/octet-stream", min_length=1)

    @property
    def words(self) -> str:
        """How to ask, for callers to read."""
        if self.ctrl_mode == "query_param":
            return f"{self.ctrl_key}=true"
        return f"the header {self.ctrl_key}: true" if self.ctrl_mode == "header_param" else f'"{self.ctrl_key}": true'


class CustomizedHttp(Options):
    """A second path for predict, GET and POST. `customized_body`: on both paths the model gets the raw request, and its
    answer is the raw response. Source: grps v1.1.0, `customized_predict_http` of server.yml.
    """

    path: str = Field(pattern=r"^/[a-zA-Z0-9_\-/]+$")
    customized_body: bool = False
    streaming_ctrl: StreamingControl = StreamingControl()

    @field_validator("path")
    @classmethod
    def _is_free(cls, path: str) -> str:
        if path == PREFIX or path.startswith(f"{PREFIX}/"):
            raise ValueError(f"what is below {PREFIX} has its meaning already")
        return path


class GrpsOptions(Options):
    """`http_status`: failures answer with the HTTP status that their envelope names (mirror), or with 200 always, as
    the C++ server does, so that clients which treat any other status as a broken transport still see the envelope.

    `offline_grpc_code` is what CheckReadiness says over gRPC while offline: 503, as over HTTP, or the Python server's
    403. `default_model` is a public name, the answer to an empty model.
    """

    http_status: Literal["mirror", "always_200"] = "mirror"
    offline_grpc_code: Literal[503, 403] = 503
    initially_online: bool = False
    default_model: str | None = None
    customized_predict_http: CustomizedHttp | None = None


class GrpsReply(Options):
    """Which output becomes the whole reply, as text or as raw bytes, or which outputs become entries of gmap's maps:
    `gmap: {s_i64: {count: counters}}`. With several of these the request's own kind decides. `gtensors` are the outputs
    that answer a request of tensors in kind, beside those; without it such a request gets the reply that is named.

    Where a model shapes the raw response (`customized_body`), `status`, `content_type` and `headers` are the outputs
    that say these: a number, a text, and a JSON object of texts.
    """

    str_data: str | None = None
    bin_data: str | None = None
    gmap: Mapping[MapName, Mapping[str, str]] = Field(default_factory=dict)
    gtensors: tuple[str, ...] = ()
    status: str | None = None
    content_type: str | None = None
    headers: str | None = None


class GrpsMapping(Options):
    """How a model takes what is no tensor: the input that str_data or bin_data fills, and for each of gmap's six maps
    which entry fills which input: `gmap: {s_i64: {count: counters}}`.

    Without it, text and bytes go to the model's only BYTES input, and gmap is refused. ndarray goes to the one input
    that nothing else fills; tensors without names, too, begin with such inputs where the others are optional.

    `version` is a text, and callers may say NAME-VERSION besides the number of a version here; `name` is that NAME, the
    model's own if it is left out.
    """

    version: str | None = Field(default=None, min_length=1)
    name: str | None = Field(default=None, min_length=1)
    str_data: str | None = None
    bin_data: str | None = None
    gmap: Mapping[MapName, Mapping[str, str]] = Field(default_factory=dict)
    reply: GrpsReply = GrpsReply()

    @field_validator("name")
    @classmethod
    def _with_a_version(cls, name: str | None, info: ValidationInfo) -> str | None:
        if name is not None and info.data.get("version") is None:
            raise ValueError("a name needs a version beside it: callers say name-version")
        return name

    def claimed(self) -> frozenset[str]:
        """The inputs that text, bytes and entries of gmap fill."""
        entries = [name for named in self.gmap.values() for name in named.values()]
        return frozenset([*entries, *(name for name in (self.str_data, self.bin_data) if name)])

    def qualified(self, model: str) -> str | None:
        """What callers of this model say, if it is more than its own name and the number of a version."""
        return f"{self.name or model}-{self.version}" if self.version else None


_UNMAPPED = GrpsMapping()


def mapping_of(view: ModelView) -> GrpsMapping:
    """What the model's YAML says for grps, the defaults where it says nothing."""
    mapping: GrpsMapping = view.mappings.get("grps", _UNMAPPED)
    return mapping
