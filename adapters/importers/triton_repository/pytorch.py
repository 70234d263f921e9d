"""What Triton's PyTorch backend reads from `parameters` -> the options of ours."""

from __future__ import annotations

from typing import Any, Final

from tensorgate.adapters.importers.common import Source
from tensorgate.adapters.importers.triton_repository.threads import threads

_SHARED: Final = "is ignored: each instance has weights of its own"
_EXECUTOR: Final = "is ignored: torch runs TorchScript as it does by default"
_IGNORED: Final = {
    "DISABLE_OPTIMIZED_EXECUTION": _EXECUTOR,
    "ENABLE_JIT_EXECUTOR": _EXECUTOR,
    "ENABLE_JIT_PROFILING": _EXECUTOR,
    "ENABLE_NVFUSER": _EXECUTOR,
    "ENABLE_TENSOR_FUSER": _EXECUTOR,
    "ENABLE_WEIGHT_SHARING": _SHARED,
    "ENABLE_CACHE_CLEANING": "is ignored: memory goes back to the GPU when it is short, and when a model is unloaded",
    "INFERENCE_MODE": "is ignored: gradients are never computed",
    "INTER_OP_THREAD_COUNT": "is ignored: each run is one thread's, with the threads that share its operators",
}


def torch_options(source: Source) -> dict[str, Any]:
    """Options that are set. Raises ValueError for a value that Triton would refuse, too."""
    options: dict[str, Any] = {}
    for key in sorted(source.config.parameters):
        value = source.config.parameters[key].string_value
        if key == "INTRA_OP_THREAD_COUNT":
            options |= threads(source, key, value, "intra_op_threads")
        elif key == "ENABLE_CUDNN_BENCHMARK":
            options |= {"cudnn_benchmark": True} if value.lower() == "true" else {}
        elif key in _IGNORED:
            source.note("parameters", _IGNORED[key], at=key)
    return options
