"""dynamic_batching, sequence_batching and ensemble_scheduling of Triton's ModelConfig -> how requests wait, share runs
and follow each other.
"""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Any, Final

from tensorgate.adapters.importers.common import NO_BOUND, Source
from tensorgate.adapters.importers.triton_repository.tensors import datatype, inside

_CONTROLS: Final = {0: "start", 1: "ready", 2: "end", 3: "correlation_id"}


def scheduling(source: Source, folder: Path, *, completed: bool) -> dict[str, Any]:
    """The keys of the scheduler in use. Without one, requests do not share runs, unless what the configuration leaves
    out is `completed` from the model's file: that gives a model that batches a dynamic batcher.
    """
    choice = source.config.WhichOneof("scheduling_choice")
    if choice == "dynamic_batching":
        return _dynamic(source, source.config.dynamic_batching)
    if choice == "sequence_batching" and source.config.sequence_batching.iterative_sequence:
        return _iterative(source, source.config.sequence_batching)
    if choice == "sequence_batching":
        return _sequences(source, source.config.sequence_batching, folder)
    alone = source.config.max_batch_size > 0 and not completed
    return ({"batching": False} if alone else {}) | {"max_queue_size": NO_BOUND}


def _dynamic(source: Source, batching: Any) -> dict[str, Any]:
    entry = _waits(batching)
    if "max_queue_delay_us" in entry and any(each.optional or _varies(each) for each in source.config.input):
        entry["send_on_mismatch"] = True
    entry["max_queue_size"] = batching.default_queue_policy.max_queue_size or NO_BOUND
    queue = _queue(source, "dynamic_batching.default_queue_policy", batching.default_queue_policy)
    levels = batching.priority_levels
    if not levels:
        if batching.priority_queue_policy:
            source.note("dynamic_batching.priority_queue_policy", "is ignored: there are no priority_levels")
        return entry | ({"queue": queue} if queue else {})
    if not 1 <= batching.default_priority_level <= levels:
        raise source.wrong("dynamic_batching", f"default_priority_level must be from 1 to priority_levels, {levels}")
    policies: dict[str, Any] = {}
    for level in sorted(batching.priority_queue_policy):
        if not 1 <= level <= levels:
            raise source.wrong("dynamic_batching.priority_queue_policy", f"there is no priority {level} of {levels}")
        policy = batching.priority_queue_policy[level]
        size = policy.max_queue_size or NO_BOUND  # a level's policy takes nothing from the default's
        bound = {"max_queue_size": size} if size != entry["max_queue_size"] else {}
        policies[str(level)] = _queue(source, "dynamic_batching.priority_queue_policy", policy) | bound
    entry["priorities"] = {"levels": levels, "default": batching.default_priority_level} | (
        {"queue_policies": policies} if policies else {}
    )
    return entry | ({"queue": queue} if queue else {})


def _waits(strategy: Any) -> dict[str, Any]:
    """Delay and preferred sizes, which the dynamic batcher and one of the sequence batchers have."""
    entry: dict[str, Any] = {}
    if strategy.max_queue_delay_microseconds:
        entry["max_queue_delay_us"] = strategy.max_queue_delay_microseconds
    sizes = sorted(set(getattr(strategy, "preferred_batch_size", ())))
    if sizes:
        entry["preferred_batch_sizes"] = sizes
    return entry


def _varies(tensor: Any) -> bool:
    """Whether requests may have this input in shapes that cannot share a batch."""
    return -1 in tensor.dims and not tensor.allow_ragged_batch


def _queue(source: Source, key: str, policy: Any) -> dict[str, Any]:
    """What differs from the defaults, which are Triton's."""
    queue: dict[str, Any] = {}
    if policy.default_timeout_microseconds:
        queue["timeout_us"] = policy.default_timeout_microseconds
    if policy.timeout_action not in (0, 1):
        raise source.wrong(f"{key}.timeout_action", f"unknown action {policy.timeout_action}")
    if policy.timeout_action:
        queue["timeout_action"] = "delay"
    if policy.allow_timeout_override:
        queue["allow_timeout_override"] = True
    return queue


