"""What the YAML says of a model that another server computes, and of how that server is reached."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, Field, ValidationInfo, create_model, field_validator, model_validator

from tensorgate.gateway.contract.backend import SpokenUpstream
from tensorgate.gateway.contract.files import Existing, FileRef
from tensorgate.gateway.contract.options import Options

_HEADER: Final = r"^[a-z0-9_.-]+$"
_OURS: Final = re.compile(r"(grpc-|content-|transfer-).*|connection|host|te|.*-bin")
_ADDRESS: Final = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([a-zA-Z0-9._-]+)):([0-9]{1,5})")
_MAX_PORT: Final = 65535
_File = Annotated[FileRef, Existing("file")]


def _check_printable(value: str) -> str:
    if not (value.isascii() and value.isprintable()):
        raise ValueError("expected printable ASCII text")
    return value


def _check_header(name: str) -> str:
    if _OURS.fullmatch(name):
        raise ValueError("the transport's own headers cannot be set")
    return name


def host_and_port(address: str) -> tuple[str, int]:
    """Raises ValueError for what is not HOST:PORT, or [HOST]:PORT with an address of IPv6."""
    found = _ADDRESS.fullmatch(address)
    if found is None or not 0 < int(found[3]) <= _MAX_PORT:
        raise ValueError(f"expected HOST:PORT over gRPC, not {address!r}")
    return found[1] or found[2], int(found[3])


class Variable(Options):
    """A value that the environment has."""

    env: str = Field(min_length=1, description="The name of an environment variable.")


class UpstreamTls(Options):
    """TLS of a connection to another server."""

    ca: _File | None = Field(None, description="PEM file of the authorities to trust; null: those of this machine.")
    certificate: _File | None = Field(None, description="PEM file of the certificate to show, with its chain.")
    key: _File | None = Field(None, description="PEM file of its key.")
    server_name: str = Field("", description="The name that its certificate must have; empty: the address's host.")

    @model_validator(mode="after")
    def _has_both(self) -> UpstreamTls:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key belong together")
        return self


_DEFAULT_TLS = UpstreamTls.model_validate({})


class ServerOptions(Options):
    """Another server, and how it is asked."""

    transports: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType({})
    """Over what servers of a dialect are asked, of those that are not asked over gRPC and HTTP."""

    dialect: str = Field(description="What it speaks.")
    transport: Literal["grpc", "http"] = Field("grpc", description="Over what.")
    address: str | tuple[str, ...] = Field(
        min_length=1, description="HOST:PORT, or several of servers that are alike: those that are well share the load."
    )
    other_address: str | tuple[str, ...] = Field(
        (),
        description="HOST:PORT, or several, of the same server over the other transport: calls in its own dialect that "
        "come over that are passed on there.",
    )
    forward: bool = Field(
        True,
        description="Whether calls in its own dialect are passed on as they are, so that all its versions, labels, "
        "signatures and methods answer: where its name and tensors are the same here, and nothing is batched, queued "
        "by rules or cached.",
    )
    timeout_ms: int = Field(0, ge=0, description="How long a call may take at most; 0: as long as its caller waits.")
    max_answer_bytes: int = Field(1 << 30, ge=1, lt=2**31, description="The largest answer that is read.")
    tls: bool | UpstreamTls = Field(False, description="Whether connections are encrypted, and how.")
    headers: dict[
        Annotated[str, Field(pattern=_HEADER), AfterValidator(_check_header)],
        Annotated[str, AfterValidator(_check_printable)] | Variable,
    ] = Field(
        default_factory=dict,
        description="Sent with every call: HTTP headers or gRPC metadata, in lower case. Secrets as {env: NAME}.",
    )

    @field_validator("transport")
    @classmethod
    def _is_a_transport_of_the_dialect(cls, transport: str, info: ValidationInfo) -> str:
        dialect = info.data.get("dialect")
        known = cls.transports.get(dialect) if dialect is not None else None
        if known is not None and transport not in known:
            raise ValueError(f"servers are asked in {dialect} over {' or '.join(known)}")
        return transport

    @field_validator("address", "other_address")
    @classmethod
    def _has_ports(cls, value: str | tuple[str, ...], info: ValidationInfo) -> str | tuple[str, ...]:
        if (info.data.get("transport") == "grpc") == (info.field_name == "address"):
            for address in (value,) if isinstance(value, str) else value:
                host_and_port(address)
        return value

    @property
    def addresses(self) -> tuple[str, ...]:
        """`address`, one or several."""
        return (self.address,) if isinstance(self.address, str) else self.address

    @property
    def other(self) -> Self | None:
        """The same over the other transport; None where that has no address."""
        if not self.other_address:
            return None
        transport = "http" if self.transport == "grpc" else "grpc"
        return self.model_copy(update={"transport": transport, "address": self.other_address, "other_address": ()})


class UpstreamOptions(ServerOptions):
    """The server that computes a model."""

    model: str = Field("", description="What the model is called there; by default as here.")
    version: int | None = Field(None, ge=0, description="Which version; null leaves that to the server.")
    versions: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (), description="Versions that are served under their numbers there, in place of one that is version 1 here."
    )
    label: str | None = Field(None, description="A version label in place of a version, where the dialect has them.")
    signature: str = Field("", description="Which of its signatures, where the dialect has them; empty: its default.")
    inputs: dict[str, str] = Field(default_factory=dict, description="An input's name here -> its name there.")
    outputs: dict[str, str] = Field(default_factory=dict, description="An output's name here -> its name there.")

    @model_validator(mode="after")
    def _says_which_versions_once(self) -> UpstreamOptions:
        if self.versions and (self.version is not None or self.label is not None):
            raise ValueError("versions stand in place of a version or a label")
        return self


class ModelServerOptions(ServerOptions):
    """A server whose models are served here under their own names."""

    blind: ClassVar[frozenset[str]] = frozenset()
    """Dialects that have no word for which models there are."""
    models: Literal["all"] | tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        "all", description="Which of them: all, also those that it gets later, or these."
    )
    control: bool = Field(
        False,
        description="Whether calls that load or unload one of its models are passed on to it (Open Inference). Who may "
        "do so here is a matter of `admin`.",
    )
    refresh_seconds: float = Field(
        10,
        gt=0,
        allow_inf_nan=False,
        description="How often a server that can say which models it has is asked; and for how long a name that it "
        "does not have is refused without asking it again.",
    )

    @model_validator(mode="after")
    def _names_what_cannot_be_found(self) -> Self:
        if self.models == "all" and self.dialect in self.blind:
            raise ValueError(f"{self.dialect} has no word for which models there are: name them in models")
        return self


class RemoteOptions(Options):
    """What the YAML may say of a model that another server computes."""

    path: None = Field(None, description="A remote model has no file.")
    upstream: UpstreamOptions = Field(description="The server that computes it.")
    decoupled: bool | None = Field(
        None,
        description="Whether it answers zero to many times, where the dialect has a word for that; null: as the server "
        "says, else once.",
    )
    in_flight: int = Field(128, ge=1, description="How many calls may be under way.")
    wait_seconds: float = Field(
        2, ge=0, allow_inf_nan=False, description="How long loading waits for the server; it is tried again later."
    )


# Never stale: made of the names, and of this module's own classes.
@lru_cache(maxsize=8)
def remote_options(dialects: tuple[SpokenUpstream, ...]) -> type[RemoteOptions]:
    """RemoteOptions whose upstream speaks one of these dialects."""
    options: type[RemoteOptions] = _narrowed(RemoteOptions, upstream=_speaking(UpstreamOptions, dialects))
    return options


# Never stale: as above.
@lru_cache(maxsize=8)
def server_options(dialects: tuple[SpokenUpstream, ...]) -> type[ModelServerOptions]:
    """ModelServerOptions of a server that speaks one of these dialects; all models are named of a blind one."""
    options: type[ModelServerOptions] = _speaking(ModelServerOptions, dialects)
    options.blind = frozenset(each.name for each in dialects if not each.finds_models)
    return options


def _speaking(options: type[ServerOptions], dialects: tuple[SpokenUpstream, ...]) -> Any:
    only = {each.name: each.transports for each in dialects if len(each.transports) == 1}
    transport = Field(
        default_factory=lambda data: only.get(data.get("dialect"), ("grpc",))[0],
        description=f"{options.model_fields['transport'].description} By default grpc, or the dialect's only one.",
    )
    fields: dict[str, Any] = {"transport": (Literal["grpc", "http"], transport)}
    base: Any = create_model(options.__name__, __base__=options, __doc__=options.__doc__, **fields)
    speaking = _narrowed(base, dialect=Literal[tuple(each.name for each in dialects)])
    speaking.transports = only
    return speaking


def _narrowed(options: type[Options], **types: Any) -> Any:
    """The same options, with other types of some fields."""
    fields: dict[str, Any] = {name: (kind, copy(options.model_fields[name])) for name, kind in types.items()}
    return create_model(options.__name__, __base__=options, __doc__=options.__doc__, **fields)


@dataclass(frozen=True, slots=True)
class UpstreamAccess:
    """How a server is reached, with files and environment read."""

    headers: tuple[tuple[str, str], ...] = ()
    """Sent with every call."""
    tls: ssl.SSLContext | None = None
    server_name: str = ""


def access_of(upstream: ServerOptions) -> UpstreamAccess:
    """Reads files. Raises ValueError that names what is missing or cannot be used."""
    headers = tuple([(name, _value(name, value)) for name, value in upstream.headers.items()])
    if upstream.tls is False:
        return UpstreamAccess(headers)
    wanted = _DEFAULT_TLS if upstream.tls is True else upstream.tls
    context = ssl.create_default_context()
    if wanted.ca is not None:  # these, and not the machine's besides
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if wanted.ca is not None:
            context.load_verify_locations(wanted.ca.path)
        if wanted.certificate is not None and wanted.key is not None:
            context.load_cert_chain(wanted.certificate.path, wanted.key.path, password=_refuse_password)
    except OSError as error:
        raise ValueError(f"upstream.tls: {error.strerror or error}") from None
    if upstream.transport == "grpc":
        context.set_alpn_protocols(["h2"])
    return UpstreamAccess(headers, context, wanted.server_name)


def _value(name: str, value: str | Variable) -> str:
    if isinstance(value, str):
        return value
    text = os.environ.get(value.env, "").strip()
    if not text:
        raise ValueError(f"upstream.headers.{name}: the environment variable {value.env} is not set")
    try:
        return _check_printable(text)
    except ValueError:
        raise ValueError(f"upstream.headers.{name}: {value.env} is no printable ASCII text") from None


def _refuse_password() -> str:
    raise ValueError("upstream.tls: the key is encrypted, and keys with a password are not supported")
