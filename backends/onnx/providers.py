"""What ONNX Runtime is told of the device where a session runs: its execution providers, the preferred one first.

Options and their values are ONNX Runtime's own words, all of them text. Source: ONNX Runtime, CUDA execution provider;
TensorRT execution provider.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field

from tensorgate.backends.execution.cuda_install import cuda_problem, is_installed, open_toolkit
from tensorgate.backends.execution.device import CudaDevice, Device
from tensorgate.gateway.contract.extras import install_command
from tensorgate.gateway.contract.options import Options

log = logging.getLogger(__name__)

CPU: Final = "CPUExecutionProvider"
CUDA: Final = "CUDAExecutionProvider"
TENSORRT: Final = "TensorrtExecutionProvider"

Provider = str | tuple[str, dict[str, str]]


class TensorRTOptions(Options):
    """How TensorRT builds engines from what it can of the model; CUDA runs the rest."""

    fp16: bool = Field(False, description="Whether it may compute in half precision.")
    cache: Path | None = Field(None, description="Folder where engines are kept: building one takes minutes.")
    workspace_bytes: int = Field(0, ge=0, description="Memory that building may use; 0 leaves it to TensorRT.")
    min_shapes: dict[str, tuple[int, ...]] = Field({}, description="Input -> the smallest shape that engines are for.")
    opt_shapes: dict[str, tuple[int, ...]] = Field({}, description="Input -> the shape that they are best at.")
    max_shapes: dict[str, tuple[int, ...]] = Field(
        {}, description="Input -> the largest shape. Without the three, an engine is built anew when a shape is new."
    )


class CudaOptions(Options):
    """What the YAML may say of an ONNX model on a GPU; without one, nothing of it counts."""

    tf32: bool = Field(True, description="Whether GPUs may multiply FP32 with TF32's shorter mantissa.")
    cuda_graph: bool = Field(
        False,
        description="Whether the kernels of a run are recorded, and started together from then on: at load for the "
        "sizes of pad_batches_to, of other shapes when they come often; the last 32 are kept. A model that draws "
        "random numbers draws the same ones again.",
    )
    convolution_search: Literal["exhaustive", "heuristic", "default"] = Field(
        "heuristic",
        description="How algorithms of convolutions are chosen for each new shape: exhaustive tries all of them, which "
        "takes seconds, and batches come in many shapes.",
    )
    tensorrt: TensorRTOptions | None = Field(None, description="Ask TensorRT first, where this build has it.")


def provider_options(options: CudaOptions, device: Device, memory_limit_bytes: int | None = None) -> list[Provider]:
    """The providers of a session on this device. On a GPU, everything runs on the instance's own stream. The limit is
    that of CUDA's arena, which then takes what is asked for and does not double; TensorRT's engines are beside it.
    """
    if not isinstance(device, CudaDevice):
        return [CPU]
    common = {
        "device_id": str(device.index),
        "user_compute_stream": str(device.stream_pointer),
        "has_user_compute_stream": "1",
    }
    cuda = {
        **common,
        "use_tf32": _flag(options.tf32),
        "cudnn_conv_algo_search": options.convolution_search.upper(),
    }
    if memory_limit_bytes:
        cuda |= {"gpu_mem_limit": str(memory_limit_bytes), "arena_extend_strategy": "kSameAsRequested"}
    tensorrt = [] if options.tensorrt is None else [(TENSORRT, {**common, **_tensorrt(options.tensorrt)})]
    return [*tensorrt, (CUDA, cuda)]


def gpu_problem() -> str:
    """Why there can be no session on a GPU, naming all that is missing; empty where there can, and then what the
    provider links is open.
    """
    problems = [cuda_problem()]
    try:
        ort = import_onnxruntime()
    except ImportError as error:
        problems.append(str(error))
    else:
        problems.append(_provider_problem(ort))
    return "; ".join(filter(None, problems))


def import_onnxruntime() -> Any:
    """The module. Raises ImportError that says what to install: its CPU and GPU builds in one environment break each
    other silently.
    """
    if is_installed("onnxruntime") and is_installed("onnxruntime-gpu"):
        raise ImportError(
            "onnxruntime and onnxruntime-gpu are both installed, and the CPU build hides the other; "
            f"uninstall both, then {install_command('cpu')}, or for GPUs {install_command('cuda13')}"
        )
    try:
        return importlib.import_module("onnxruntime")
    except ImportError:
        raise ImportError(
            f"ONNX models need ONNX Runtime: {install_command('cpu')}; for GPUs {install_command('cuda13')}"
        ) from None


def _provider_problem(ort: Any) -> str:
    if CUDA not in ort.get_available_providers():
        return "this build of ONNX Runtime has no CUDA provider: install the extra cuda12 or cuda13 in place of cpu"
    linked, lazy = open_toolkit(int(ort.cuda_version.partition(".")[0]))
    if lazy:
        log.warning("on a GPU, ONNX models with certain operators will fail: there is no %s", ", ".join(lazy))
    return f"ONNX Runtime's CUDA provider needs {', '.join(linked)}" if linked else ""


def name_of(provider: Provider) -> str:
    return provider if isinstance(provider, str) else provider[0]


def _tensorrt(options: TensorRTOptions) -> dict[str, str]:
    given: dict[str, str] = {"trt_fp16_enable": _flag(options.fp16)}
    if options.workspace_bytes:
        given["trt_max_workspace_size"] = str(options.workspace_bytes)
    if options.cache is not None:
        given |= {
            "trt_engine_cache_enable": "1",
            "trt_engine_cache_path": str(options.cache),
            "trt_timing_cache_enable": "1",
            "trt_timing_cache_path": str(options.cache),
        }
    for which in ("min", "opt", "max"):
        shapes: Mapping[str, Sequence[int]] = getattr(options, f"{which}_shapes")
        if shapes:
            given[f"trt_profile_{which}_shapes"] = ",".join(
                f"{name}:{'x'.join(map(str, shape))}" for name, shape in shapes.items()
            )
    return given


def _flag(value: bool) -> str:
    return "1" if value else "0"


def refuse_fallback(session: Any, wanted: str) -> None:
    """Raises ValueError if another provider came: ONNX Runtime falls back to the CPU without an error."""
    got = session.get_providers()[0]
    if got != wanted:
        raise ValueError(f"{wanted} was asked for, but ONNX Runtime gave {got}; see its log above")
