"""The operators that a file brings along: its section `ops`, read before the rest, which may use them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from tensorgate.gateway.config.values import OwnOp
from tensorgate.gateway.config.yaml_tree import Finding, Tree
from tensorgate.gateway.contract.files import FileRef
from tensorgate.gateway.contract.operator import OpKind
from tensorgate.gateway.contract.registries import Registries

_FILE: TypeAdapter[FileRef] = TypeAdapter(OwnOp)


def with_own_ops(tree: Tree, path: Path, registries: Registries) -> tuple[Registries, list[Finding]]:
    """The registries with these operators, and what is wrong with those that cannot be had. What is no section at all
    is left for others to find.
    """
    section = tree.data.get("ops") if isinstance(tree.data, dict) else None
    if not isinstance(section, dict) or registries.load_op is None:
        return registries, []
    own: dict[str, OpKind] = {}
    findings = []
    for name, text in _refused(section, path, registries, own):
        findings.append(Finding(tree.places["ops", name].value, ("ops", name), text))
    return replace(registries, ops={**registries.ops, **own}), findings


def _refused(
    section: Mapping[str, Any], path: Path, registries: Registries, own: dict[str, OpKind]
) -> Iterator[tuple[str, str]]:
    for name, written in section.items():
        if name in registries.ops:
            yield name, f"{name} is an operator of the gateway itself; choose another name"
            continue
        try:
            file = _FILE.validate_python(written, context=path.absolute())
        except ValidationError:
            continue  # the whole is validated, too
        try:
            if registries.load_op is not None:
                own[name] = registries.load_op(name, file.path, file.member)
        except ValueError as error:
            yield name, str(error)
