"""The base of everything that YAML sets."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler

from tensorgate.gateway.contract.tensor import NOTHING

if TYPE_CHECKING:
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema


class Options(BaseModel):
    """Base of everything that YAML sets: immutable, no unknown keys, no coercion of types. The text below a key becomes
    its description in the JSON schema.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Texts are read here, and not as classes are made (`use_attribute_docstrings`): each start of a process would
        read all sources of options, for what hardly one needs.
        """
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        texts: dict[str, str] = {}
        for base in reversed(cls.__mro__):
            texts |= _texts(base.__module__).get(base.__name__, NOTHING)
        for key, text in texts.items():
            field = cls.model_fields.get(key)
            if field is not None and (name := field.alias or key) in properties:
                properties[name] = dict(sorted(({"description": text} | properties[name]).items()))
        return schema


@lru_cache(maxsize=64)
def _texts(module: str) -> Mapping[str, Mapping[str, str]]:
    """Name of a module's class -> its keys -> the text below each. Nothing without sources."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError, KeyError):
        return NOTHING
    return {each.name: _texts_below(each) for each in tree.body if isinstance(each, ast.ClassDef)}


def _texts_below(of_class: ast.ClassDef) -> Mapping[str, str]:
    found = {}
    for key, below in pairwise(of_class.body):
        match key, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = inspect.cleandoc(text)
    return found
