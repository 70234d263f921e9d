"""What a model's configuration says of it once it is loaded: queue, signatures, labels, example."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tensorgate.gateway.config import ModelConfig
from tensorgate.gateway.contract.execution import Computation
from tensorgate.gateway.contract.tensor import NOTHING, Tensors, TensorSpec
from tensorgate.gateway.engine.model import ModelSpec
from tensorgate.gateway.models.queue_policy import queue_policy, sequence_policy
from tensorgate.gateway.models.signatures import signature
from tensorgate.gateway.models.warmup_samples import read_samples


def model_spec(config: ModelConfig, computation: Computation) -> ModelSpec:
    """What the configuration says of a loaded model beside its computation.

    Raises ValueError naming what does not fit it.
    """
    sequences = sequence_policy(config, computation)
    if sequences is not None:
        computation = sequences.visible(computation)
    own = sorted(config.signatures.keys() & computation.signatures.keys())
    if own:
        raise ValueError(f"signature {own[0]} is one of the model's own")
    example: Tensors = NOTHING
    if config.example:
        example = _read_example(config.example.path, computation.inputs, computation.max_batch_size)
    labels = {output: _lines(file.path) for output, file in config.class_labels.items()}
    if config.response_cache and (sequences is not None or computation.executors[0].decoupled):
        raise ValueError("response_cache: a model of sequences, or with many answers to a request, gives none again")
    return ModelSpec(
        policy=queue_policy(config, computation.max_batch_size),
        sequences=sequences,
        signatures={name: signature(name, one, computation, labels) for name, one in config.signatures.items()},
        labels=labels,
        mappings=config.mappings(),
        example=example,
        warmup=read_samples(config, computation, example),
        sizes=config.pad_batches_to,
        configuration=config.model_dump(mode="json") | {"max_batch_size": computation.max_batch_size},
        cached=config.response_cache,
    )


def _lines(path: Path) -> tuple[str, ...]:
    return tuple(path.read_bytes().decode().removesuffix("\n").split("\n"))


def _read_example(path: Path, inputs: tuple[TensorSpec, ...], max_batch_size: int) -> Tensors:
    """One request's inputs from a JSON file: {"input": nested list}, or the bare list of a model with one input.

    A model that batches may leave the batch dimension out: the file then holds one row.
    """
    content: Any = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        content = {inputs[0].name: content}
    specs = {spec.name: spec for spec in inputs}
    unknown = set(content) - set(specs)
    if unknown:
        raise ValueError(f"{path}: no such input: {', '.join(sorted(unknown))}")
    return {
        name: _example_array(content[name], spec, max_batch_size) for name, spec in specs.items() if name in content
    }


def _example_array(value: Any, spec: TensorSpec, max_batch_size: int) -> np.ndarray[Any, Any]:
    if spec.datatype == "BYTES":
        array = np.array(value, np.object_)
        array[...] = np.vectorize(str.encode, otypes=[np.object_])(array)
    else:
        array = np.array(value, spec.dtype)
    one_row = max_batch_size and spec.shape is not None and array.ndim == len(spec.shape) - 1
    return array[np.newaxis] if one_row else array
