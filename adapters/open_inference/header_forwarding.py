"""Headers whose names match a pattern -> parameters of the request, which the model reads.

Names are in lower case, as all headers are here; a pattern has no case, unless it begins with (?-i). Where a body has a
parameter of that name, the header counts. Binary metadata of gRPC are no text, and are not forwarded. Endpoints of a
dialect without a pattern are left as they are.
Source: Triton's --http-header-forward-pattern and --grpc-header-forward-pattern, which know infer alone; the texts are
its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

from tensorgate.adapters.open_inference.options import compile_pattern
from tensorgate.gateway.contract.call import Call
from tensorgate.gateway.contract.dialect import Decode, Endpoint, Match, Resolve
from tensorgate.gateway.contract.errors import InvalidArgument

_FORWARDING: Final = frozenset(("infer", "stream_infer", "generate", "generate_stream"))
"""The methods whose requests have parameters."""
_RESERVED: Final = frozenset(
    ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output")
)


def forwarding_match(match: Callable[[str, str], Match], pattern: str) -> Callable[[str, str], Match]:
    """The same match of request lines, whose endpoints forward headers of HTTP."""
    if not pattern:
        return match
    found = compile_pattern(pattern).search
    own: dict[int, Endpoint] = {}

    # Never stale: `match` says the same of a request line each time.
    @lru_cache(maxsize=1024)
    def forwarding(method: str, raw_target: str) -> Match:
        plain = match(method, raw_target)
        if plain.endpoint.method not in _FORWARDING:
            return plain
        return replace(plain, endpoint=own.setdefault(id(plain.endpoint), _forwarding(plain.endpoint, found)))

    return forwarding


def forwarding_endpoints(endpoints: Mapping[str, Endpoint], pattern: str) -> Mapping[str, Endpoint]:
    """The same methods of gRPC, forwarding metadata."""
    if not pattern:
        return endpoints
    found = compile_pattern(pattern).search
    return {
        name: _forwarding(endpoint, found) if endpoint.method in _FORWARDING else endpoint
        for name, endpoint in endpoints.items()
    }


def _forwarding(endpoint: Endpoint, found: Callable[[str], Any]) -> Endpoint:
    return replace(endpoint, decode=_decode(endpoint.decode, found))


def _decode(decode: Decode, found: Callable[[str], Any]) -> Decode:
    def forwarding(call: Call, resolve: Resolve) -> Any:
        """Raises what `decode` does, and InvalidArgument for a name that is reserved."""
        request: Any = decode(call, resolve)
        parameters = {
            name: _text(value) for name, value in call.headers.items() if found(name) and not _is_binary(call, name)
        }
        if not parameters:
            return request
        for name in parameters:
            if name in _RESERVED or name.startswith("triton_"):
                raise InvalidArgument(f"Header '{name}' is reserved for Triton usage and cannot be forwarded.")
        return replace(request, parameters={**request.parameters, **parameters})

    return forwarding


def _is_binary(call: Call, name: str) -> bool:
    return call.transport == "grpc" and name.endswith("-bin")


def _text(value: str) -> str:
    """A value that is text: bytes that are none stand in a head as surrogates, which nothing could write again."""
    return value if value.isascii() else value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
