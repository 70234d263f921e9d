"""What is added to a batch so that the model sees fewer shapes, and taken away again before anybody sees it.

Rows: with `pad_batches_to: [1, 4, 16]` a batch of 5 rows runs as one of 16. The rows that are added are copies of the
batch's last row, never zeros: that row has passed all checks and is an input that the model must take anyway, while a
row of zeros may be a division by zero, a word that does not exist, or a shape of length 0 in disguise. They are joined
like those of one more request, whose array is one row shown many times, so they cost no memory but the batch's own, and
they leave the outputs before anything is copied back.

Lengths: requests whose inputs are `ragged` along some axes share a batch, all as long as the longest, filled up with a
value of the operator's choice. A model that masks by it computes for each row what it would have computed alone; where
an output is as long as an input, `cut` gives each request its own length.

    bert:
      max_batch_size: 32
      pad_batches_to: [1, 8, 32]
      ragged:
        inputs:
          ids: {axes: [1], value: 0, to_multiple_of: 8}
          mask: {axes: [1], value: 0, to_multiple_of: 8}
        cut:
          - {output: hidden, axis: 1, to: ids.1}

What is wanted on a device, in memory of the caller's or as best classes is not cut, so such requests share a batch with
those of their very shapes alone, and are not lengthened.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from tensorgate.backends.execution.rows import Outcome, all_rows, check_rows
from tensorgate.gateway.contract.backend import Cut, Padding, RaggedInput
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, takes_whole_outputs
from tensorgate.gateway.contract.errors import ModelFailed
from tensorgate.gateway.contract.tensor import BYTES, Array, Tensors, TensorSpec

Shapes = Mapping[str, tuple[int, ...]]
ANY: Final = "*"


@dataclass(frozen=True, slots=True, eq=False)
class Padded:
    """A batch that something was added to: its requests as they go to the device, with one more for the rows that
    were added. `rows` are its own, `total` all; None: it has no batch dimension.
    """

    requests: Sequence[InferRequest]
    rows: int | None
    total: int | None
    lengths: Shapes
    cuts: tuple[Cut, ...]

    def without_rows(self, tensors: Tensors) -> Tensors:
        """Outputs of all rows -> of those that somebody sent. Raises OutputRows, and ModelFailed for an output that is
        not as long as the configuration says.
        """
        check_rows(tensors, self.total)
        for cut in self.cuts:
            if cut.output in tensors:
                shape, wanted = tensors[cut.output].shape, self.lengths[cut.input][cut.input_axis]
                if len(shape) <= cut.axis or shape[cut.axis] != wanted:
                    raise ModelFailed(
                        f"output '{cut.output}' has shape {list(shape)}, but is to be cut along axis {cut.axis}, where "
                        f"input '{cut.input}' has {wanted}"
                    )
        if self.rows == self.total:
            return tensors
        return {name: array[: self.rows] for name, array in tensors.items()}

    def own_lengths(self, outcomes: Sequence[Outcome], requests: Sequence[InferRequest]) -> list[Outcome]:
        """Every request's outputs in its own lengths."""
        return [self._cut(outcome, request) for outcome, request in zip(outcomes, requests, strict=True)]

    def _cut(self, outcome: Outcome, request: InferRequest) -> Outcome:
        if not isinstance(outcome, InferResponse):
            return outcome
        outputs = dict(outcome.outputs)
        for cut in self.cuts:
            if cut.output in outputs:
                own = request.inputs[cut.input].shape[cut.input_axis]
                outputs[cut.output] = outputs[cut.output][(slice(None),) * cut.axis + (slice(own),)]
        return replace(outcome, outputs=outputs)


