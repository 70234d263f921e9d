"""HTTP request lines below /v2 -> endpoints, as Triton has them. Paths are matched as they came (Triton decodes none of
them), except that a model's name may be percent-encoded, as its own client writes it.

A match is looked up once per request line and remembered.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

from tensorgate.adapters.failures import refusing
from tensorgate.adapters.open_inference import (
    api_document,
    generate,
    model_config,
    repository,
    request,
    response,
    settings,
    shared_memory,
    statistics,
)
from tensorgate.adapters.open_inference.errors import encode_error
from tensorgate.gateway.contract.call import Call
from tensorgate.gateway.contract.dialect import Decode, Encode, EncodeError, Endpoint, Match, Resolve
from tensorgate.gateway.contract.errors import MethodNotAllowed, RouteNotFound
from tensorgate.gateway.contract.questions import (
    LogSettings,
    ModelList,
    ModelReady,
    ModelStatistics,
    Question,
    ServerLive,
    ServerMetadata,
    ServerReady,
)
from tensorgate.gateway.contract.tensor import NOTHING


def _row(
    address: str, label: str, decode: Decode, encode: Encode, error: EncodeError = encode_error, **more: Any
) -> Endpoint:
    return Endpoint(address, label, decode, encode, error, **more)


def _asks(question: Question) -> Decode:
    """The decode of an address that is a question, whatever the body says."""
    return lambda call, resolve: question


def _decode_model_ready(call: Call, resolve: Resolve) -> ModelReady:
    return ModelReady(request.ref_of(call))


_MODEL: Final = "/v2/models/{model}"
_VERSION: Final = "/v2/models/{model}/versions/{version}"
_STORED: Final = "/v2/repository/models/{model}"
_MEMORY: Final = "/v2/{kind}sharedmemory"
_REGION: Final = f"{_MEMORY}/region/{{region}}"


def model_endpoints(model: str) -> tuple[Endpoint, ...]:
    """What a model has at its own address, and at that of a version."""
    return (
        _row(f"GET {model}", "metadata", request.decode_metadata, response.encode_metadata),
        _row(f"GET {model}/ready", "model_ready", _decode_model_ready, response.encode_model_ready),
        _row(
            f"POST {model}/infer",
            "infer",
            request.decode_infer,
            response.encode_infer,
            is_long=response.is_long,
            model_of=request.model_of,
        ),
        _row(f"POST {model}/generate", "generate", generate.decode_generate, generate.encode_generate, stream="single"),
        _row(
            f"POST {model}/generate_stream",
            "generate_stream",
            partial(generate.decode_generate, stream=True),
            generate.encode_event,
            generate.encode_event_error,
            stream="server",
            nothing=generate.NO_EVENTS,
        ),
        _row(f"GET {model}/config", "config", model_config.decode_config, model_config.encode_config),
        _row(
            f"GET {model}/stats",
            "statistics",
            statistics.decode_statistics,
            statistics.encode_statistics,
            statistics.encode_statistics_error,
        ),
        _row(f"GET {model}/openapi.json", "api_document", api_document.decode, api_document.encode),
    )


def _of_trace(path: str) -> tuple[Endpoint, ...]:
    encode, error = settings.encode_trace, settings.encode_trace_error
    return (
        _row(f"GET {path}", "trace", settings.decode_trace, encode, error),
        _row(f"POST {path}", "trace", settings.decode_trace_update, encode, error, admin=True),
    )


ENDPOINTS: Final = (
    _row("GET /v2", "server_metadata", _asks(ServerMetadata()), response.encode_server_metadata),
    _row("GET /v2/", "server_metadata", _asks(ServerMetadata()), response.encode_server_metadata),
    _row("GET /v2/health/live", "live", _asks(ServerLive()), response.encode_live),
    _row("GET /v2/health/ready", "ready", _asks(ServerReady()), response.encode_ready),
    _row("GET /v2/models", "model_list", _asks(ModelList()), response.encode_model_list),
    *model_endpoints(_MODEL),
    *model_endpoints(_VERSION),
    _row("POST /v2/repository/index", "repository_index", repository.decode_index, repository.encode_index),
    _row(f"POST {_STORED}/load", "load", repository.decode_load, response.encode_done, admin=True),
    _row(f"POST {_STORED}/unload", "unload", repository.decode_unload, response.encode_done, admin=True),
    _row(
        "GET /v2/models/stats",
        "statistics",
        _asks(ModelStatistics()),
        statistics.encode_statistics,
        statistics.encode_statistics_error,
    ),
    *_of_trace("/v2/trace/setting"),
    *_of_trace(f"{_MODEL}/trace/setting"),
    _row("GET /v2/logging", "logging", _asks(LogSettings()), settings.encode_logging),
    _row("POST /v2/logging", "logging", settings.decode_logging_update, settings.encode_logging, admin=True),
    *(
        _row(f"GET {place}/status", "memory_status", shared_memory.decode_status, shared_memory.encode_status)
        for place in (_MEMORY, _REGION)
    ),
    *(
        _row(f"POST {place}", label, decode, response.encode_done, admin=True)
        for place, label, decode in (
            (f"{_REGION}/register", "memory_register", shared_memory.decode_register),
            (f"{_MEMORY}/unregister", "memory_unregister", shared_memory.decode_unregister),
            (f"{_REGION}/unregister", "memory_unregister", shared_memory.decode_unregister),
        )
    ),
)

_Paths: TypeAlias = dict[str, dict[str, Endpoint]]
"""path -> method -> endpoint"""

_FIXED: Final[_Paths] = {}
_OF_MODELS: Final[_Paths] = {}
_OF_MEMORY: Final[_Paths] = {}
for _endpoint in ENDPOINTS:
    _method, _path = _endpoint.address.split(" ")
    _table = _OF_MODELS if "{" in _path or "repository" in _path else _FIXED
    _table = _OF_MEMORY if _path.startswith(_MEMORY) else _table
    _table.setdefault(_path, {})[_method] = _endpoint

_MODEL_PATH: Final = re.compile(r"/v2/models/(?!stats\Z)([^/]+)(?:/versions/([0-9]+))?(/[a-z_/.]+)?")
"""Nothing answers /v2/models/stats as a model: that address is the statistics of all."""
_REPOSITORY_PATH: Final = re.compile(r"/v2/repository(?:/([^/]+))?/(?:index|models/([^/]+)/(load|unload))")
"""A repository may have a name; only the index can do with it."""
_MEMORY_PATH: Final = re.compile(r"/v2/(system|cuda)sharedmemory(?:/region/([^/]+))?/([a-z]+)")


def _refusing(kind: type[RouteNotFound]) -> Match:
    return Match(refusing("", lambda call: kind(call.method, call.raw_target), encode_error))


_NOT_FOUND: Final = _refusing(RouteNotFound)
_NOT_ALLOWED: Final = _refusing(MethodNotAllowed)


# Never stale: the addresses are constants, and models are resolved later.
@lru_cache(maxsize=1024)
def match(method: str, raw_target: str) -> Match:
    """A request line -> its endpoint, or one that refuses it: 404 for a path, 405 for a method."""
    path = raw_target.partition("?")[0]
    args: Mapping[str, str] = NOTHING
    if found := _MODEL_PATH.fullmatch(path):
        name, version, action = found.groups()
        methods = _OF_MODELS.get((_VERSION if version else _MODEL) + (action or ""))
        args = MappingProxyType({"model": unquote(name)} | ({"version": version} if version else {}))
    elif found := _REPOSITORY_PATH.fullmatch(path):
        place, name, action = found.groups()
        methods = _OF_MODELS[f"{_STORED}/{action}" if name else "/v2/repository/index"]
        named = {"repository": unquote(place)} if place else {}
        args = MappingProxyType(named | ({"model": unquote(name)} if name else {}))
    elif found := _MEMORY_PATH.fullmatch(path):
        kind, region, action = found.groups()
        methods = _OF_MEMORY.get(f"{_REGION if region else _MEMORY}/{action}")
        args = MappingProxyType({"kind": kind} | ({"region": unquote(region)} if region else {}))
    else:
        methods = _FIXED.get(path)
    if methods is None:
        return _NOT_FOUND
    return Match(methods[method], args) if method in methods else _NOT_ALLOWED
