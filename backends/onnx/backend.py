"""ONNX models by ONNX Runtime: on the host with its CPU provider, on a GPU with its CUDA provider.

On a GPU, inputs and outputs are CuPy arrays, see cuda.py: nothing goes to the host between preprocessing,
inference and postprocessing. Strings cannot be bound, so a model that has any runs through `session.run`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from pydantic import Field

from tensorgate.backends.execution.device import CudaDevice, Device, open_device
from tensorgate.backends.execution.failures import failure_of, is_shortage
from tensorgate.backends.execution.gpu import no_room
from tensorgate.backends.execution.graphs import Graphs
from tensorgate.backends.execution.spec_inference import max_batch_size
from tensorgate.backends.onnx.binding import Bindings
from tensorgate.backends.onnx.cuda import BF16_ELEMENT_TYPE, CudaSession, Recording
from tensorgate.backends.onnx.description import PLATFORM, ScalarVectors, describe
from tensorgate.backends.onnx.failures import is_about_inputs, plain
from tensorgate.backends.onnx.file import MODEL_FILE, model_file, unknown_ranks
from tensorgate.backends.onnx.providers import (
    CudaOptions,
    gpu_problem,
    import_onnxruntime,
    name_of,
    provider_options,
    refuse_fallback,
)
from tensorgate.gateway.contract.backend import Backend, BackendKind, ModelSource
from tensorgate.gateway.contract.canonical import InferRequest
from tensorgate.gateway.contract.errors import InvalidArgument, ModelFailed
from tensorgate.gateway.contract.shortcuts import is_taken
from tensorgate.gateway.contract.tensor import BYTES, DTYPES, Array, Tensors, TensorSpec

_ALIGNMENT_BYTES: Final = 16  # what NumPy's own arrays have
_FATAL: Final = 4
"""The only level of the runtime's log that speaks during a trial."""
_OPTIMIZATION_LEVELS: Final = {
    "all": "ORT_ENABLE_ALL",
    "extended": "ORT_ENABLE_EXTENDED",
    "basic": "ORT_ENABLE_BASIC",
    "disabled": "ORT_DISABLE_ALL",
}
_LOCALE: Final = (
    ". This machine lacks that locale: apt-get install locales; localedef --inputfile=en_US --charmap=UTF-8 en_US.UTF-8"
)
"""What StringNormalizer wants, which scikit-learn's TF-IDF becomes."""
_TABLES: Final = frozenset({"seq(map(int64,tensor(float)))", "seq(map(string,tensor(float)))"})
"""What ZipMap gives, as scikit-learn's exporters add it unless they are told otherwise."""
_DATATYPES: Final[Mapping[str, str]] = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(bfloat16)": "BF16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(string)": "BYTES",
}


Infer = Callable[[Tensors, Sequence[str]], Tensors]


class OnnxOptions(CudaOptions):
    """What the YAML may say of an ONNX model."""

    file: str = Field(
        MODEL_FILE, description=f"Name of the model file in each version folder, or of a folder with a {MODEL_FILE}."
    )
    intra_op_threads: int = Field(
        0, ge=0, description="Threads that share one operator; 0: a copy's share of cpu.threads."
    )
    inter_op_threads: int = Field(0, ge=0, description="Threads that run operators side by side, where those may.")
    execution_mode: Literal["sequential", "parallel"] = Field(
        "sequential", description="Whether operators that do not depend on each other run side by side."
    )
    graph_optimization: Literal["all", "extended", "basic", "disabled"] = Field(
        "all", description="How far ONNX Runtime rewrites the graph when it loads it."
    )
    scalars_as_vectors: bool = Field(
        False,
        description="Show a scalar (with max_batch_size: one per row) as a vector of one, as Triton does with tensors "
        "that are not declared.",
    )


