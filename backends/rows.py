"""Rows of many requests become the rows of one batch, and each request gets its own rows of what comes back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np

from backends.top_k import classes_of
from gateway.canonical import NOTHING, InferRequest, InferResponse, Tensors, TopK, common_rows
from gateway.errors import GatewayError, OutputRows

Outcome = InferResponse | GatewayError
"""What becomes of a request: what cannot be done for one is no concern of the others in the batch."""


def join_rows(requests: Sequence[InferRequest]) -> Tensors:
    """Concatenate every input on axis 0, on the host: [rows_i, *rest] -> [sum(rows_i), *rest], dtype kept, one copy
    each.

    One request is passed through without a copy. Source: Triton model configuration, dynamic batching.
    """
    if len(requests) == 1:
        return requests[0].inputs
    return {name: np.concatenate([request.inputs[name] for request in requests]) for name in requests[0].inputs}


def split_rows(
    outputs: Tensors,
    requests: Sequence[InferRequest],
    classes: Mapping[str, TopK | GatewayError] = NOTHING,
    on_device: Tensors = NOTHING,
) -> list[Outcome]:
    """Give every request its own rows of every output that it asked for, as views: [sum(rows_i), *rest] -> [rows_i,
    *rest]; of an output whose best `classes` it asked for, those. Who wants them `on_device` gets views of those.

    A lone request gets all rows, whatever their number. What an output cannot give is the outcome of who asked for it.
    """
    if len(requests) == 1:
        return [_own(on_device if requests[0].on_device else outputs, classes, requests[0], None)]
    outcomes: list[Outcome] = []
    start = 0
    if not any(request.outputs or request.on_device for request in requests):  # the usual case, in half the time
        named = [*outputs.items()]
        for request in requests:
            rows = slice(start, start := start + cast("int", common_rows(request.inputs)))
            outcomes.append(InferResponse({name: array[rows] for name, array in named}))
        return outcomes
    for request in requests:
        end = start + cast("int", common_rows(request.inputs))
        outcomes.append(_own(on_device if request.on_device else outputs, classes, request, slice(start, end)))
        start = end
    return outcomes


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
    return {
        output.name
        for request in requests
        if not request.on_device
        for output in request.outputs
        if not output.top_k and output.name not in (request.into or ())
    }


def all_rows(requests: Sequence[InferRequest]) -> int | None:
    """Of a batch; None for a request that cannot be batched."""
    total = 0
    for request in requests:
        rows = common_rows(request.inputs)
        if rows is None:
            return None
        total += rows
    return total


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
    elsewhere = request.into or ()
    names = {output.name for output in request.outputs if not output.top_k and output.name not in elsewhere}
    return outputs if len(names) == len(outputs) else {name: array for name, array in outputs.items() if name in names}
