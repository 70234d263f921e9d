"""The one form that every request and every answer takes between a dialect and a model.

Wire types stop at the adapters. What travels inside is made of these frozen classes and of arrays: NumPy on the host,
CuPy on the device. An array is the only bearer of its dtype and shape. BYTES tensors are object arrays of `bytes` and
never leave the host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar, dataclass_transform

import ml_dtypes
import numpy as np

from gateway.errors import (
    BatchMismatch,
    BatchMissing,
    BatchTooLarge,
    DtypeMismatch,
    InputCount,
    ModelFailed,
    ShapeMismatch,
    UnknownInput,
)

if TYPE_CHECKING:
    from gateway.ports import ModelView

T = TypeVar("T")
Array: TypeAlias = Any
"""A NumPy array on the host, a CuPy array on the device. The two share an interface but no base class."""

Tensors: TypeAlias = Mapping[str, Array]
"""Tensors by name; rows on axis 0 where the model batches."""

ParameterValue: TypeAlias = bool | int | float | str


class _Nothing(dict[str, Any]):
    """An empty mapping that stays empty, hashable so that it may be a dataclass default."""

    __hash__ = object.__hash__  # type: ignore[assignment]

    def __setitem__(self, key: str, value: Any) -> None:
        raise TypeError("NOTHING stays empty")


NOTHING: Mapping[str, Any] = _Nothing()

DTYPES: Mapping[str, np.dtype[Any]] = MappingProxyType(
    {
        "BOOL": np.dtype(np.bool_),
        "UINT8": np.dtype(np.uint8),
        "UINT16": np.dtype(np.uint16),
        "UINT32": np.dtype(np.uint32),
        "UINT64": np.dtype(np.uint64),
        "INT8": np.dtype(np.int8),
        "INT16": np.dtype(np.int16),
        "INT32": np.dtype(np.int32),
        "INT64": np.dtype(np.int64),
        "FP16": np.dtype(np.float16),
        "BF16": np.dtype(ml_dtypes.bfloat16),
        "FP32": np.dtype(np.float32),
        "FP64": np.dtype(np.float64),
        "BYTES": np.dtype(np.object_),
    }
)
"""Datatype (the Open Inference name, also used in YAML) -> dtype of the array that carries it."""

BYTES = DTYPES["BYTES"]
_ELEMENT_BYTES: Final = 64
"""What Python keeps around an element of BYTES, about."""
_MOST_COUNTED: Final = 10_000
"""Elements of BYTES: to look at each takes time that all other requests wait for."""
_DATATYPES: dict[np.dtype[Any], str] = {dtype: name for name, dtype in DTYPES.items()}


def datatype_of(dtype: np.dtype[Any]) -> str:
    """The datatype's name, `<invalid>` for a dtype that no dialect can carry."""
    return _DATATYPES.get(dtype, "<invalid>")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What a model says of one input or output.

    `shape` is the whole wire shape, batch dimension included, -1 where a dimension varies; None is any rank.
    `labels` names the classes along the last axis of an output, for classification.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...] | None = None
    optional: bool = False
    labels: tuple[str, ...] = ()

    @property
    def datatype(self) -> str:
        return datatype_of(self.dtype)

    def accepts(self, shape: tuple[int, ...]) -> bool:
        """Whether an array of this shape fits: same rank, and equal wherever the specification is not -1."""
        want = self.shape
        if want is None or want == shape:
            return True
        return len(shape) == len(want) and all(w in (-1, g) for g, w in zip(shape, want, strict=True))


def of_any_rows(spec: TensorSpec, max_batch_size: int) -> TensorSpec:
    """With a batch dimension, how many rows an output has is the batch's to say."""
    return replace(spec, shape=(-1, *spec.shape[1:])) if max_batch_size and spec.shape else spec


def hold_to(spec: TensorSpec, shape: tuple[int, ...], model: str) -> None:
    """Raises ModelFailed where an output of a model has another shape than is declared."""
    if shape != spec.shape and not spec.accepts(shape):
        raise ModelFailed(
            f"output '{spec.name}' of model '{model}' has shape {list(shape)}, but {list(spec.shape or ())} is declared"
        )