class OnnxBackend(Backend):
    """One session. Raises ValueError where the file, the device or the installation is not what was asked for."""

    device: Device
    inline = True
    platform = PLATFORM

    def __init__(self, source: ModelSource) -> None:
        options: OnnxOptions = source.options
        self._name = source.name
        path = model_file(source.path, options.file)
        self._ort = import_onnxruntime()
        self.device = open_device(source.device, gpu_problem)
        self.in_flight = 2 if isinstance(self.device, CudaDevice) else 1  # copies of one hide behind the other
        self._session = self._open_session(path, options, source)
        self._quiet = self._ort.RunOptions()
        self._quiet.log_severity_level = _FATAL
        self._run_options: Any = None  # to give some takes longer than to run a small model
        self.inputs = _specs(self._session.get_inputs(), path)
        gives = self._session.get_outputs()
        self._has_tables = any(node.type in _TABLES for node in gives)
        self.outputs = _specs(gives, path, _TABLES)
        self.max_batch_size = max_batch_size(source, self.inputs, self.outputs)
        self.inputs += self._optional_inputs({spec.name for spec in source.inputs}, path)
        is_bound = type(self.device) is Device and is_taken("bound_outputs") and not self._has_tables
        self._bindings = Bindings(self._session) if is_bound else None
        self._infer = self._choose_way(options, source)
        if options.scalars_as_vectors:
            self._show_vectors(source)

    def infer(self, tensors: Tensors, outputs: Sequence[str], requests: Sequence[InferRequest]) -> Iterable[Tensors]:
        trial = bool(requests) and requests[0].cancellation.trial
        self._run_options = self._quiet if trial else None
        return (self._infer(tensors, outputs),)

    def close(self) -> None:
        del self._infer, self._bindings, self._session

    def _open_session(self, path: Path, options: OnnxOptions, source: ModelSource) -> Any:
        settings = self._ort.SessionOptions()
        settings.logid = source.name  # so that the runtime's lines say whose they are
        settings.intra_op_num_threads = options.intra_op_threads or source.threads
        settings.inter_op_num_threads = options.inter_op_threads or source.threads
        settings.execution_mode = getattr(self._ort.ExecutionMode, f"ORT_{options.execution_mode.upper()}")
        settings.graph_optimization_level = getattr(
            self._ort.GraphOptimizationLevel, _OPTIMIZATION_LEVELS[options.graph_optimization]
        )
        settings.add_session_config_entry("session.intra_op.allow_spinning", "0")  # idle cores belong to the front door
        providers = provider_options(options, self.device, source.memory_limit_bytes)
        try:
            session = self._ort.InferenceSession(str(path), settings, providers=providers, enable_fallback=0)
        except Exception as error:  # ONNX Runtime has an exception class per status, all derived from Exception alone
            if is_shortage(error):
                raise MemoryError(no_room(source, self.device.name, str(error))) from None
            remedy = _LOCALE if "Failed to construct locale" in str(error) else ""
            raise ValueError(f"ONNX Runtime cannot load {path}: {plain(str(error))}{remedy}") from None
        refuse_fallback(session, name_of(providers[0]))
        return session

    def _choose_way(self, options: OnnxOptions, source: ModelSource) -> Infer:
        datatypes = {spec.datatype for spec in (*self.inputs, *self.outputs)}
        if isinstance(self.device, CudaDevice) and "BYTES" not in datatypes and not self._has_tables:
            dtypes = {theirs: DTYPES[ours] for theirs, ours in _DATATYPES.items()}
            graphs: Graphs[Recording] | None = Graphs(source.name, self.device) if options.cuda_graph else None
            outputs = [spec.name for spec in self.outputs]
            session = CudaSession(self._session, self.device, self._ort.RunOptions, dtypes, graphs, outputs)
            if graphs is not None:
                graphs.record_at_load(lambda tensors: session.run(tensors, outputs), self.inputs, source.padding)
            return self._with_public_errors(session.run)
        if "BF16" in datatypes:
            return self._infer_ort_values
        if "BYTES" in datatypes or self._has_tables:
            return self._infer_objects
        return self._infer_on_host

    def _optional_inputs(self, declared: set[str], path: Path) -> tuple[TensorSpec, ...]:
        """Initializers that the file lets callers replace, of those that are declared as inputs."""
        nodes = [node for node in self._session.get_overridable_initializers() if node.name in declared]
        return tuple(replace(spec, optional=True) for spec in _specs(nodes, path))

    def _show_vectors(self, source: ModelSource) -> None:
        """What is declared is declared as callers see it already."""
        vectors, infer = ScalarVectors(self.max_batch_size), self._infer
        self.inputs = self.inputs if source.inputs else vectors.shown(self.inputs)
        self.outputs = self.outputs if source.outputs else vectors.shown(self.outputs)
        if vectors:
            self._infer = lambda tensors, outputs: vectors.from_model(infer(vectors.to_model(tensors), outputs))

    def _infer_on_host(self, tensors: Tensors, outputs: Sequence[str]) -> Tensors:
        bindings = self._bindings
        if bindings is not None and (bound := bindings.run(tensors, outputs)) is not None:
            return bound
        feed = {name: _aligned(array) for name, array in tensors.items()}
        results = dict(zip(outputs, self._run(outputs, feed), strict=True))
        if bindings is not None:
            bindings.learn(tensors, results)
        return results

    def _run(self, outputs: Sequence[str], feed: Mapping[str, Any]) -> list[Any]:
        try:
            results: list[Any] = self._session.run(outputs, feed, self._run_options)
        except Exception as error:
            raise self._public_error(error) from error
        return results

    def _public_error(self, error: Exception) -> Exception:
        """A runtime's objection to its inputs is the caller's fault, anything else the model's."""
        text = plain(str(error))
        state = self._ort.capi.onnxruntime_pybind11_state
        if isinstance(error, state.InvalidArgument):
            return InvalidArgument(text)
        failure = failure_of(error, self._name, text)
        does_not_fit = type(failure) is ModelFailed and isinstance(error, (state.Fail, state.RuntimeException))
        return InvalidArgument(text) if does_not_fit and is_about_inputs(text) else failure

    def _infer_objects(self, tensors: Tensors, outputs: Sequence[str]) -> Tensors:
        """ONNX strings are text: bytes are decoded before and encoded after, and what is not UTF-8 is refused. Lists of
        maps become tables.
        """
        feed = {
            name: _text(name, array) if array.dtype == BYTES else self.device.get(array)
            for name, array in tensors.items()
        }
        results = self._run(outputs, feed)
        return {name: self.device.put(_plain(result)) for name, result in zip(outputs, results, strict=True)}

    def _with_public_errors(self, run: Infer) -> Infer:
        def infer(tensors: Tensors, outputs: Sequence[str]) -> Tensors:
            try:
                return run(tensors, outputs)
            except Exception as error:
                raise self._public_error(error) from error

        return infer

    def _infer_ort_values(self, tensors: Tensors, outputs: Sequence[str]) -> Tensors:
        """BF16 has no NumPy type that ONNX Runtime knows: its bits travel as uint16 in values that carry the ONNX
        type.
        """
        feed = {name: self._ort_value(self.device.get(array)) for name, array in tensors.items()}
        try:
            results = self._session.run_with_ort_values(list(outputs), feed, self._run_options)
        except Exception as error:
            raise self._public_error(error) from error
        return {name: self.device.put(_from_ort_value(value)) for name, value in zip(outputs, results, strict=True)}

    def _ort_value(self, array: Array) -> Any:
        array = np.asarray(array, order="C")  # ascontiguousarray would make a vector of a scalar
        if array.dtype == DTYPES["BF16"]:
            return self._ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), BF16_ELEMENT_TYPE)
        return self._ort.OrtValue.ortvalue_from_numpy(array)


