"""A model's configuration, fitted to its loaded computation: queue, sequences, signatures, labels, warm-up."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tensorgate.gateway.config import ControlConfig, LevelConfig, ModelConfig, QueueConfig, StateConfig
from tensorgate.gateway.contract.canonical import VERIFIED
from tensorgate.gateway.contract.execution import Computation
from tensorgate.gateway.contract.tensor import BYTES, DTYPES, NOTHING, Array, Tensors, TensorSpec
from tensorgate.gateway.contract.text import SECTION, TextOptions
from tensorgate.gateway.engine.latency_goal import GoalPolicy
from tensorgate.gateway.engine.model import ModelSpec
from tensorgate.gateway.engine.queue import LevelPolicy, QueuePolicy
from tensorgate.gateway.engine.sequence_controls import Control, SequencePolicy, SequenceState, frozen
from tensorgate.gateway.engine.token_budget import TokenBudget
from tensorgate.gateway.models.signatures import signature
from tensorgate.gateway.models.verification import Verified
from tensorgate.gateway.models.warmup_samples import read_example, read_warmup_samples


def model_spec(config: ModelConfig, computation: Computation, verified: Verified | None = None) -> ModelSpec:
    """The specification of a loaded model, which tells what it has proved. Raises ValueError naming what does not fit
    the computation.
    """
    sequences = sequence_policy(config, computation)
    if sequences is not None:
        computation = sequences.visible(computation)
    own = sorted(config.signatures.keys() & computation.signatures.keys())
    if own:
        raise ValueError(f"signature {own[0]} is one of the model's own")
    example: Tensors = NOTHING
    if config.example:
        example = read_example(config.example.path, computation.inputs, computation.max_batch_size)
    budget = token_budget(config, computation)
    labels = {output: _lines(file.path) for output, file in config.class_labels.items()}
    if config.target_p99_ms is not None and computation.executors[0].decoupled:
        raise ValueError("target_p99_ms: a model with many answers to a request has no time in which it has answered")
    if config.response_cache and (sequences is not None or computation.executors[0].decoupled):
        raise ValueError("response_cache: a model of sequences, or with many answers to a request, gives none again")
    return ModelSpec(
        policy=queue_policy(config, computation.max_batch_size),
        sequences=sequences,
        signatures={name: signature(name, one, computation, labels) for name, one in config.signatures.items()},
        labels=labels,
        mappings=config.mappings(),
        example=example,
        warmup=read_warmup_samples(config, computation, example),
        sizes=config.pad_batches_to,
        configuration=config.model_dump(mode="json")
        | {"max_batch_size": computation.max_batch_size}
        | ({VERIFIED: verified.plain()} if verified else {}),
        cached=config.response_cache,
        budget=budget,
    )


def _lines(path: Path) -> tuple[str, ...]:
    return tuple(path.read_bytes().decode().removesuffix("\n").split("\n"))


def token_budget(config: ModelConfig, computation: Computation) -> TokenBudget | None:
    """How many tokens a batch has at most, if its section `text` says so. Raises ValueError, ImportError."""
    text = config.mappings().get(SECTION)
    if not isinstance(text, TextOptions) or text.max_batch_tokens is None:
        return None
    inputs = {spec.name: spec for spec in computation.inputs}
    return TokenBudget(text, text.max_batch_tokens, inputs)


def queue_policy(config: ModelConfig, max_batch_size: int) -> QueuePolicy:
    """How requests wait and are batched; `max_batch_size` is the loaded model's."""
    priorities = config.priorities
    return QueuePolicy(
        max_batch_size,
        config.max_queue_delay_us,
        _level(config.queue, config),
        {int(number): _level(own, config) for number, own in priorities.queue_policies.items()} if priorities else {},
        priorities.levels if priorities else 1,
        priorities.default if priorities else 1,
        config.preferred_batch_sizes,
        config.batching,
        config.send_on_mismatch,
        None if config.target_p99_ms is None else GoalPolicy(config.target_p99_ms / 1e3, config.pad_batches_to),
    )


def _level(policy: QueueConfig, config: ModelConfig) -> LevelPolicy:
    size = policy.max_queue_size if isinstance(policy, LevelConfig) else None
    return LevelPolicy(
        size or config.max_queue_size, policy.timeout_us, policy.timeout_action, policy.allow_timeout_override
    )


def sequence_policy(config: ModelConfig, computation: Computation) -> SequencePolicy | None:
    """How a model keeps sequences; None if it keeps none. Raises ValueError naming what does not fit."""
    sequences = config.sequences
    if sequences is None:
        return None
    if sequences.states and computation.executors[0].decoupled:
        raise ValueError("sequences: states need a model that gives one answer per request")
    takes = {spec.name: spec for spec in computation.required}
    gives = {spec.name: spec for spec in computation.outputs}
    for state in sequences.states:
        _check(gives, "output", state.output, state.datatype)
    return SequencePolicy(
        sequences.max_idle_us,
        tuple(
            _control(control, _check(takes, "input", control.input, control.datatype), computation.max_batch_size)
            for control in sequences.controls
        ),
        tuple(
            _state(state, _check(takes, "input", state.input, state.datatype), computation.max_batch_size)
            for state in sequences.states
        ),
        computation.executors[0].batches_sequences,
    )


def _check(specs: Mapping[str, TensorSpec], what: str, name: str, datatype: str) -> TensorSpec:
    spec = specs.get(name)
    if spec is None:
        raise ValueError(f"sequences: the model has no {what} '{name}'")
    if spec.datatype != datatype:
        raise ValueError(f"sequences: the model's {what} '{name}' is {spec.datatype}, not {datatype}")
    return spec


def _control(config: ControlConfig, spec: TensorSpec, max_batch_size: int) -> Control:
    """A control is one number, with as many dimensions as the model's input; of an input of any rank, two with a batch
    dimension, else one.
    """
    shape = (1,) * len(spec.shape) if spec.shape is not None else (1, 1) if max_batch_size else (1,)
    if not spec.accepts(shape):
        raise ValueError(f"sequences: '{spec.name}' has shape {list(spec.shape or ())}, and a control is one number")
    return Control(config.input, config.kind, DTYPES[config.datatype], shape, config.values)


def _state(config: StateConfig, spec: TensorSpec, max_batch_size: int) -> SequenceState:
    initial = _initial(config)
    if not spec.accepts(initial.shape):
        raise ValueError(
            f"sequences: '{spec.name}' has shape {list(spec.shape or ())}, but starts as {list(initial.shape)}"
        )
    if max_batch_size and initial.shape[:1] != (1,):
        raise ValueError(f"sequences: '{spec.name}' starts as {list(initial.shape)}, and a sequence has one row")
    return SequenceState(config.input, config.output, initial)


def _initial(config: StateConfig) -> Array:
    """The state of a sequence's first step. An open dimension counts as 1."""
    shape = tuple(1 if size < 0 else size for size in config.shape)
    dtype = DTYPES[config.datatype]
    if config.initial is None:
        initial = np.full(shape, b"", dtype) if dtype == BYTES else np.zeros(shape, dtype)
    elif dtype == BYTES:
        raise ValueError(f"sequences: '{config.input}' is text, which starts empty and not from a file")
    else:
        content, bytes_wanted = config.initial.path.read_bytes(), dtype.itemsize * math.prod(shape)
        if len(content) != bytes_wanted:
            raise ValueError(f"sequences: {config.initial.path} has {len(content)} bytes, expected {bytes_wanted}")
        initial = np.frombuffer(content, dtype).reshape(shape).copy()
    return frozen(initial)
