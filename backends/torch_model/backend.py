"""A PyTorch program as a backend: how it is loaded, and one run of it.

Arrays become torch's tensors and results become arrays over the same memory, on the stream of the instance where there
is one. A merged run that fails is run again one by one by whoever drives the backend.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tensorgate.backends.execution.device import CudaDevice, Device, open_device
from tensorgate.backends.execution.spec_inference import DEFAULT_MAX_BATCH_SIZE, max_batch_size
from tensorgate.backends.torch_model.archive import READ_BY, Form, form_of
from tensorgate.backends.torch_model.exported import CompiledPackage, ExportedProgram, compiled_for
from tensorgate.backends.torch_model.failures import plain, public_error
from tensorgate.backends.torch_model.graphs import CudaGraphs
from tensorgate.backends.torch_model.library import gpu_problem, import_torch, set_once
from tensorgate.backends.torch_model.names import ProgramOutputs
from tensorgate.backends.torch_model.options import FILES, TorchOptions
from tensorgate.backends.torch_model.script import ScriptProgram
from tensorgate.backends.torch_model.tensor_bridge import TensorBridge, check_specs
from tensorgate.gateway.contract.backend import Backend, BackendKind, ModelSource
from tensorgate.gateway.contract.canonical import InferRequest
from tensorgate.gateway.contract.tensor import DTYPES, Tensors, hold_to, of_any_rows

_MAX_SHOWN: Final = 5
_NOTHING: Final[contextlib.AbstractContextManager[Any]] = contextlib.nullcontext()

Program = ScriptProgram | ExportedProgram | CompiledPackage


class TorchBackend(Backend):
    """One copy of a model. Raises ValueError where file, device or installation are not what was asked for."""

    device: Device
    inline = True
    platform = "pytorch_libtorch"

    def __init__(self, source: ModelSource) -> None:
        options: TorchOptions = source.options
        self._name = source.name
        path = _find(source.path, options.file)
        form = form_of(path)
        if form == "compiled" and not options.trusted:
            raise ValueError(f"{path} is machine code, compiled by AOTInductor; say trusted: true if it is to run here")
        self._torch = torch = import_torch()
        self.device = _open_device(torch, source.device, path, form)
        self._bridge = TensorBridge(torch, self.device)
        _set_up(torch, source.name, options, self.device)
        self._channels_last = options.channels_last
        self._autocast: Callable[[], contextlib.AbstractContextManager[Any]] = lambda: _NOTHING
        if options.autocast:
            kind, dtype = self._bridge.place.type, self._bridge.dtypes[DTYPES[options.autocast]]
            kept = not options.cuda_graph  # weights in that datatype, till the end of a run: a recording has many runs
            self._autocast = lambda: torch.autocast(kind, dtype, cache_enabled=kept)
        self._on_stream: Callable[[], contextlib.AbstractContextManager[Any]] = lambda: _NOTHING
        if isinstance(self.device, CudaDevice):
            stream = torch.cuda.ExternalStream(self.device.stream_pointer, device=self._bridge.place)
            self._on_stream = lambda: torch.cuda.stream(stream)
        with self.device.active(), self._on_stream():
            self._program = self._load(source, options, path, form)
            self._call: Callable[[Mapping[str, Any]], Any] = self._program.call
            recorded: CudaGraphs | None = None
            if options.cuda_graph and isinstance(self.device, CudaDevice):
                recorded = CudaGraphs(torch, self._call, source.name, self.device)
                self._call = recorded.call
        self.inputs, self.outputs = self._program.inputs, self._program.outputs
        check_specs((*self.inputs, *self.outputs))
        self.max_batch_size = _max_batch_size(source, self._program, form)
        self._specs = {spec.name: of_any_rows(spec, self.max_batch_size) for spec in self.outputs}
        self._results = ProgramOutputs(tuple(self._specs))
        self._state = _addresses(self._program.module)
        self.in_flight = 2 if isinstance(self.device, CudaDevice) else 1  # one's copies beside the other's computation
        if recorded is not None:
            outputs = tuple(self._specs)
            recorded.graphs.record_at_load(lambda given: self.infer(given, outputs, ()), self.inputs, source.padding)

    def infer(self, tensors: Tensors, outputs: Sequence[str], requests: Sequence[InferRequest]) -> Iterable[Tensors]:
        with self._on_stream(), self._torch.inference_mode(), self._autocast():
            try:
                return (self._run(tensors, outputs),)
            except Exception as error:
                raise public_error(error, self._name) from error

    def close(self) -> None:
        """Weights go with the module, once nothing refers to it; what torch keeps for later goes back to the GPU."""
        del self._program, self._call, self._results
        gc.collect()  # modules refer to themselves
        if isinstance(self.device, CudaDevice):
            self._torch.cuda.empty_cache()

    def _load(self, source: ModelSource, options: TorchOptions, path: Path, form: Form) -> Program:
        inputs = tuple([each.spec() for each in options.model_inputs]) or source.inputs
        outputs = tuple([each.spec() for each in options.model_outputs]) or source.outputs
        check_specs((*inputs, *outputs) if form != "exported" else ())
        torch, bridge = self._torch, self._bridge
        program: Program
        try:
            if form == "script":
                program = ScriptProgram(torch, str(path), bridge.place, inputs, outputs)
            elif form == "compiled":
                program = CompiledPackage(torch, path, bridge, inputs, outputs)
            else:
                program = ExportedProgram(torch, path, bridge, inputs, outputs, trusted=options.trusted)
        except ValueError:
            raise
        except Exception as error:  # torch raises RuntimeError, KeyError, AssertionError, errors of its own, …
            raise ValueError(f"{READ_BY[form]} cannot read {path}: {plain(str(error))}") from error
        _adapt(torch, program, options, form)
        return program

    def _run(self, tensors: Tensors, outputs: Sequence[str]) -> Tensors:
        bridge, writes = self._bridge, self._program.writes
        given = {name: bridge.given(array, copy=name in writes) for name, array in tensors.items()}
        if self._channels_last:
            given = {name: self._as_channels_last(tensor) for name, tensor in given.items()}
        found = self._results.of(self._call(given))
        taken = {name: bridge.taken(self._specs[name], self._apart(found[name])) for name in outputs}
        for name, array in taken.items():
            hold_to(self._specs[name], array.shape, self._name)
        return taken

    def _apart(self, tensor: Any) -> Any:
        """A result that lies in the model's own memory is copied: the next run may change it."""
        if self._state and isinstance(tensor, self._torch.Tensor):
            return tensor.clone() if tensor.untyped_storage().data_ptr() in self._state else tensor
        return tensor

    def _as_channels_last(self, tensor: Any) -> Any:
        return tensor.contiguous(memory_format=self._torch.channels_last) if tensor.dim() == 4 else tensor


