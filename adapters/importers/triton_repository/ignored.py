"""Every key of a ModelConfig by its path: honoured by this package, or ignored, and why.

A test holds the two tables to the whole message, so that no key is passed over in silence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tensorgate.adapters.importers.common import Source

HONOURED: Final = frozenset(
    {
        "name", "platform", "backend", "version_policy", "max_batch_size", "default_model_filename", "parameters",
        "input.name", "input.data_type", "input.format", "input.dims", "input.reshape", "input.optional",
        "output.name", "output.data_type", "output.dims", "output.reshape", "output.label_filename",
        "batch_input", "batch_output",
        "instance_group.name", "instance_group.kind", "instance_group.count", "instance_group.gpus",
        "optimization.graph",
        "dynamic_batching.preferred_batch_size", "dynamic_batching.max_queue_delay_microseconds",
        "dynamic_batching.priority_levels", "dynamic_batching.default_priority_level",
        "dynamic_batching.default_queue_policy", "dynamic_batching.priority_queue_policy",
        "sequence_batching.max_sequence_idle_microseconds", "sequence_batching.control_input",
        "sequence_batching.state.input_name", "sequence_batching.state.output_name",
        "sequence_batching.state.data_type", "sequence_batching.state.dims", "sequence_batching.state.initial_state",
        "sequence_batching.direct.max_queue_delay_microseconds", "sequence_batching.direct.minimum_slot_utilization",
        "sequence_batching.oldest.preferred_batch_size",
        "sequence_batching.oldest.max_queue_delay_microseconds", "sequence_batching.iterative_sequence",
        "ensemble_scheduling.step.model_name", "ensemble_scheduling.step.model_version",
        "ensemble_scheduling.step.input_map", "ensemble_scheduling.step.output_map",
        "model_transaction_policy", "model_warmup", "response_cache.enable",
    }
)  # fmt: skip

_NO_TENSORRT: Final = "is ignored: it is for TensorRT"
_OWN_DEVICE_PATH: Final = "is ignored: copies to and from the device go their own way here"
_ORDER: Final = "is ignored: an answer leaves when it is there; a stream keeps the order of its requests"

IGNORED: Final[Mapping[str, str]] = {
    "runtime": "is ignored: the gateway itself runs the model",
    "input.is_shape_tensor": _NO_TENSORRT,
    "input.is_non_linear_format_io": _NO_TENSORRT,
    "output.is_shape_tensor": _NO_TENSORRT,
    "output.is_non_linear_format_io": _NO_TENSORRT,
    "input.allow_ragged_batch": "is ignored: requests of different shapes do not share a batch",
    "optimization.priority": "is ignored: all models share the device alike",
    "optimization.cuda.graphs": "is ignored: cuda_graph of an ONNX or a PyTorch model asks for it",
    "optimization.cuda.busy_wait_events": "is ignored: waiting for the device leaves the core to others",
    "optimization.cuda.graph_spec": "is ignored: every shape is recorded when it comes",
    "optimization.cuda.output_copy_stream": _OWN_DEVICE_PATH,
    "optimization.execution_accelerators.gpu_execution_accelerator": "is ignored: ONNX Runtime's CUDA provider runs it",
    "optimization.execution_accelerators.cpu_execution_accelerator": "is ignored: ONNX Runtime's CPU provider runs it",
    "optimization.input_pinned_memory": _OWN_DEVICE_PATH,
    "optimization.output_pinned_memory": _OWN_DEVICE_PATH,
    "optimization.gather_kernel_buffer_threshold": _OWN_DEVICE_PATH,
    "optimization.eager_batching": "is ignored: a batch is gathered when the device has room for it",
    "instance_group.rate_limiter": "is ignored: every instance takes its next batch when it is free",
    "instance_group.secondary_devices": "is ignored: a copy of a model has one device here",
    "instance_group.profile": _NO_TENSORRT,
    "instance_group.passive": "leaves its group out: no requests would reach it",
    "instance_group.host_policy": "is ignored: the operating system places threads and memory",
    "dynamic_batching.preserve_ordering": _ORDER,
    "sequence_batching.oldest.max_candidate_sequences": "is ignored: max_batch_size bounds the sequences that run",
    "sequence_batching.oldest.preserve_ordering": _ORDER,
    "sequence_batching.state.use_same_buffer_for_input_output": "is ignored: states are copied",
    "sequence_batching.state.use_growable_memory": "is ignored: a state takes the memory that it needs",
    "ensemble_scheduling.max_inflight_requests": "is ignored: each step's own queue bounds it",
    "ensemble_scheduling.step.model_namespace": "is ignored: models have one namespace",
    "cc_model_filenames": "is ignored: one file serves every device",
    "metric_tags": "is ignored: metrics have the labels model and version",
    "model_metrics": "is ignored: histograms have the gateway's own buckets",
    "model_operations": "is ignored: no library of custom operations is loaded",
    "model_repository_agents": "is ignored: files are taken as they are",
}


def note_ignored(source: Source) -> None:
    """A note for every key that is set and ignored."""
    for key, path in _set_keys(source.config, "", ""):
        source.note(key, IGNORED[path])


def _set_keys(message: Any, key: str, path: str) -> Iterator[tuple[str, str]]:
    """(the key with its indexes, its path in the tables) of what is set and in IGNORED."""
    for field, value in message.ListFields():
        here = f"{path}{field.name}"
        if here in HONOURED:
            continue
        if here in IGNORED:
            yield f"{key}{field.name}", here
        elif field.is_repeated:
            for index, each in enumerate(value):
                yield from _set_keys(each, f"{key}{field.name}[{index}].", f"{here}.")
        else:
            yield from _set_keys(value, f"{key}{field.name}.", f"{here}.")
