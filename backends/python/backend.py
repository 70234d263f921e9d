"""A user's Python class as a model.

    class Cosine:
        def __init__(self, context):        # once per instance: context has name, version, path, device, xp,
                                            # parameters; may be left out
            self.xp = context.xp
        def infer(self, inputs, request):   # a mapping of arrays in, a mapping of arrays out
            return {"similarity": ...}

Arrays come on the device that the configuration names: NumPy's on the host, CuPy's on a GPU, where they are already
when `infer` is called; BYTES are NumPy's everywhere. `xp` is the module of either, so `xp.exp(x)` runs on both. Results
may be CuPy's, NumPy's (of a model on a GPU, too: they are moved only if what follows needs them there), a tensor of
another library on the same GPU, or a list of numbers. On a GPU a plain `infer` runs on the instance's own stream, where
nothing needs to be waited for; what reads a number out of an array, as in `float(x[0])`, waits by itself.

What `infer` is decides how it runs: a plain function in the model's own thread, an `async def` on the event loop, a
generator (of either sort) as a decoupled model that answers zero to many times. `request` tells id, version,
signature, parameters, sequence, deadline, whether the caller takes a stream of answers (`streaming`), and whether it is
still there (`cancelled`). With `max_batch_size` above 0 the rows of several requests come in one call: those of one
signature and the same parameters, all of which take a stream or none. Such a call has no id and no sequence, whose ever
they would be, the last of the deadlines, and is cancelled when nobody waits for it any more.

Arrays have the dtypes that the YAML declares, and its shapes, but for TensorFlow Serving's callers: as in the original,
their shapes are for the class to refuse, and where it then fails, the answer is that the shape is wrong. Results have
the declared dtypes and shapes, too, unless such a caller has sent another shape.

Raise `tensorgate.InvalidArgument` to refuse an input; any other exception is reported to the caller by its last line.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tensorgate.backends.execution.cuda_install import cuda_problem
from tensorgate.backends.execution.device import Device, open_device
from tensorgate.backends.execution.rows import last_deadline
from tensorgate.backends.python.user_class import load_class
from tensorgate.gateway.contract.backend import Backend, BackendKind, Described, ModelSource
from tensorgate.gateway.contract.canonical import InferRequest
from tensorgate.gateway.contract.canonical import Sequence as RequestSequence
from tensorgate.gateway.contract.errors import GatewayError, ModelFailed, ShapeMismatch
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.tensor import (
    BYTES,
    DATATYPES,
    DEFAULT_SIGNATURE,
    Array,
    ParameterValue,
    Tensors,
    TensorSpec,
    hold_to,
    of_any_rows,
)


@dataclass(frozen=True, slots=True)
class ModelContext:
    """What a user's class learns when it is made.

    `path` is its file's folder, `xp` numpy or cupy, `parameters` the YAML's.
    """

    name: str
    version: int
    path: Path
    device: str
    xp: Any
    parameters: Mapping[str, Any]


class ModelRequest:
    """What a user's infer learns of its callers. `shared`: their rows may be those of several, so that nothing is shown
    that belongs to one of them. What is shown of all, and may change what is computed, is part of the batch key.
    """

    __slots__ = ("_first", "_requests", "_shared")

    def __init__(self, requests: Sequence[InferRequest], shared: bool) -> None:
        self._first = requests[0]
        self._requests = requests
        self._shared = shared

    @property
    def id(self) -> str:
        """Empty if the caller gave none, and where requests share calls."""
        return "" if self._shared else self._first.id

    @property
    def version(self) -> int:
        return self._first.view.version

    @property
    def signature(self) -> str:
        """The default's name for callers who name none."""
        return self._first.signature or DEFAULT_SIGNATURE

    @property
    def parameters(self) -> Mapping[str, ParameterValue]:
        return self._first.parameters

    @property
    def sequence(self) -> RequestSequence | None:
        """None where requests share calls: the gateway keeps what their sequences remember."""
        sequence = None if self._shared else self._first.sequence
        return sequence if sequence is not None and sequence.id else None

    @property
    def streaming(self) -> bool:
        """Whether the caller takes a stream of answers; else one answer is all that it can be given."""
        return self._first.stream

    @property
    def deadline(self) -> float | None:
        """In seconds of time.monotonic(), the last of all callers'; None if one of them set none."""
        return last_deadline(self._requests)

    @property
    def cancelled(self) -> bool:
        """All callers have left or want no more, or their deadlines have passed: nobody needs what comes now."""
        tokens = [request.cancellation for request in self._requests]
        return all(token.cut or token.is_asked_to_stop for token in tokens)