def check_inputs(model: str, inputs: Tensors, specs: Mapping[str, TensorSpec], max_batch_size: int) -> None:
    """Refuse inputs that do not fit the specifications: their number, their names, the batch, then each one's dtype
    and shape.

    Dialects call it with what a model declares, the engine with what its computation needs; `max_batch_size` 0 leaves
    the batch dimension alone. Raises InputCount, UnknownInput, BatchMissing, BatchMismatch, BatchTooLarge,
    DtypeMismatch, ShapeMismatch. Source: Triton's order of checks.
    """
    if inputs.keys() != specs.keys():
        _check_names(model, inputs, specs)
    if max_batch_size:
        _check_batch(model, inputs, max_batch_size)
    for name in reversed([*inputs]):  # the last one first, as Triton looks at them
        spec, array = specs[name], inputs[name]
        if array.dtype != spec.dtype:
            raise DtypeMismatch(name, datatype_of(array.dtype), spec.datatype, model)
        if spec.shape is not None and not spec.accepts(array.shape):
            raise ShapeMismatch(name, array.shape, spec.shape, model, batched=max_batch_size > 0)


def _check_names(model: str, inputs: Tensors, specs: Mapping[str, TensorSpec]) -> None:
    missing = tuple(spec.name for spec in specs.values() if spec.name not in inputs and not spec.optional)
    least = sum(not spec.optional for spec in specs.values())
    if not least <= len(inputs) <= len(specs):
        raise InputCount(model, tuple(inputs), missing, least, len(specs))
    for name in reversed([*inputs]):
        if name not in specs:
            raise UnknownInput(name, model)
    if missing:
        raise InputCount(model, tuple(inputs), missing, least, len(specs))


def bytes_of(tensors: Tensors) -> int | None:
    """What tensors take on the host; None if that takes long to find out."""
    total = 0
    for array in tensors.values():
        if array.dtype != BYTES:
            total += array.nbytes
        elif array.size > _MOST_COUNTED:
            return None
        else:
            total += sum([len(element) for element in array.reshape(-1)]) + _ELEMENT_BYTES * array.size
    return total


def common_rows(inputs: Tensors) -> int | None:
    """Dimension 0, if every input has one and it is the same. None otherwise, and without inputs: such a request runs
    alone.
    """
    if len(inputs) == 1:  # the usual case, in half the time
        (array,) = inputs.values()
        return array.shape[0] if array.shape else None
    sizes = {array.shape[:1] for array in inputs.values()}
    if len(sizes) != 1:
        return None
    (size,) = sizes
    return size[0] if size else None


def _check_batch(model: str, inputs: Tensors, max_batch_size: int) -> None:
    rows = None
    for name in reversed([*inputs]):
        array = inputs[name]
        if not array.shape:
            raise BatchMissing(name, model)
        if rows is None:
            rows = array.shape[0]
        if array.shape[0] != rows:
            raise BatchMismatch(name, model)
    if rows is not None and rows > max_batch_size:
        raise BatchTooLarge(rows, max_batch_size, model)


DEFAULT_SIGNATURE: Final = "serving_default"
"""What a caller gets who names no signature."""


@dataclass(frozen=True, slots=True)
class Signature:
    """A named view of a model: which of its tensors a caller sees and under which names. Source: TensorFlow's
    SignatureDef.

    `inputs` and `outputs` map the caller's name to the model's own tensor; `method` is a SignatureDef's method_name,
    "tensorflow/serving/classify" for example. Where callers send tf.Examples, `features` says which feature is which
    input of the model, and `inputs` is a tensor of serialized Examples; it is None where the model itself reads what
    `inputs` names. `defaults` has the inputs, by the caller's names, that a request may leave out. `definition` is the
    serialized SignatureDef of a model that brought one.
    """

    name: str
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    method: str = "tensorflow/serving/predict"
    features: Mapping[str, TensorSpec] | None = None
    defaults: Tensors = NOTHING
    definition: bytes = b""


@dataclass(frozen=True, slots=True)
class ModelRef:
    """A model as a caller names it.

    version None means the highest one that is ready. `qualified` is a whole "name-version" as grps clients write it:
    never split, since names contain hyphens and versions dots; an empty one means the default model.
    """

    name: str = ""
    version: int | None = None
    label: str | None = None
    qualified: str | None = None


@dataclass(frozen=True, slots=True)
class OutputRequest:
    """One output that a caller wants.

    `top_k` > 0 asks for the k best classes in place of the tensor; `wire` belongs to the dialect.
    """

    name: str
    top_k: int = 0
    wire: Mapping[str, Any] = NOTHING


@dataclass(frozen=True, slots=True, eq=False)
class Destination:
    """Where the caller wants one output: memory that it shares, the first bytes of it.

    `memory` is a writable memoryview, or a GPU's (`ports.DeviceMemory`). `serialize` lays BYTES out as the dialect
    does.
    """

    memory: Any
    serialize: Callable[[Array], bytes]