def _aligned(array: Array) -> Array:
    """A tensor in a request's body lies where it lies. Kernels begin their vectors where memory is aligned, and with
    other partial sums come other last bits: the same numbers have to give the same answer, whoever brings them.
    """
    return array if array.ctypes.data % _ALIGNMENT_BYTES == 0 else array.copy()


def _from_ort_value(value: Any) -> Array:
    if value.data_type() != "tensor(bfloat16)":
        return value.numpy()
    shape = value.shape()
    count = int(np.prod(shape, dtype=np.int64))
    bits = np.empty(count, np.uint16)
    ctypes.memmove(bits.ctypes.data, value.data_ptr(), bits.nbytes)
    return bits.view(DTYPES["BF16"]).reshape(shape)


def _text(name: str, array: Array) -> Array:
    try:
        flat = [element.decode() for element in array.ravel()]
    except UnicodeDecodeError:
        raise InvalidArgument(f"input '{name}' has an element that is not UTF-8, but the model takes text") from None
    text = np.empty(array.size, np.object_)
    text[:] = flat
    return text.reshape(array.shape)


def _plain(array: Any) -> Array:
    """What the runtime gives -> an array of ours."""
    if isinstance(array, list):
        return _table(array)
    if array.dtype != BYTES:
        return array
    encoded = np.empty(array.size, np.object_)
    encoded[:] = [element.encode() for element in array.ravel()]
    return encoded.reshape(array.shape)


def _table(maps: Sequence[Mapping[Any, float]]) -> Array:
    """A map of classes to numbers for each row -> FP32 [rows, classes], in ascending order of the classes, as in
    scikit-learn's `classes_`. Raises ModelFailed where rows have different ones.
    """
    classes = sorted(maps[0]) if maps else []
    if any(len(row) != len(classes) for row in maps):
        raise ModelFailed("the rows of a list of maps have different keys, which no table can hold")
    try:
        rows = [[row[name] for name in classes] for row in maps]
    except KeyError:
        raise ModelFailed("the rows of a list of maps have different keys, which no table can hold") from None
    return np.array(rows, np.float32).reshape(len(maps), len(classes))


def _specs(nodes: Sequence[Any], path: Path, tables: frozenset[str] = frozenset()) -> tuple[TensorSpec, ...]:
    """What ONNX Runtime says of inputs or outputs -> specifications. Symbolic dimensions vary. Of the types `tables`
    is what becomes a table.
    """
    unknown = unknown_ranks(path) if any(not (node.type in tables or node.shape) for node in nodes) else frozenset()
    return tuple(
        TensorSpec(node.name, DTYPES["FP32"], (-1, -1))
        if node.type in tables
        else TensorSpec(node.name, _dtype(node), None if node.name in unknown else _shape(node))
        for node in nodes
    )


def _dtype(node: Any) -> np.dtype[Any]:
    if node.type not in _DATATYPES:
        raise ValueError(f"'{node.name}' is {node.type}, which no dialect can carry")
    return DTYPES[_DATATYPES[node.type]]


def _shape(node: Any) -> tuple[int, ...]:
    return tuple(size if isinstance(size, int) and size >= 0 else -1 for size in node.shape)


KIND = BackendKind(
    OnnxOptions,
    OnnxBackend,
    describe=describe,
    limits_memory=True,
    gpu_problem=gpu_problem,
    own_process=True,
    replicable=True,
)
