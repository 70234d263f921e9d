"""Tensors that another server calls otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tensorgate.gateway.contract.tensor import Tensors, TensorSpec


class TensorNames:
    """Names here and there; whatever is not in the map has the same in both places. `kind` is for errors."""

    def __init__(self, kind: str, theirs: Mapping[str, str]) -> None:
        self._kind = kind
        self._theirs = dict(theirs)
        self._ours = {there: here for here, there in theirs.items()}
        if len(self._ours) < len(theirs):
            raise ValueError(f"upstream.{kind}: two names here are one there")

    def there(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Specifications with the names of the other server. Raises ValueError where one is mapped that is none."""
        self._check(specs, self._theirs)
        return tuple([replace(spec, name=self.theirs(spec.name)) for spec in specs])

    def here(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """The other way round."""
        self._check(specs, self._ours)
        return tuple([replace(spec, name=self._ours.get(spec.name, spec.name)) for spec in specs])

    def theirs(self, name: str) -> str:
        """What the other server calls it."""
        return self._theirs.get(name, name)

    def to_there(self, tensors: Tensors) -> Tensors:
        """Tensors by their names there."""
        return _renamed(tensors, self._theirs)

    def to_here(self, tensors: Tensors) -> Tensors:
        """Tensors by their names here."""
        return _renamed(tensors, self._ours)

    def _check(self, specs: Sequence[TensorSpec], mapped: Mapping[str, str]) -> None:
        known = {spec.name for spec in specs}
        for name in mapped:
            if name not in known:
                raise ValueError(f"upstream.{self._kind}: the model has no '{name}', it has {sorted(known)}")


def _renamed(tensors: Tensors, names: Mapping[str, str]) -> Tensors:
    if not names:
        return tensors
    return {names.get(name, name): array for name, array in tensors.items()}