def _find(folder: Path, name: str) -> Path:
    if folder.is_file():
        return folder
    places = [folder / each for each in ((name,) if name else FILES)]
    for place in places:
        if place.is_file():
            return place
    there = ", ".join(sorted(each.name for each in folder.iterdir())[:_MAX_SHOWN])
    raise ValueError(f"no such file: {places[-1]}; the folder has {there or 'nothing'}")


def _open_device(torch: Any, wanted: str, path: Path, form: Form) -> Device:
    """`auto` is a GPU only where both CuPy and this build of torch can use one, and machine code is for it."""
    if wanted == "auto" and form == "compiled" and compiled_for(torch, path) == "cpu":
        wanted = "cpu"
    device = open_device(wanted, gpu_problem)
    if form == "compiled":
        made, have = compiled_for(torch, path), device.name.partition(":")[0]
        if made != have:
            raise ValueError(f"{path} was compiled for {made}, but runs on {have}")
    return device


def _set_up(torch: Any, model: str, options: TorchOptions, device: Device) -> None:
    """What torch keeps for the whole process."""
    if options.intra_op_threads:
        set_once(model, "intra_op_threads", options.intra_op_threads, torch.set_num_threads)
    if isinstance(device, CudaDevice):
        set_once(
            model, "tf32", options.tf32, lambda on: torch.set_float32_matmul_precision("high" if on else "highest")
        )
        set_once(
            model, "cudnn_benchmark", options.cudnn_benchmark, lambda on: setattr(torch.backends.cudnn, "benchmark", on)
        )


def _adapt(torch: Any, program: Program, options: TorchOptions, form: Form) -> None:
    """What is done to a program once it is here. Raises ValueError where that cannot be."""
    if program.numbers and options.cuda_graph:
        raise ValueError(f"cuda_graph cannot hold {', '.join(program.numbers)}, which the model takes as numbers")
    if options.channels_last:
        if form == "compiled":
            raise ValueError("channels_last is too late for a compiled package")
        program.module.to(memory_format=torch.channels_last)
    if options.compile:
        if form != "exported":
            raise ValueError("compile is for exported programs: TorchScript and packages have compilers of their own")
        program.module = torch.compile(program.module, dynamic=True)


def _max_batch_size(source: ModelSource, program: Program, form: Form) -> int:
    """The wanted size, or what "auto" is for this program. Raises ValueError where it cannot have the wanted one."""
    if source.max_batch_size == "auto" and form != "exported":
        raise ValueError(f"max_batch_size must be a number: {form} programs do not tell what varies")
    size = max_batch_size(source, program.inputs, program.outputs)
    if program.max_rows is not None and size > program.max_rows:
        if source.max_batch_size != "auto":
            raise ValueError(
                f"max_batch_size is {size}, but the program was exported for at most {program.max_rows} rows"
            )
        size = min(DEFAULT_MAX_BATCH_SIZE, program.max_rows)
    if size and program.numbers:
        raise ValueError(
            f"max_batch_size must be 0: rows of several callers cannot share {', '.join(program.numbers)}, which the "
            "model takes as numbers"
        )
    return size


def _addresses(module: Any) -> frozenset[int]:
    """Where the weights and the state of a module lie."""
    tensors = (*module.parameters(), *module.buffers()) if hasattr(module, "parameters") else ()
    return frozenset(tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.numel())


KIND = BackendKind(TorchOptions, TorchBackend, runs_code=True, gpu_problem=gpu_problem, own_process=True)