class PythonModel(Protocol):
    """A user's class, once it is made. If it has a method `close(self)`, that is called when it is unloaded."""

    def infer(self, inputs: Tensors, request: ModelRequest) -> Any:
        """Return a mapping of outputs by name, or be a generator of such mappings; both may be async.

        Raise InvalidArgument to refuse an input.
        """
        ...


class PythonOptions(Options):
    """Nothing beyond what every model has."""


class PythonBackend(Backend):
    """One instance of a user's class.

    Raises ValueError if the file has no such class or the YAML declares no inputs or outputs.
    """

    device: Device
    inline = False  # how long a user's code takes is nobody's to predict
    any_shape = True
    sees_requests = True
    platform = "python"

    def __init__(self, source: ModelSource) -> None:
        described = _describe(source)
        self.inputs = described.inputs
        self.outputs = described.outputs
        self.max_batch_size = described.max_batch_size
        self.device = open_device(source.device)
        context = ModelContext(
            source.name, source.version, source.path.parent, self.device.name, self.device.xp, source.parameters
        )
        with self.device.active():
            made: Callable[..., PythonModel]
            self._module, made = load_class(source.path, source.member, cached=source.verified is None)
            try:
                if not callable(getattr(made, "infer", None)):
                    raise ValueError(f"{source.member} in {source.path} has no method infer(self, inputs, request)")
                takes_nothing = inspect.isclass(made) and made.__init__ is object.__init__
                self._model = made() if takes_nothing else made(context)
            except BaseException:
                del sys.modules[self._module]
                raise
        self._name = source.name
        self._specs = {spec.name: of_any_rows(spec, self.max_batch_size) for spec in source.outputs}
        infer = self._model.infer
        if inspect.iscoroutinefunction(infer) or inspect.isasyncgenfunction(infer):
            self.runs_on = "loop"
        self.decoupled = inspect.isgeneratorfunction(infer) or inspect.isasyncgenfunction(infer)
        self.merges = not self.decoupled
        self._shares = self.merges and self.max_batch_size > 0 and _share_calls(source.options)

    def infer(
        self, tensors: Tensors, outputs: Sequence[str], requests: Sequence[InferRequest]
    ) -> Iterable[Tensors] | AsyncIterator[Tensors]:
        request = ModelRequest(requests, self._shares)
        if self.runs_on == "loop":
            return self._on_loop(tensors, request)
        if self.decoupled:
            return self._stream(tensors, request)
        return self._once(tensors, request)

    def close(self) -> None:
        """The class may have a close() of its own."""
        close = getattr(self._model, "close", None)
        sys.modules.pop(self._module, None)
        if close is not None:
            close()

    def _once(self, tensors: Tensors, request: ModelRequest) -> Iterator[Tensors]:
        try:
            answer = self._model.infer(tensors, request)
        except Exception as error:
            self._raise_mismatch(error, tensors)
            raise
        yield self._checked(answer, tensors)

    def _stream(self, tensors: Tensors, request: ModelRequest) -> Iterator[Tensors]:
        for answer in self._model.infer(tensors, request):
            yield self._checked(answer, tensors)

    async def _on_loop(self, tensors: Tensors, request: ModelRequest) -> AsyncIterator[Tensors]:
        if not self.decoupled:
            try:
                answer = await self._model.infer(tensors, request)
            except Exception as error:
                self._raise_mismatch(error, tensors)
                raise
            yield self._checked(answer, tensors)
            return
        async with contextlib.aclosing(self._model.infer(tensors, request)) as answers:
            async for answer in answers:
                yield self._checked(answer, tensors)

    def _raise_mismatch(self, error: Exception, tensors: Tensors) -> None:
        """Raises ShapeMismatch if a class has failed on inputs of other shapes than are declared."""
        if isinstance(error, GatewayError):
            return
        odd = self._undeclared(tensors)
        if odd is not None:
            batched = self.max_batch_size > 0
            shape = tensors[odd.name].shape
            raise ShapeMismatch(odd.name, shape, odd.shape or (), self._name, batched=batched) from error

    def _undeclared(self, tensors: Tensors) -> TensorSpec | None:
        """The first input whose shape is another than the declared one."""
        for spec in self.inputs:
            array = tensors.get(spec.name)
            if array is not None and not spec.accepts(array.shape):
                return spec
        return None

    def _checked(self, answer: Any, tensors: Tensors) -> Tensors:
        """Hold the class to what the YAML declares: every output, in its dtype and shape. BYTES may be given as bytes
        or text.
        """
        if not isinstance(answer, Mapping):
            raise ModelFailed(f"infer must return a mapping of outputs, not {type(answer).__name__}")
        missing = [name for name in self._specs if name not in answer]
        if missing:
            raise ModelFailed(f"infer returned no output '{missing[0]}'")
        outputs = {name: self._output(spec, answer[name]) for name, spec in self._specs.items()}
        try:
            for name, array in outputs.items():
                hold_to(self._specs[name], array.shape, self._name)
        except ModelFailed:
            if self._undeclared(tensors) is None:
                raise
        return outputs

    def _as_array(self, value: Any) -> Array:
        """A result as an array of NumPy's, or of CuPy's for a model on a GPU. Others share their memory."""
        xp = self.device.xp
        if isinstance(value, (np.ndarray, xp.ndarray)):
            return value
        if hasattr(value, "__cuda_array_interface__"):
            return value.get() if xp is np else xp.from_dlpack(value)
        return np.asarray(value)

    def _output(self, spec: TensorSpec, value: Any) -> Array:
        if spec.dtype == BYTES:
            if type(value) is list and (texts := _flat_bytes(value)) is not None:
                return texts
            return _as_bytes(spec.name, self._as_array(value))
        array = self._as_array(value)
        if array.dtype != spec.dtype:
            raise ModelFailed(f"output '{spec.name}' is {_name(array.dtype)}, but {spec.datatype} is declared")
        return array


