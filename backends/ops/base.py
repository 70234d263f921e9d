"""What operators ask of specifications, worded once."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.canonical import TensorSpec


def one(op: str, name: str, specs: Mapping[str, TensorSpec]) -> TensorSpec:
    """The specification of a tensor that an op works on. Raises ValueError naming those that there are."""
    if name not in specs:
        raise ValueError(f"{op}: there is no tensor '{name}' at this point, but {', '.join(specs) or 'none at all'}")
    return specs[name]


def renamed(op: str, specs: Mapping[str, TensorSpec], old: str, new: TensorSpec) -> dict[str, TensorSpec]:
    """The specifications with one replaced in its place. Raises ValueError if the new name is another tensor's."""
    if new.name != old and new.name in specs:
        raise ValueError(f"{op}: there is a tensor '{new.name}' already")
    return {(new.name if name == old else name): (new if name == old else spec) for name, spec in specs.items()}
