"""The `parameters` that Triton's ONNX Runtime, TensorFlow and PyTorch backends read, and ONNX Runtime's `optimization`
-> the options of the gateway's backends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tensorgate.adapters.importers.common import Source

_ALLOCATION: Final = "is ignored: ONNX Runtime allocates as it does by default"
_WEIGHTS: Final = "is ignored: each instance has weights of its own"
_EXECUTOR: Final = "is ignored: torch runs TorchScript as it does by default"
_MODES: Final = {"0": "sequential", "1": "parallel"}
_LEVELS: Final = {-1: "basic", 1: "extended", 2: "disabled"}


@dataclass(frozen=True, slots=True)
class BackendParameters:
    """What becomes of a backend's parameters: `threads` names the option of each number of threads, `read` makes
    options of a value, `ignored` says why the rest has no effect here.
    """

    threads: Mapping[str, str]
    read: Mapping[str, Callable[[Source, str], dict[str, Any]]]
    ignored: Mapping[str, str] = field(default_factory=dict)

    def options(self, source: Source) -> dict[str, Any]:
        """Options that are set. Raises ValueError for a value that Triton would refuse, too."""
        options: dict[str, Any] = {}
        for key in sorted(source.config.parameters):
            value = source.config.parameters[key].string_value
            if key in self.threads:
                options |= _threads(source, key, value, self.threads[key])
            elif key in self.read:
                options |= self.read[key](source, value)
            elif key in self.ignored:
                source.note("parameters", self.ignored[key], at=key)
        return options


def _threads(source: Source, key: str, value: str, option: str) -> dict[str, int]:
    """The option, if it is set; 0 is what it is without."""
    if not (value.isascii() and value.isdecimal() and len(value) < 6):
        raise source.wrong("parameters", f'{key} is "{value[:40]}", expected a number of threads')
    return {option: int(value)} if int(value) else {}


def _execution_mode(source: Source, value: str) -> dict[str, Any]:
    if value not in _MODES:
        raise source.wrong("parameters", f'execution_mode is "{value}", expected "0" or "1"')
    return {"execution_mode": _MODES[value]} if value == "1" else {}


def _memory_limit(source: Source, value: str) -> dict[str, Any]:
    if not (value.isascii() and value.isdecimal() and 0 < int(value[:20]) < 2**63):
        raise source.wrong("parameters", f'gpu_mem_limit is "{value[:40]}", expected a number of bytes')
    return {"memory_limit_bytes": int(value)}


_ONNX: Final = BackendParameters(
    threads={"intra_op_thread_count": "intra_op_threads", "inter_op_thread_count": "inter_op_threads"},
    read={"execution_mode": _execution_mode, "gpu_mem_limit": _memory_limit},
    ignored={
        "enable_mem_arena": _ALLOCATION,
        "enable_mem_pattern": _ALLOCATION,
        "memory.enable_memory_arena_shrinkage": _ALLOCATION,
        "session.use_device_allocator_for_initializers": _ALLOCATION,
        "cudnn_conv_algo_search": "is ignored: the CUDA provider searches as it does by default",
        "arena_extend_strategy": "is ignored: with a limit of memory, an arena takes what is asked for",
        "do_copy_in_default_stream": "is ignored: each instance has a stream of its own",
        "cudnn_conv_use_max_workspace": _ALLOCATION,
    },
)

TENSORFLOW_PARAMETERS: Final = BackendParameters(
    threads={"TF_NUM_INTRA_THREADS": "intra_op_threads", "TF_NUM_INTER_THREADS": "inter_op_threads"},
    read={
        "TF_GRAPH_TAG": lambda source, value: {"tags": [value]},
        "TF_SIGNATURE_DEF": lambda source, value: {"signature": value},
    },
    ignored={
        "TF_USE_PER_SESSION_THREADS": "is ignored: all models of the process share TensorFlow's threads",
        "TF_INIT_OPS_FILE": "is ignored: a SavedModel says itself what initializes it",
    },
)

TORCH_PARAMETERS: Final = BackendParameters(
    threads={"INTRA_OP_THREAD_COUNT": "intra_op_threads"},
    read={"ENABLE_CUDNN_BENCHMARK": lambda source, value: {"cudnn_benchmark": True} if value.lower() == "true" else {}},
    ignored={
        "DISABLE_OPTIMIZED_EXECUTION": _EXECUTOR,
        "ENABLE_JIT_EXECUTOR": _EXECUTOR,
        "ENABLE_JIT_PROFILING": _EXECUTOR,
        "ENABLE_NVFUSER": _EXECUTOR,
        "ENABLE_TENSOR_FUSER": _EXECUTOR,
        "ENABLE_WEIGHT_SHARING": _WEIGHTS,
        "ENABLE_CACHE_CLEANING": "is ignored: memory goes back to the GPU when it is short, and when a model is "
        "unloaded",
        "INFERENCE_MODE": "is ignored: gradients are never computed",
        "INTER_OP_THREAD_COUNT": "is ignored: each run is one thread's, with the threads that share its operators",
    },
)


def onnx_options(source: Source) -> dict[str, Any]:
    """Options that are set, the graph optimization level among them. Raises ValueError."""
    options = _ONNX.options(source)
    level = source.config.optimization.graph.level
    if level in _LEVELS:
        options["graph_optimization"] = _LEVELS[level]
    elif level:
        raise source.wrong("optimization.graph.level", f"found {level}, expected -1, 0, 1 or 2")
    return options
