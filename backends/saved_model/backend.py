"""A SavedModel as a backend: what the YAML may say of it, and which of its functions a request runs.

The default signature's tensors, by its keys, are the model's; the others are further functions of it. On the CPU
everything runs in a session, on a GPU as eager functions: see host.py and device.py. A merged run that fails is run
again one by one by whoever drives the backend, so an error here is all that happens to one of them.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import Field

from tensorgate.backends.execution.device import CudaDevice, Device, open_device
from tensorgate.backends.execution.spec_inference import max_batch_size
from tensorgate.backends.saved_model.device import DeviceFunctions
from tensorgate.backends.saved_model.failures import plain
from tensorgate.backends.saved_model.host import HostFunctions
from tensorgate.backends.saved_model.library import gpu_problem, import_tensorflow
from tensorgate.backends.saved_model.ranks import takes_any_rank
from tensorgate.backends.saved_model.signatures import read_signatures
from tensorgate.gateway.contract.backend import Backend, BackendKind, ModelSource
from tensorgate.gateway.contract.canonical import InferRequest
from tensorgate.gateway.contract.errors import ShapeMismatch
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.tensor import Tensors, TensorSpec

_FILES: Final = ("saved_model.pb", "saved_model.pbtxt", "saved_model.cpb")
_TRITON_FOLDER: Final = "model.savedmodel"


class TensorFlowOptions(Options):
    """What the YAML may say of a SavedModel."""

    folder: str = Field(
        "",
        description=f"Folder of the SavedModel in each version folder; empty: that folder, or {_TRITON_FOLDER} in it.",
    )
    tags: tuple[str, ...] = Field(("serve",), description="Tags of the graph to load, all of them.")
    signature: str = Field(
        "",
        description="Signature whose tensors are the model's for Open Inference's callers; empty: serving_default, or "
        "the first one that predicts.",
    )
    modules: tuple[str, ...] = Field(
        (), description="Python modules to import first, for operations that they bring: tensorflow_text for example."
    )
    intra_op_threads: int = Field(
        0,
        ge=0,
        description="Threads that share one operator; 0 leaves it to TensorFlow. All models of the process share them, "
        "and the first one that loads says how many.",
    )
    inter_op_threads: int = Field(
        1,
        ge=0,
        description="Threads that run operators side by side. 1 runs them one after the other in the calling thread, "
        "which is quickest for most models; 0 leaves it to TensorFlow. More are shared by all models of the process.",
    )
    parallel_runs: int = Field(
        1, ge=1, le=1024, description="Runs on the CPU that may overlap over one copy of the model, unlike instances."
    )
    memory_growth: bool = Field(
        True, description="Take a GPU's memory as it is needed, not all of it at once. The first model decides."
    )
    any_rank: bool | None = Field(
        None,
        description="Let TensorFlow Serving's callers send inputs of another rank than the file declares, as there: "
        "[1.0, 2.0] for a signature of [-1, 1]. null: where the graph has only operations that are known to take or "
        "refuse any rank. true is for other graphs that do: some of TensorFlow's kernels, convolutions among them, end "
        "the process instead of refusing such an input.",
    )


class TensorFlowBackend(Backend):
    """One copy of a model. Raises ValueError where the files, the device or the installation are not what was asked
    for.
    """

    device: Device
    inline = True
    platform = "tensorflow_savedmodel"

    def __init__(self, source: ModelSource) -> None:
        options: TensorFlowOptions = source.options
        path = _find(source.path, options.folder)
        tensorflow = import_tensorflow(options.modules)
        self.device = open_device(source.device, gpu_problem)
        try:
            self._functions = _load(tensorflow, path, options, self.device)
        except Exception as error:  # TensorFlow raises its own errors, OSError, RuntimeError, KeyError, …
            raise ValueError(f"TensorFlow cannot load {path}: {plain(str(error))}") from error
        try:
            self.signatures = read_signatures(
                self._functions.definitions, tensorflow.make_ndarray, source.name, options.signature
            )
            self._default = next(iter(self.signatures.values()))
            self.inputs = tuple(self._default.inputs.values())
            self.outputs = tuple(self._default.outputs.values())
            self.max_batch_size = max_batch_size(source, self.inputs, self.outputs)
        except BaseException:
            self._functions.close()
            raise
        self._name = source.name
        any_rank = options.any_rank
        self._any_rank = takes_any_rank(self._functions.operations) if any_rank is None else any_rank
        self.in_flight = 1 if isinstance(self.device, CudaDevice) else options.parallel_runs

    def infer(self, tensors: Tensors, outputs: Sequence[str], requests: Sequence[InferRequest]) -> Iterable[Tensors]:
        signature = self.signatures.get(requests[0].signature, self._default)
        if not self._any_rank:
            self._check_ranks(tensors, signature.inputs)
        return (self._functions.run(signature.name, tensors, outputs),)

    def _check_ranks(self, tensors: Tensors, specs: Mapping[str, TensorSpec]) -> None:
        """TensorFlow compares no shapes with a signature's, and some of its kernels CHECK the rank that they rely on,
        which ends the process. Raises ShapeMismatch.
        """
        for key, array in tensors.items():
            declared = specs[key].shape
            if declared is not None and array.ndim != len(declared):
                batched = self.max_batch_size > 0
                raise ShapeMismatch(key, array.shape, declared, self._name, batched=batched)

    def close(self) -> None:
        self._functions.close()
        del self._functions
        gc.collect()  # graphs and functions refer to themselves, and to the variables


def _find(folder: Path, name: str) -> Path:
    places = [folder / name] if name else [folder, folder / _TRITON_FOLDER]
    for place in places:
        if any((place / file).is_file() for file in _FILES):
            return place
    raise ValueError(f"no such file: {places[0] / _FILES[0]}")


def _load(tensorflow: Any, path: Path, options: TensorFlowOptions, device: Device) -> HostFunctions | DeviceFunctions:
    if not isinstance(device, CudaDevice):
        return HostFunctions(tensorflow, path, options.tags, options.intra_op_threads, options.inter_op_threads)
    _set_up(tensorflow, options)
    return DeviceFunctions(tensorflow, path, options.tags, device, f"GPU:{device.index}")


def _set_up(tensorflow: Any, options: TensorFlowOptions) -> None:
    """What eager TensorFlow lets be set until it first runs; after that, it stays."""
    threading = tensorflow.config.threading
    settings: list[tuple[Callable[..., None], tuple[Any, ...]]] = [
        (threading.set_intra_op_parallelism_threads, (options.intra_op_threads,)),
        (
            threading.set_inter_op_parallelism_threads,
            (0 if options.inter_op_threads == 1 else options.inter_op_threads,),
        ),
        *[
            (tensorflow.config.experimental.set_memory_growth, (gpu, options.memory_growth))
            for gpu in tensorflow.config.list_physical_devices("GPU")
        ],
    ]
    for setting, values in settings:
        try:
            setting(*values)
        except RuntimeError:  # it has run
            return


KIND = BackendKind(TensorFlowOptions, TensorFlowBackend, runs_code=True, gpu_problem=gpu_problem, own_process=True)
