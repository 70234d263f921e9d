"""The tensors that a model's configuration gives: samples of its warm-up, and the example."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np

from tensorgate.gateway.config import ModelConfig, WarmupInput, WarmupSample
from tensorgate.gateway.contract.execution import Computation
from tensorgate.gateway.contract.tensor import BYTES, Array, Tensors, TensorSpec
from tensorgate.gateway.engine.warmup import Sample

_LENGTH_BYTES: Final = 4


def read_warmup_samples(config: ModelConfig, computation: Computation, example: Tensors) -> tuple[Sample, ...]:
    """The warm-up samples of a loaded model; inputs that a sample does not name are those of `example`, or ones.

    Raises ValueError naming what does not fit the model, or OSError.
    """
    samples = []
    for index, written in enumerate(config.warmup):
        name = f"warmup[{index}]" + (f" ({written.name})" if written.name else "")
        try:
            samples.append(Sample(name, _inputs(written, computation, example), written.count))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return tuple(samples)


def read_example(path: Path, inputs: tuple[TensorSpec, ...], max_batch_size: int) -> Tensors:
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
    example = {}
    for name, spec in specs.items():
        if name in content:
            array = _from_json(content[name], spec)
            one_row = max_batch_size and spec.shape is not None and array.ndim == len(spec.shape) - 1
            example[name] = array[np.newaxis] if one_row else array
    return example


def _inputs(written: WarmupSample, computation: Computation, example: Tensors) -> Tensors:
    specs = {spec.name: spec for spec in computation.inputs}
    unknown = sorted(written.inputs.keys() - specs.keys())
    if unknown:
        raise ValueError(f"the model has no input '{unknown[0]}'")
    most = computation.max_batch_size
    if written.batch_size > max(most, 1):
        raise ValueError(f"batch_size {written.batch_size} is more than max_batch_size, {most}")
    rows = written.batch_size if most else None
    inputs = {}
    for name, spec in specs.items():
        if name in written.inputs:
            try:
                inputs[name] = _input(written.inputs[name], spec, rows)
            except ValueError as error:
                raise ValueError(f"input '{name}': {error}") from None
        elif name in example:
            inputs[name] = _in_rows(example[name][:1] if rows else example[name], rows, whole=True)
        elif not spec.optional:
            inputs[name] = _input(WarmupInput(), spec, rows)
    return inputs


def _input(written: WarmupInput, spec: TensorSpec, rows: int | None) -> Array:
    """One input of a sample; `rows` is None if the model has no batch dimension."""
    if written.file is not None:
        return _from_file(written.file.path, written, spec, rows)
    return _in_rows(_filled(written.data, spec, _shape(written, spec, rows)), rows)


def _shape(written: WarmupInput, spec: TensorSpec, rows: int | None) -> tuple[int, ...]:
    """The shape of one row, or without batch dimension the whole shape: 1 where it varies, [3] for a tensor of any
    rank.
    """
    if written.shape is not None:
        return written.shape
    if spec.shape is None:
        return () if rows else (3,)
    return tuple(1 if size < 0 else size for size in (spec.shape[1:] if rows else spec.shape))


def _filled(data: str, spec: TensorSpec, shape: tuple[int, ...]) -> Array:
    random = np.random.default_rng(0)
    if spec.dtype == BYTES:
        array = np.full(shape, {"zeros": b"", "ones": b"text"}.get(data, b""), np.object_)
        if data == "random":
            array[...] = np.vectorize(lambda _: random.bytes(8).hex().encode(), otypes=[np.object_])(array)
        return array
    if data != "random":
        return np.full(shape, data == "ones", spec.dtype)
    if spec.dtype.kind in "biu":
        return random.integers(0, 2 if spec.dtype.kind == "b" else 10, shape).astype(spec.dtype)
    return random.random(shape).astype(spec.dtype)


def _in_rows(array: Array, rows: int | None, *, whole: bool = False) -> Array:
    """Repeat one row; `whole`: the array has its batch dimension already."""
    if rows is None:
        return array
    return np.repeat(array if whole else array[np.newaxis], rows, axis=0)


def _from_file(path: Path, written: WarmupInput, spec: TensorSpec, rows: int | None) -> Array:
    """Read one row, or all rows of the batch; in a file of bytes, its size tells which."""
    if path.suffix == ".npy":
        array = np.load(path, allow_pickle=False)
    elif path.suffix == ".json":
        array = _from_json(json.loads(path.read_text(encoding="utf-8")), spec)
    else:
        return _from_bytes(path.read_bytes(), spec, _shape(written, spec, rows), rows)
    if array.dtype != spec.dtype:
        raise ValueError(f"{path.name} holds {array.dtype}, but {spec.datatype} is declared")
    if written.shape is not None:
        return _shaped(array.reshape(-1), written.shape, rows)
    if rows and spec.shape is not None and array.ndim == len(spec.shape) - 1:
        return _in_rows(array, rows)
    if rows and array.shape[:1] == (1,):
        return _in_rows(array, rows, whole=True)
    return array


def _from_json(value: Any, spec: TensorSpec) -> Array:
    if spec.dtype != BYTES:
        return np.array(value, spec.dtype)
    array = np.array(value, np.object_)
    array[...] = np.vectorize(str.encode, otypes=[np.object_])(array)
    return array


def _from_bytes(content: bytes, spec: TensorSpec, shape: tuple[int, ...], rows: int | None) -> Array:
    """Elements in Open Inference's binary form: little-endian, each element of BYTES after its length."""
    if spec.dtype != BYTES:
        if len(content) % spec.dtype.itemsize:
            raise ValueError(f"{len(content)} bytes are no whole number of elements")
        return _shaped(np.frombuffer(content, spec.dtype), shape, rows)
    elements, start = [], 0
    while start < len(content):
        end = start + _LENGTH_BYTES + int.from_bytes(content[start : start + _LENGTH_BYTES], "little")
        if end > len(content):
            raise ValueError("the file ends within an element")
        elements.append(content[start + _LENGTH_BYTES : end])
        start = end
    flat = np.empty(len(elements), np.object_)
    flat[:] = elements
    return _shaped(flat, shape, rows)


def _shaped(flat: Array, shape: tuple[int, ...], rows: int | None) -> Array:
    size = prod(shape)
    if len(flat) == size:
        return _in_rows(flat.reshape(shape), rows)
    if rows and len(flat) == rows * size:
        return flat.reshape(rows, *shape)
    raise ValueError(f"{len(flat)} elements do not fill the shape {list(shape)}")
