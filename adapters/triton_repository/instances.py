"""Which versions are served, in how many copies, and on which device."""

from __future__ import annotations

from typing import Any, Final

from adapters.migration import Source
from adapters.pb import enum

_BY_NUMBER: Final = enum("inference.ModelInstanceGroup.Kind").values_by_number


def versions(source: Source) -> Any:
    """latest, all, a list, or {latest: n}. Raises ValueError."""
    policy = source.config.version_policy
    choice = policy.WhichOneof("policy_choice")
    if choice == "all":
        return "all"
    if choice == "specific":
        wanted = sorted(set(policy.specific.versions))
        if not wanted or wanted[0] < 1:
            raise source.wrong("version_policy.specific", "versions must be given, each at least 1")
        return wanted
    if choice == "latest":
        if policy.latest.num_versions < 1:
            raise source.wrong("version_policy.latest", "num_versions must be at least 1")
        return "latest" if policy.latest.num_versions == 1 else {"latest": policy.latest.num_versions}
    return "latest"


def placement(source: Source) -> dict[str, Any]:
    """`device` and `instances`. A model has one device here: that of its first group, where all groups' copies run."""
    groups = [(index, group) for index, group in enumerate(source.config.instance_group) if not group.passive]
    for index, group in enumerate(source.config.instance_group):
        if group.count < 0:
            raise source.wrong(f"instance_group[{index}].count", "must be at least 0")
    if not groups:
        return {}
    device = _device(source, *groups[0])
    for index, group in groups[1:]:
        if _device(source, index, group) != device:
            source.note(f"instance_group[{index}]", f"runs on {device}, too: a model has one device here")
    count = sum(group.count or 1 for _, group in groups)
    return ({"device": device} if device != "auto" else {}) | ({"instances": count} if count > 1 else {})


def _device(source: Source, index: int, group: Any) -> str:
    """auto, cpu, cuda or cuda:N."""
    if group.kind not in _BY_NUMBER:
        raise source.wrong(f"instance_group[{index}].kind", f"unknown kind {group.kind}")
    kind = _BY_NUMBER[group.kind].name
    if kind == "KIND_CPU":
        return "cpu"
    if kind == "KIND_MODEL":
        return "auto"
    gpus = list(group.gpus)
    if any(gpu < 0 for gpu in gpus):
        raise source.wrong(f"instance_group[{index}].gpus", f"no such GPU: {min(gpus)}")
    if len(set(gpus)) > 1:
        text = f"uses GPU {gpus[0]} alone of {gpus}: a model has one device here"
        source.note(f"instance_group[{index}].gpus", text)
    if kind == "KIND_AUTO" and not any(gpus):
        return "auto"
    return f"cuda:{gpus[0]}" if gpus else "cuda"
