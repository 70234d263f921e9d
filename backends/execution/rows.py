"""Rows of many requests become the rows of one batch, and each request gets its own rows of what comes back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

import numpy as np

from tensorgate.backends.ops.best_classes import classes_of
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, TopK
from tensorgate.gateway.contract.errors import GatewayError, ModelFailed, OutputRows
from tensorgate.gateway.contract.tensor import NOTHING, Array, Tensors, common_rows

_NOTHING: Final = bytearray()

Outcome = InferResponse | GatewayError
"""What becomes of a request: what cannot be done for one is no concern of the others in the batch."""


class Rows(Sequence[InferResponse]):
    """Everybody's own rows of every output, as views made when they are asked for: by then the thread that computed
    them has begun the next batch. [sum(sizes), *rest] -> [sizes[i], *rest]
    """

    def __init__(self, outputs: Tensors, sizes: Sequence[int]) -> None:
        self._outputs = outputs
        self._sizes = sizes

    def __len__(self) -> int:
        return len(self._sizes)

    def __iter__(self) -> Iterator[InferResponse]:
        named, end = [*self._outputs.items()], 0
        if len(named) == 1:  # the usual case, in half the time
            ((only, whole),) = named
            for size in self._sizes:
                start, end = end, end + size
                yield InferResponse({only: whole[start:end]})
            return
        for size in self._sizes:
            start, end = end, end + size
            yield InferResponse({name: array[start:end] for name, array in named})

    def __getitem__(self, index: Any) -> Any:
        return [*self][index]


def asked_for(given: Tensors, wanted: tuple[str, ...]) -> Tensors:
    """The outputs that were asked for out of those that a model gave, in that order. Every batch passes here. Raises
    ModelFailed where one is missing.
    """
    if (*given,) == wanted:
        return given
    try:
        return {name: given[name] for name in wanted}
    except KeyError as missing:
        raise ModelFailed(f"the model gave no output '{missing.args[0]}'") from None


def are_plain(requests: Sequence[InferRequest]) -> bool:
    """Whether everybody wants all outputs, on the host, in memory of ours: the usual case, and the quickest."""
    return not [each for each in requests if each.outputs or each.on_device or each.into is not None]


def sizes_of(requests: Sequence[InferRequest]) -> list[int]:
    """The rows of requests that share a batch: all inputs of such a request have as many."""
    name = next(iter(requests[0].inputs))
    return [request.inputs[name].shape[0] for request in requests]


def places_of(requests: Sequence[InferRequest]) -> list[slice]:
    """Where the rows of each are in the batch that they share."""
    end = 0
    return [slice(end, end := end + size) for size in sizes_of(requests)]


def last_deadline(requests: Sequence[InferRequest]) -> float | None:
    """The last moment at which anybody could want the answer; None if one of them waits for ever."""
    deadlines = [request.deadline for request in requests if request.deadline is not None]
    return max(deadlines) if len(deadlines) == len(requests) else None


def join_rows(requests: Sequence[InferRequest]) -> Tensors:
    """Concatenate every input on axis 0, on the host: [rows_i, *rest] -> [sum(rows_i), *rest], dtype kept, one copy
    each.

    One request is passed through without a copy. Source: Triton model configuration, dynamic batching.
    """
    if len(requests) == 1:
        return requests[0].inputs
    return {name: _joined([request.inputs[name] for request in requests]) for name in requests[0].inputs}


def _joined(arrays: list[Array]) -> Array:
    """As bytes, where they can be: that takes half the time for small rows, and keeps the interpreter. Who lets go of
    it for each row finds the event loop in it, and waits.
    """
    first = arrays[0]
    if first.dtype.hasobject:
        return np.concatenate(arrays)
    try:
        joined = np.frombuffer(_NOTHING.join(arrays), first.dtype)
    except (TypeError, ValueError):  # strides, or a type that NumPy shows to nobody
        return np.concatenate(arrays)
    return joined.reshape(sum([len(array) for array in arrays]), *first.shape[1:])


def split_rows(
    outputs: Tensors,
    requests: Sequence[InferRequest],
    classes: Mapping[str, TopK | GatewayError] = NOTHING,
    on_device: Tensors = NOTHING,
) -> Sequence[Outcome]:
    """Give every request its own rows of every output that it asked for, as views: [sum(rows_i), *rest] -> [rows_i,
    *rest]; of an output whose best `classes` it asked for, those. Who wants them `on_device` gets views of those.

    A lone request gets all rows, whatever their number. What an output cannot give is the outcome of who asked for it.
    """
    if len(requests) == 1:
        return [_own(on_device if requests[0].on_device else outputs, classes, requests[0], None)]
    if are_plain(requests):
        return Rows(outputs, sizes_of(requests))
    return [
        _own(on_device if request.on_device else outputs, classes, request, rows)
        for request, rows in zip(requests, places_of(requests), strict=True)
    ]


def _own(
    outputs: Tensors, classes: Mapping[str, TopK | GatewayError], request: InferRequest, rows: slice | None
) -> Outcome:
    found: dict[str, TopK] = {}
    if classes:
        for output in request.outputs:
            if output.top_k:
                best = classes[output.name]
                if isinstance(best, TopK):
                    best = classes_of(output.name, best, output.top_k, rows)
                if isinstance(best, GatewayError):
                    return best
                found[output.name] = best
    own = _asked(outputs, request)
    return InferResponse(own if rows is None else {name: array[rows] for name, array in own.items()}, classes=found)


def wanted_whole(requests: Sequence[InferRequest]) -> set[str] | None:
    """The outputs that somebody wants whole and on the host; None: all of them."""
    if not all(request.outputs or request.on_device for request in requests):
        return None
    return {name for request in requests if not request.on_device for name in _whole(request)}


def _whole(request: InferRequest) -> set[str]:
    """Of the outputs that it names, those that are to be whole and in memory of ours."""
    elsewhere = request.into or ()
    return {output.name for output in request.outputs if not output.top_k and output.name not in elsewhere}


def all_rows(requests: Sequence[InferRequest]) -> int | None:
    """The rows of a batch; None for a request that cannot be batched."""
    rows = [common_rows(request.inputs) for request in requests]
    return None if None in rows else sum(cast("list[int]", rows))


def check_rows(outputs: Tensors, total: int | None) -> None:
    """A request that cannot be batched may give anything; a batch gives as many rows as it got."""
    if total is None:
        return
    for name, array in outputs.items():
        if array.shape[:1] != (total,):
            raise OutputRows(name, array.shape, total)


def _asked(outputs: Tensors, request: InferRequest) -> Tensors:
    if not request.outputs:
        return outputs
    names = _whole(request)
    return outputs if len(names) == len(outputs) else {name: array for name, array in outputs.items() if name in names}