def _sequences(source: Source, batching: Any, folder: Path) -> dict[str, Any]:
    sequences: dict[str, Any] = {}
    if batching.max_sequence_idle_microseconds:
        sequences["max_idle_us"] = batching.max_sequence_idle_microseconds
    controls = [
        _control(source, f"sequence_batching.control_input[{at}].control[{number}]", each.name, control)
        for at, each in enumerate(batching.control_input)
        for number, control in enumerate(each.control)
    ]
    states = [_state(source, f"sequence_batching.state[{at}]", each, folder) for at, each in enumerate(batching.state)]
    sequences |= ({"controls": controls} if controls else {}) | ({"states": states} if states else {})
    waits = _waits(batching.oldest) if batching.WhichOneof("strategy_choice") == "oldest" else _slots(source, batching)
    return waits | {"max_queue_size": NO_BOUND, "sequences": sequences}


def _slots(source: Source, batching: Any) -> dict[str, Any]:
    """Of the direct strategy: the wait for requests in so many slots. Without minimum_slot_utilization nobody waits."""
    used, rows = batching.direct.minimum_slot_utilization, source.config.max_batch_size
    if not used:
        return {}
    waits = _waits(batching.direct)
    return waits | ({"preferred_batch_sizes": [ceil(used * rows)]} if waits and used < 1 and rows > 0 else {})


def _iterative(source: Source, batching: Any) -> dict[str, Any]:
    """Every request is a sequence of its own, which its model carries on by giving the request back."""
    if source.config.backend != "python":
        raise source.wrong("sequence_batching.iterative_sequence", "is supported for a python model alone")
    for key in ("control_input", "state"):
        if getattr(batching, key):
            raise source.wrong(f"sequence_batching.{key}", "is not supported with iterative_sequence")
    return {"iterative": True, "max_queue_size": NO_BOUND}


def _control(source: Source, key: str, name: str, control: Any) -> dict[str, Any]:
    kind = _CONTROLS.get(control.kind)
    if kind is None or not name:
        raise source.wrong(key, f"unknown kind {control.kind}" if name else "a control needs the name of its input")
    if kind == "correlation_id":
        number = control.data_type
        return {"input": name, "kind": kind, "datatype": datatype(source, f"{key}.data_type", number)}
    for data, values in (
        ("INT32", list(control.int32_false_true)),
        ("FP32", list(control.fp32_false_true)),
        ("BOOL", [int(value) for value in control.bool_false_true]),
    ):
        if len(values) == 2:
            return {"input": name, "kind": kind, "datatype": data, "values": values}
    raise source.wrong(key, "needs int32_false_true, fp32_false_true or bool_false_true with two values")


def _state(source: Source, key: str, state: Any, folder: Path) -> dict[str, Any]:
    rows = [-1] if source.config.max_batch_size > 0 else []
    entry = {
        "input": state.input_name,
        "output": state.output_name,
        "datatype": datatype(source, f"{key}.data_type", state.data_type),
        "shape": [*rows, *state.dims],
    }
    if not state.initial_state:
        return entry
    if len(state.initial_state) > 1:
        source.note(f"{key}.initial_state[1]", "is ignored: a state begins in one way")
    first = state.initial_state[0]
    if first.WhichOneof("state_data") == "data_file":
        file = inside(source, f"{key}.initial_state.data_file", first.data_file)
        return entry | {"initial": str(folder / "initial_state" / file)}
    return entry | {"initial": "zero"}


def steps(source: Source) -> list[dict[str, Any]]:
    """The steps of an ensemble; a map leads from the step's tensor to the ensemble's. Raises ValueError."""
    return [_step(source, index, step) for index, step in enumerate(source.config.ensemble_scheduling.step)]


def _step(source: Source, index: int, step: Any) -> dict[str, Any]:
    key = f"ensemble_scheduling.step[{index}]"
    if not step.model_name:
        raise source.wrong(key, "a step needs a model_name")
    if not step.input_map or not step.output_map:
        raise source.wrong(key, "a step needs an input_map and an output_map")
    if step.model_version < -1:
        raise source.wrong(f"{key}.model_version", "must be -1, for the highest, or a version")
    return {
        "model": step.model_name,
        "version": step.model_version if step.model_version > 0 else None,
        "inputs": dict(sorted(step.input_map.items())),
        "outputs": dict(sorted(step.output_map.items())),
    }
