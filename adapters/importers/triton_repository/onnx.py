"""What Triton's ONNX Runtime backend reads from `parameters` and `optimization` -> the options of ours."""

from __future__ import annotations

from typing import Any, Final

from tensorgate.adapters.importers.common import Source
from tensorgate.adapters.importers.triton_repository.threads import threads

_THREADS: Final = {"intra_op_thread_count": "intra_op_threads", "inter_op_thread_count": "inter_op_threads"}
_MODES: Final = {"0": "sequential", "1": "parallel"}
_LEVELS: Final = {-1: "basic", 1: "extended", 2: "disabled"}
_ALLOCATION: Final = "is ignored: ONNX Runtime allocates as it does by default"
_IGNORED: Final = {
    "enable_mem_arena": _ALLOCATION,
    "enable_mem_pattern": _ALLOCATION,
    "memory.enable_memory_arena_shrinkage": _ALLOCATION,
    "session.use_device_allocator_for_initializers": _ALLOCATION,
    "cudnn_conv_algo_search": "is ignored: the CUDA provider searches as it does by default",
    "arena_extend_strategy": "is ignored: with a limit of memory, an arena takes what is asked for",
    "do_copy_in_default_stream": "is ignored: each instance has a stream of its own",
    "cudnn_conv_use_max_workspace": _ALLOCATION,
}


def onnx_options(source: Source) -> dict[str, Any]:
    """Options that are set. Raises ValueError for a value that Triton would refuse, too."""
    options: dict[str, Any] = {}
    for key in sorted(source.config.parameters):
        value = source.config.parameters[key].string_value
        if key in _THREADS:
            options |= threads(source, key, value, _THREADS[key])
        elif key == "execution_mode":
            if value not in _MODES:
                raise source.wrong("parameters", f'execution_mode is "{value}", expected "0" or "1"')
            options |= {"execution_mode": _MODES[value]} if value == "1" else {}
        elif key == "gpu_mem_limit":
            if not (value.isascii() and value.isdecimal() and 0 < int(value[:20]) < 2**63):
                raise source.wrong("parameters", f'gpu_mem_limit is "{value[:40]}", expected a number of bytes')
            options["memory_limit_bytes"] = int(value)
        elif key in _IGNORED:
            source.note("parameters", _IGNORED[key], at=key)
    level = source.config.optimization.graph.level
    if level in _LEVELS:
        options["graph_optimization"] = _LEVELS[level]
    elif level:
        raise source.wrong("optimization.graph.level", f"found {level}, expected -1, 0, 1 or 2")
    return options
