"""Triton's instance groups -> `device` and `instances`: how many copies of a model lie where.

`device` names devices, `instances` copies on each; a device that has more copies than another is named more often.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import gcd
from typing import Any, TypeAlias

Group: TypeAlias = tuple[Sequence[str], int]
"""(its devices, how many copies on each)"""


def together(groups: Iterable[Group]) -> dict[str, Any]:
    """Groups that name their devices -> the keys `device` and `instances`."""
    copies: Counter[str] = Counter()
    for devices, count in groups:
        for device in dict.fromkeys(devices):
            copies[device] += count
    instances = gcd(*copies.values())
    named = [device for device, count in copies.items() for _ in range(count // instances)]
    return {"device": named[0] if len(named) == 1 else named, "instances": instances}
