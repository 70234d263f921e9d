"""What operators ask of specifications, worded once."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.operator import Op
from tensorgate.gateway.contract.tensor import Array, Tensors, TensorSpec


def one(op: str, name: str, specs: Mapping[str, TensorSpec]) -> TensorSpec:
    """The specification of a tensor that an op works on. Raises ValueError naming those that there are."""
    if name not in specs:
        raise ValueError(f"{op}: there is no tensor '{name}' at this point, but {', '.join(specs) or 'none at all'}")
    return specs[name]


def present(op: Op, name: str, tensors: Tensors) -> Array:
    """The tensor that an op works on. Raises InvalidArgument where an optional input was left out."""
    if name not in tensors:
        raise InvalidArgument(f"{name_of(op)} needs '{name}', which is missing")
    return tensors[name]


def name_of(op: Op) -> str:
    """What an op is called in YAML: CenterCrop is center_crop."""
    return re.sub("(?<=[a-z0-9])(?=[A-Z])", "_", type(op).__name__).lower()


def renamed(op: str, specs: Mapping[str, TensorSpec], old: str, new: TensorSpec) -> dict[str, TensorSpec]:
    """The specifications with one replaced in its place. Raises ValueError if the new name is another tensor's."""
    if new.name != old and new.name in specs:
        raise ValueError(f"{op}: there is a tensor '{new.name}' already")
    return {(new.name if name == old else name): (new if name == old else spec) for name, spec in specs.items()}


def here(xp: Any) -> Hashable:
    """What arrays that an op keeps belong to: the stream that they were made on, None on the host.

    Kept by this, they are ordered like everything else that is done on their stream, and freed in that order.
    """
    return None if xp is np else (xp.cuda.runtime.getDevice(), xp.cuda.get_current_stream().ptr)