def _describe(source: ModelSource) -> Described:
    """What the YAML declares: the class is not imported for it."""
    if not source.inputs or not source.outputs:
        raise ValueError(
            "a python model needs its inputs and outputs declared, for the class does not tell them: "
            "inputs: [{name: x, datatype: FP32, shape: [-1]}], and outputs likewise"
        )
    if source.max_batch_size == "auto":
        raise ValueError("a python model needs max_batch_size as a number: the class does not tell it")
    if not source.member:
        raise ValueError(f"{source.path} must name a class in the file, too: {source.path.name}:Cosine")
    return Described(source.inputs, source.outputs, source.max_batch_size)


def _share_calls(options: Any) -> bool:
    """Whether requests of a model that batches share calls: not those of sequences that the class itself remembers."""
    sequences = getattr(options, "sequences", None)
    return getattr(options, "batching", True) and (sequences is None or bool(sequences.states))


def _name(dtype: np.dtype[Any]) -> str:
    name = DATATYPES[dtype]
    return str(dtype) if name == "<invalid>" else name


def _flat_bytes(value: list[Any]) -> Array | None:
    """A list of bytes or texts, which needs no array of texts in between; None: it is none."""
    flat = np.empty(len(value), np.object_)
    for index, element in enumerate(value):
        if type(element) is str:
            flat[index] = element.encode()
        elif type(element) is bytes:
            flat[index] = element
        else:
            return None
    return flat


def _as_bytes(name: str, array: Array) -> Array:
    """Object, bytes or text arrays -> object array of bytes."""
    if array.dtype.kind not in "OSU":
        raise ModelFailed(f"output '{name}' is {_name(array.dtype)}, but BYTES is declared")
    flat = np.empty(array.size, np.object_)
    for index, element in enumerate(array.ravel().tolist()):
        if isinstance(element, str):
            element = element.encode()
        if not isinstance(element, bytes):
            raise ModelFailed(f"output '{name}' has an element of type {type(element).__name__}, but BYTES is declared")
        flat[index] = element
    return flat.reshape(array.shape)


KIND = BackendKind(
    PythonOptions,
    PythonBackend,
    versioned=False,
    runs_code=True,
    describe=_describe,
    gpu_problem=cuda_problem,
    own_process=True,
)