class Padder:
    """Pads the batches of one model. Raises ValueError where the policy does not fit the model."""

    def __init__(
        self, policy: Padding, inputs: Mapping[str, TensorSpec], outputs: Mapping[str, TensorSpec], max_batch_size: int
    ) -> None:
        if not max_batch_size:
            raise ValueError("pad_batches_to and ragged are for batches, and max_batch_size is 0")
        self._ragged = dict(_every(policy.ragged, inputs))
        for cut in policy.cuts:
            _check_output(cut, outputs, self._ragged)
        self._sizes = policy.sizes
        self._cuts = policy.cuts
        self._values = {name: _value(inputs[name], ragged) for name, ragged in self._ragged.items()}

    @property
    def axes(self) -> dict[str, tuple[int, ...]]:
        """The axes of inputs in which requests that share a batch may differ."""
        return {name: ragged.axes for name, ragged in self._ragged.items()}

    def pad(self, requests: Sequence[InferRequest]) -> Padded | None:
        """What to add to a batch; None: nothing."""
        lengths = self._lengths(requests) if self._ragged and takes_whole_outputs(requests[0]) else {}
        transfer = [self._lengthened(request, lengths) for request in requests] if lengths else list(requests)
        rows = all_rows(requests)
        missing = next((size - rows for size in self._sizes if size >= rows), 0) if rows else 0
        if missing:
            transfer.append(_more(transfer, missing))
        elif not lengths:
            return None
        cuts = tuple(cut for cut in self._cuts if cut.input_axis < len(lengths.get(cut.input, ())))
        return Padded(transfer, rows, rows + missing if rows is not None else None, lengths, cuts)

    def _lengths(self, requests: Sequence[InferRequest]) -> dict[str, tuple[int, ...]]:
        """The common shapes of ragged inputs, all rows apart, if any request has another."""
        lengths, differ = {}, False
        for name, ragged in self._ragged.items():
            shapes = [request.inputs[name].shape for request in requests if name in request.inputs]
            if not shapes:
                continue
            common = list(shapes[0])
            for axis in ragged.axes:
                if axis < len(common):
                    step = ragged.to_multiple_of
                    common[axis] = -(-max(shape[axis] for shape in shapes) // step) * step
            lengths[name] = tuple(common)
            differ = differ or any(shape[1:] != lengths[name][1:] for shape in shapes)
        return lengths if differ else {}

    def _lengthened(self, request: InferRequest, lengths: Shapes) -> InferRequest:
        inputs = dict(request.inputs)
        for name, shape in lengths.items():
            array = inputs[name]
            if array.shape[1:] != shape[1:]:
                filled = np.full((array.shape[0], *shape[1:]), self._values[name], array.dtype)
                filled[tuple(map(slice, array.shape))] = array
                inputs[name] = filled
        return replace(request, inputs=inputs)


def _more(requests: Sequence[InferRequest], rows: int) -> InferRequest:
    """One more request: its rows are the last row of the others."""
    last = next(request for request in reversed(requests) if all_rows((request,)))
    return InferRequest(last.view, {name: _repeated(array, rows) for name, array in last.inputs.items()})


def _repeated(array: Array, rows: int) -> Array:
    """[n, *rest] -> [rows, *rest] without memory of its own: a view, for which no GPU has to do anything."""
    xp: Any = np if isinstance(array, np.ndarray) else importlib.import_module("cupy")
    return xp.broadcast_to(array[-1:], (rows, *array.shape[1:]))


# ---------------------------------------------------------------------------------------------- does it fit the model?


def _every(ragged: Mapping[str, RaggedInput], inputs: Mapping[str, TensorSpec]) -> Iterator[tuple[str, RaggedInput]]:
    """Each ragged input with its axes."""
    for name, one in ragged.items():
        if name == ANY:
            for spec in inputs.values():
                if spec.name not in ragged and _varying(spec):
                    yield spec.name, replace(one, axes=_varying(spec))
        elif name not in inputs:
            raise ValueError(f"ragged: the model has no input '{name}'")
        else:
            yield name, replace(one, axes=_axes(inputs[name], one.axes))


def _varying(spec: TensorSpec) -> tuple[int, ...]:
    return tuple(axis for axis, size in enumerate(spec.shape or ()) if axis and size == -1)


def _axes(spec: TensorSpec, wanted: tuple[int, ...]) -> tuple[int, ...]:
    """The axes along which an input is ragged. Raises ValueError for one that does not vary, and for none."""
    for axis in wanted:
        if spec.shape is not None and (axis >= len(spec.shape) or spec.shape[axis] != -1):
            raise ValueError(f"ragged: '{spec.name}' has shape {list(spec.shape)}, which does not vary along {axis}")
    axes = wanted or _varying(spec)
    if not axes:
        raise ValueError(f"ragged: '{spec.name}' has shape {list(spec.shape or ())}, which does not vary; name axes")
    return axes


def _check_output(cut: Cut, outputs: Mapping[str, TensorSpec], ragged: Mapping[str, RaggedInput]) -> None:
    if cut.input not in ragged or cut.input_axis not in ragged[cut.input].axes:
        raise ValueError(f"ragged: '{cut.output}' is to be cut to {cut.input}.{cut.input_axis}, which is not ragged")
    spec = outputs.get(cut.output)
    if spec is None:
        raise ValueError(f"ragged: the model has no output '{cut.output}'")
    if spec.shape is not None and (cut.axis >= len(spec.shape) or spec.shape[cut.axis] != -1):
        raise ValueError(
            f"ragged: output '{cut.output}' has shape {list(spec.shape)}, which does not vary along {cut.axis}"
        )


def _value(spec: TensorSpec, ragged: RaggedInput) -> Any:
    """What an input is filled up with, as it can be an element. Raises ValueError."""
    if spec.dtype == BYTES:
        if not isinstance(ragged.value, str | None):
            raise ValueError(f"ragged: input '{spec.name}' is text, and cannot be filled up with {ragged.value}")
        return (ragged.value or "").encode()
    if isinstance(ragged.value, str):
        raise ValueError(f"ragged: input '{spec.name}' is {spec.datatype}, and cannot be filled up with text")
    wanted = np.float64(ragged.value or 0)
    with np.errstate(all="ignore"):
        value = wanted.astype(spec.dtype)
    exact = spec.dtype.kind in "iub"
    if exact and float(value) != wanted:
        raise ValueError(f"ragged: input '{spec.name}' is {spec.datatype}, and cannot be filled up with {ragged.value}")
    return value
