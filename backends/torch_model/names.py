"""Callers' names of tensors -> places of a program's arguments and results, as Triton finds them.

Names that the program has itself mean those. Otherwise names that all end in "__" and a number mean that place:
INPUT__0 is the first. Otherwise they are meant in the order in which they are declared. Some of its own names among
others would be a mistake. Source: Triton's PyTorch backend.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tensorgate.gateway.contract.errors import ModelFailed

_NUMBERED: Final = re.compile(r".*__(\d{1,4})")
_MAX_KNOWN: Final = 16


def places(what: str, declared: Sequence[str], own: Sequence[str]) -> list[int]:
    """Where each declared name is in the program's own list. Raises ValueError where that has no such place."""
    if set(declared) <= set(own):
        return [own.index(name) for name in declared]
    matches = [_NUMBERED.fullmatch(name) for name in declared]
    found = [int(match[1]) for match in matches if match]
    if len(found) < len(declared):
        found = list(range(len(declared)))
    if set(declared) & set(own) or len(set(found)) < len(declared) or any(place >= len(own) for place in found):
        raise ValueError(
            f"{what} are declared as {_listed(declared)}, but the program has {_listed(own)}: "
            "use these names, or NAME__0, NAME__1 and so on, or their order"
        )
    return found


class ProgramOutputs:
    """What a program gives -> tensors by the names that are declared for them."""

    def __init__(self, declared: Sequence[str]) -> None:
        self._declared = declared
        self._known: dict[tuple[str, ...], list[int]] = {}

    def of(self, result: Any) -> dict[str, Any]:
        """Raises ModelFailed where it gave something else."""
        found = list(leaves(result))
        own = tuple([name for name, _ in found])
        taken = self._known.get(own)
        if taken is None:
            try:
                taken = places("outputs", self._declared, own)
            except ValueError as error:
                raise ModelFailed(str(error)) from None
            if len(self._known) < _MAX_KNOWN:
                self._known[own] = taken
        return {name: found[place][1] for name, place in zip(self._declared, taken, strict=True)}


def leaves(result: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The tensors of whatever a program gives, by names of their own: keys of a dictionary, fields of a named tuple,
    otherwise output__0, output__1; a tensor alone is "output".
    """
    if isinstance(result, Mapping):
        for key, value in result.items():
            yield from leaves(value, _below(path, str(key)))
    elif hasattr(result, "_fields"):
        for key in result._fields:
            yield from leaves(getattr(result, key), _below(path, key))
    elif isinstance(result, (list, tuple)):
        for index, value in enumerate(result):
            yield from leaves(value, f"{path or 'output'}__{index}")
    else:
        yield path or "output", result


def _below(path: str, key: str) -> str:
    return f"{path}_{key}" if path else key


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "nothing"
