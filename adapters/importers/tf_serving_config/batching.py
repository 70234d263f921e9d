"""tensorflow.serving.BatchingParameters -> how requests wait and share runs, the same for every model."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

from tensorgate.adapters.importers.common import NO_BOUND, Source

KIND: Final = "tensorflow.serving.BatchingParameters"
ALONE: Final = {"max_batch_size": 0, "max_queue_size": NO_BOUND}
"""Without --enable_batching: each request runs by itself, in its own shape."""

BATCHES: Final = ("max_queue_delay_us", "pad_batches_to", "ragged")
"""What only a model has whose requests share runs, beside max_batch_size."""
PARALLEL: Final = "parallel_runs"
"""The option of SavedModels that says how many batches run at a time."""
_THREADS: Final = f"-> {PARALLEL} of SavedModels; an ONNX model runs a batch at a time, on all cores (see instances)"

_USUAL: Final = {"max_batch_size": 1000, "batch_timeout_micros": 0, "max_enqueued_batches": 10, "num_batch_threads": 4}
_IGNORED: Final = {
    "thread_pool_name": "threads have no names of their own",
    "enable_large_batch_splitting": "a request of up to max_batch_size rows runs whole",
    "max_execution_batch_size": "a request of up to max_batch_size rows runs whole",
}


def batching(source: Source) -> dict[str, Any]:
    """The keys that every model gets. Raises ValueError for a value that TensorFlow Serving would refuse, too."""
    size = _number(source, "max_batch_size", 1)
    delay = _number(source, "batch_timeout_micros", 0)
    batches = _number(source, "max_enqueued_batches", 0)
    waiting = max(1, batches) * size
    entry = {"max_batch_size": size, "max_queue_delay_us": delay, "max_queue_size": waiting}
    counted = f"-> max_queue_size: {waiting}, which counts requests: {max(1, batches)} batches of {size} rows each"
    if source.config.HasField("num_batch_threads"):
        entry[PARALLEL] = _number(source, "num_batch_threads", 1)
    for key, text in (
        ("num_batch_threads", _THREADS),
        ("max_batch_size", f"-> max_batch_size: {size}"),
        ("batch_timeout_micros", f"-> max_queue_delay_us: {delay}"),
        ("max_enqueued_batches", counted),
    ):
        if source.config.HasField(key):
            source.note(key, text, fate="mapped")
    for field, _ in source.config.ListFields():
        if field.name in _IGNORED:
            source.note(field.name, f"is ignored: {_IGNORED[field.name]}")
    return entry | _padding(source, size)


def _padding(source: Source, max_rows: int) -> dict[str, Any]:
    """What is added to batches. The last of the sizes is that of the largest batch."""
    padding: dict[str, Any] = {}
    sizes = list(source.config.allowed_batch_sizes)
    if sizes:
        if sizes[0] < 1 or any(following <= size for size, following in pairwise(sizes)):
            raise source.wrong("allowed_batch_sizes", f"found {sizes}, expected sizes that rise")
        splits = source.config.enable_large_batch_splitting.value
        last = source.config.max_execution_batch_size.value if splits else max_rows
        if sizes[-1] != (last or max_rows):
            raise source.wrong("allowed_batch_sizes", f"found {sizes}, whose last must be the largest batch, {last}")
        padding["pad_batches_to"] = sizes
        source.note("allowed_batch_sizes", f"-> pad_batches_to: {sizes}", fate="mapped")
        if sizes[-1] < max_rows:
            text = f"bounds requests, too: one of more than {sizes[-1]} rows is refused, and not split"
            source.note("allowed_batch_sizes", text, fate="told")
    if source.config.pad_variable_length_inputs:
        padding["ragged"] = {"inputs": {"*": {}}}
        text = "-> ragged.inputs, filled up with 0 or empty text and not with each tensor's first element"
        source.note("pad_variable_length_inputs", text, fate="mapped")
    return padding


def _number(source: Source, key: str, minimum: int) -> int:
    if not source.config.HasField(key):
        return _USUAL[key]
    value: int = getattr(source.config, key).value
    if value < minimum:
        raise source.wrong(key, f"found {value}, expected at least {minimum}, as in {key} {{ value: {_USUAL[key]} }}")
    return value
