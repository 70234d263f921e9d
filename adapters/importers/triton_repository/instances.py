"""instance_group and version_policy of Triton's ModelConfig -> which versions are served, in how many copies, and on
which devices.
"""

from __future__ import annotations

from typing import Any, Final

from tensorgate.adapters.importers.common import Source, versions_of
from tensorgate.adapters.instance_groups import together
from tensorgate.adapters.protobuf.messages import enum

_BY_NUMBER: Final = enum("inference.ModelInstanceGroup.Kind").values_by_number
_OPEN: Final = ("auto", "all", "cuda:*")
"""Placements that name no device."""


def versions(source: Source) -> Any:
    """latest, all, a list, or {latest: n}. Raises ValueError."""
    wrong = {"specific": "versions must be given, each at least 1", "latest": "num_versions must be at least 1"}
    return versions_of(
        source.config.version_policy, 1, lambda field: source.wrong(f"version_policy.{field}", wrong[field])
    )


def placement(source: Source, usual: str = "all") -> dict[str, Any]:
    """`device` and `instances`, where they differ from one copy on `auto`.

    Without GPUs of its own a group has a copy on each that there is; what chooses for itself goes by what is `usual`.
    Groups of both sorts cannot be had together.
    """
    for index, group in enumerate(source.config.instance_group):
        if group.count < 0:
            raise source.wrong(f"instance_group[{index}].count", "must be at least 0")
    groups = [
        (index, _devices(source, index, group, usual), group.count or 1)
        for index, group in enumerate(source.config.instance_group)
        if not group.passive
    ]
    if not groups:
        return {"device": usual} if usual != "auto" else {}
    first = groups[0][1]
    if first[0] in _OPEN or len(groups) == 1:
        for index, devices, _ in groups[1:]:
            if devices != first:
                source.note(f"instance_group[{index}]", f"runs where the first group does, device: {first[0]}")
        entry = together([(first, sum(count for _, _, count in groups))])
    else:
        for index, devices, _ in groups:
            if devices[0] in _OPEN:
                source.note(f"instance_group[{index}]", "is ignored: beside groups that name their GPUs, it must, too")
        entry = together((devices, count) for _, devices, count in groups if devices[0] not in _OPEN)
    usually = {"device": "auto", "instances": 1}
    return {key: value for key, value in entry.items() if value != usually[key]}


def _devices(source: Source, index: int, group: Any, usual: str) -> list[str]:
    """cpu and cuda:N, or one of the open ones."""
    if group.kind not in _BY_NUMBER:
        raise source.wrong(f"instance_group[{index}].kind", f"unknown kind {group.kind}")
    kind = _BY_NUMBER[group.kind].name
    if kind == "KIND_CPU":
        return ["cpu"]
    if kind == "KIND_MODEL":
        return ["auto"]
    gpus = list(group.gpus)
    if any(gpu < 0 for gpu in gpus):
        raise source.wrong(f"instance_group[{index}].gpus", f"no such GPU: {min(gpus)}")
    if gpus:
        return [f"cuda:{gpu}" for gpu in gpus]
    return ["cuda:*"] if kind == "KIND_GPU" else [usual]
