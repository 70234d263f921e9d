"""What a running gateway's documents say of a model: a request to begin with, and the JSON Schema of requests."""

from __future__ import annotations

import json
from typing import Any, Final
from urllib.parse import urlencode

from tensorgate.gateway.cli.client import ClientError, Gateway
from tensorgate.gateway.openapi.address import PATH

_SCHEMAS: Final = "#/components/schemas/"


def sample(gateway: Gateway, model: str, dialect: str) -> str:
    """The body of a request that calls a model with its example, as JSON. Raises ClientError."""
    content = _request(_document(gateway, model, dialect, examples="all"), model, dialect)
    if "example" not in content:
        raise ClientError(f"{dialect} has no example of {model}: a request of a sequence, or of data that JSON lacks")
    return json.dumps(content["example"])


def schema(gateway: Gateway, model: str, dialect: str) -> str:
    """The JSON Schema of requests to a model, whole, with what it refers to below `$defs`. Raises ClientError."""
    document = _document(gateway, model, dialect)
    schemas, given = document["components"]["schemas"], _request(document, model, dialect)["schema"]
    found: dict[str, Any] = {}
    top = _moved(schemas[given["$ref"].removeprefix(_SCHEMAS)] if "$ref" in given else given, schemas, found)
    about = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"a request to {model}"}
    return json.dumps({**about, **top, "$defs": found}, indent=2)


def _document(gateway: Gateway, model: str, dialect: str, **more: str) -> Any:
    return gateway.ask(f"{PATH}?{urlencode({'model': model, 'dialect': dialect, **more})}")


def _request(document: Any, model: str, dialect: str) -> Any:
    """The JSON that the first of a model's inferences takes: its schema, and perhaps an example."""
    for methods in document["paths"].values():
        for operation in methods.values():
            if "application/json" in (content := operation.get("requestBody", {}).get("content", {})):
                return content["application/json"]
    raise ClientError(f"no request of {dialect} in JSON calls {model}")


def _moved(value: Any, schemas: Any, found: dict[str, Any]) -> Any:
    """A schema that refers to `$defs`, where what it needs is put."""
    if isinstance(value, list):
        return [_moved(each, schemas, found) for each in value]
    if not isinstance(value, dict):
        return value
    if "$ref" not in value:
        return {key: _moved(each, schemas, found) for key, each in value.items()}
    name = value["$ref"].removeprefix(_SCHEMAS)
    if name not in found:
        found[name] = {}  # against schemas that refer to themselves
        found[name] = _moved(schemas[name], schemas, found)
    return {"$ref": f"#/$defs/{name}"}
