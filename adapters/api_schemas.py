"""JSON Schemas of tensors and their names, for dialects that describe their addresses.

A schema says what the server takes and gives, no less: a client that is generated from it must read every answer. What
it cannot say, such as that several tensors have one number of rows, stands in descriptions.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from tensorgate.gateway.contract.api import Schema
from tensorgate.gateway.contract.tensor import TensorSpec

_OTHER: Final = re.compile(r"[^A-Za-z0-9]+")

TEXT: Final[Schema] = {"type": "string"}
NUMBER: Final[Schema] = {"type": "number"}
BOOLEAN: Final[Schema] = {"type": "boolean"}
INTEGER: Final[Schema] = {"type": "integer"}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
TEXTS: Final[Schema] = {"type": "array", "items": TEXT}
ANY_OBJECT: Final[Schema] = {"type": "object"}


def ref(name: str) -> Schema:
    """A schema of the document by its name."""
    return {"$ref": f"#/components/schemas/{name}"}


def identifier(name: str) -> str:
    """A name as generators of code take it, letters, digits and underscores, unlike that of any other name."""
    plain = _OTHER.sub("_", name).strip("_")
    if plain == name != "":
        return name
    return f"{plain or 'x'}_{zlib.crc32(name.encode('utf-8', 'surrogatepass')):08x}"


def record(properties: Mapping[str, Schema], required: Iterable[str] = (), **more: Any) -> Schema:
    """An object. Properties that are not named may be there, too."""
    needed = list(required)
    return {"type": "object", "properties": dict(properties), **({"required": needed} if needed else {}), **more}


def list_of(items: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": items, **more}


def any_of(schemas: Iterable[Schema]) -> Schema:
    """One of several, or the only one as it is."""
    found = list(schemas)
    return found[0] if len(found) == 1 else {"anyOf": found}


def element(dtype: np.dtype[Any], text: Schema = TEXT) -> Schema:
    """One element in JSON; `text` is what BYTES are."""
    if dtype.kind == "O":
        return text
    if dtype.kind == "b":
        return BOOLEAN
    if dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        return {"type": "integer", "minimum": int(bounds.min), "maximum": int(bounds.max)}
    return NUMBER


def nested(item: Schema, sizes: Iterable[int]) -> Schema:
    """Lists within lists of these sizes, outermost first; -1: any size."""
    schema = item
    for size in reversed([*sizes]):
        fixed = {} if size < 0 else {"minItems": size, "maxItems": size}
        schema = list_of(schema, **fixed)
    return schema


def dimensions(spec: TensorSpec) -> Schema:
    """A tensor's shape as a list of numbers. Which of them are fixed stands in its description: generators of code make
    of a list whose places differ what reads no answer.
    """
    if spec.shape is None:
        return list_of(COUNT)
    rank = len(spec.shape)
    return list_of(COUNT, minItems=rank, maxItems=rank, description=str(list(spec.shape)))


def shape_text(spec: TensorSpec) -> str:
    """FP32 [-1, 16]; of any rank where nothing is declared."""
    return f"{spec.datatype}, shape {'any' if spec.shape is None else list(spec.shape)}"


def path_parameter(name: str, schema: Schema = TEXT) -> Mapping[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": schema}


def parameters_of(path: str, schemas: Mapping[str, Schema] | None = None) -> tuple[Mapping[str, Any], ...]:
    """The parameters that a path has in braces; texts, unless a schema is given."""
    known = schemas or {}
    return tuple(path_parameter(name, known.get(name, TEXT)) for name in re.findall(r"\{(\w+)\}", path))