@dataclass(frozen=True, slots=True)
class Sequence:
    """Which sequence of requests this one belongs to, and whether it is its first or last.

    Source: Triton's sequence extension.
    """

    id: int | str
    start: bool = False
    end: bool = False


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(field,))
def message(cls: type[T]) -> type[T]:
    """A dataclass that is frozen for type checkers, and compared by identity, as what holds arrays must be.

    At run time it is an ordinary one: two or three of them are made per request, and a frozen __init__ costs a
    microsecond more.
    """
    return dataclass(slots=True, eq=False)(cls)


class Leg(Protocol):
    """A call to another server that is made for a traced one: `headers` go along with it."""

    headers: Mapping[str, str]

    def end(self, *, failed: bool) -> None:
        """It is over. Of effect once."""
        ...


class Traced(Protocol):
    """Who wants to know what became of a request: told on the event loop, by those who know it."""

    def ran(self, rows: int, batch_rows: int, submitted: float, started: float, ended: float) -> None:
        """It has run, in a batch of so many rows. Times are in seconds of time.monotonic()."""
        ...

    def left(self, rows: int, submitted: float, ended: float) -> None:
        """It ended while it still waited."""
        ...

    def upstream(self, target: str) -> Leg:
        """Another server is about to be asked."""
        ...


class Lifeline:
    """Whether somebody still waits for an answer; cut by the scheduler when the caller leaves or its time is up.

    `on_cut` is called then, on the event loop: it belongs to whoever computes the answer. `trail` is None where nobody
    wants to know what becomes of the request. `trial`: it is made up, and may fail without a word. `request_id` is what
    the answer's headers call it, "" where they do not.
    """

    # Values of the class: there is one of these for every request, and most need little of it.
    trail: Traced | None = None
    cut = False
    on_cut: Callable[[], None] | None = None
    request_id = ""
    trial = False

    def end(self) -> None:
        """Nobody waits any more."""
        self.cut = True
        if self.on_cut is not None:
            self.on_cut()


class Trial(Lifeline):
    """Of a request that nobody has sent: whether the model takes it, nobody knows."""

    trial = True


@message
class InferRequest:
    """Tensors for one model, checked by the dialect as strictly as its contract says.

    `view` is the model version it was decoded for, pinned until the reply. `outputs` empty means all. `deadline` is
    absolute, in seconds of `time.monotonic()`. `wire` carries what the dialect's own encoder needs to answer in kind;
    nobody else looks at it. `into` is None unless a tensor of it lies in memory that is not the request's own: then
    inputs may be arrays on a GPU, ready for every stream, and the outputs that it names go into their destinations.
    `stream`: the caller takes any number of answers; else a decoupled model has to give exactly one.
    `on_device`: the outputs are wanted where the model left them, ready for every stream; who asks for that is no
    client, but a model composed of models.
    """

    view: ModelView
    inputs: Tensors
    id: str = ""
    outputs: tuple[OutputRequest, ...] = ()
    parameters: Mapping[str, ParameterValue] = NOTHING
    signature: str = ""
    priority: int = 0
    sequence: Sequence | None = None
    deadline: float | None = None
    queue_timeout_us: int = 0
    stream: bool = False
    wire: Any = None
    into: Mapping[str, Destination] | None = None
    on_device: bool = False
    lifeline: Lifeline = field(default_factory=Lifeline)


def takes_whole_outputs(request: InferRequest) -> bool:
    """Whether all outputs go to the host, and into no memory but ours: then they can be cut there."""
    return request.into is None and not request.on_device and not any(output.top_k for output in request.outputs)


@message
class TopK:
    """The best classes of each row of an output, best first: host arrays [rows, n], or [n] where the model has no
    batch dimension.

    `values` are in the output's dtype, `indices` count within the row, taken flat.
    """

    values: Array
    indices: Array


@message
class InferResponse:
    """One answer: the asked-for outputs, by the model's names, in the model's order, as host arrays unless the request
    wants them `on_device`. Of one that went into its caller's memory, only dtype and shape count.

    `classes` has the outputs whose best classes were asked for: an output is there or in `outputs`. `final` is False
    while a decoupled model may still say more.
    """

    outputs: Tensors
    parameters: Mapping[str, ParameterValue] = NOTHING
    final: bool = True
    classes: Mapping[str, TopK] = NOTHING
