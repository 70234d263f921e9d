"""JSON bodies of /v2/repository, Triton's model repository extension: the index, loading and unloading. The texts are
those of Triton's HTTP server.
"""

from __future__ import annotations

import binascii
from typing import Any, Final

import orjson
import pybase64

from tensorgate.adapters.json import body as json_body
from tensorgate.adapters.json.body import OBJECT
from tensorgate.adapters.open_inference.errors import JSON_HEADERS
from tensorgate.adapters.open_inference.parameters import boolean, fields_of, text
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.errors import InvalidArgument, Unsupported
from tensorgate.gateway.contract.questions import IndexEntry, LoadModel, RepositoryIndex, UnloadModel

_FILE: Final = "file:"


def decode_index(call: Call, resolve: Resolve) -> RepositoryIndex:
    """{"ready": true} asks for what is ready; there is one repository, whatever the address calls it."""
    body = _body(call)
    if "ready" not in fields_of(body):
        return RepositoryIndex()
    return RepositoryIndex(boolean(body["ready"], "Unable to parse 'ready'"))


def encode_index(entries: tuple[IndexEntry, ...], question: RepositoryIndex) -> Reply:
    """A bare array; of a model that was never loaded the name alone."""
    return Reply(orjson.dumps([plain_entry(entry) for entry in entries]), 200, JSON_HEADERS)


def plain_entry(entry: IndexEntry) -> dict[str, str]:
    """The JSON form of RepositoryIndexResponse.ModelIndex, without what is empty."""
    version = "" if entry.version is None else str(entry.version)
    members = {"name": entry.name, "version": version, "state": entry.state, "reason": entry.reason}
    return {key: value for key, value in members.items() if value}


def decode_load(call: Call, resolve: Resolve) -> LoadModel:
    """{"parameters": {"config": JSON as text, "file:1/model.onnx": base64}}, or nothing.

    Raises InvalidArgument, Unsupported, MalformedJson.
    """
    _check_repository(call)
    configuration, files = None, {}
    for key, value in _parameters(call):
        if key == "config":
            configuration = text(value, "Unable to parse 'config'")
        elif key.startswith(_FILE):
            files[key.removeprefix(_FILE)] = _content(key, text(value, f"Unable to parse '{key}'"))
        else:
            raise InvalidArgument(f"unrecognized load parameter '{key}'.")
    return LoadModel(call.args["model"], configuration, files)


def decode_unload(call: Call, resolve: Resolve) -> UnloadModel:
    """{"parameters": {"unload_dependents": true}}, or nothing; other parameters are passed over."""
    _check_repository(call)
    known = dict(_parameters(call))
    dependents = boolean(known.get("unload_dependents", False), "Unable to parse 'unload_dependents'")
    return UnloadModel(call.args["model"], dependents)


def _check_repository(call: Call) -> None:
    if "repository" in call.args:
        raise Unsupported("'repository_name' specification is not supported")


def _body(call: Call) -> Any:
    """The body's document, None if there is none."""
    body = bytes(call.body)
    return json_body.read(body, call.max_json_depth or 100) if body.strip() else None


def _parameters(call: Call) -> list[tuple[str, Any]]:
    body = _body(call)
    parameters = body["parameters"] if "parameters" in fields_of(body) else None
    if parameters is None:
        return []
    if not isinstance(parameters, OBJECT):
        raise InvalidArgument("Unable to parse 'parameters': attempt to get members for non-object")
    return list(parameters.items())


def _content(key: str, base64: str) -> bytes:
    try:
        return pybase64.b64decode(base64, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidArgument(f"failed to decode base64 of '{key}'") from None
