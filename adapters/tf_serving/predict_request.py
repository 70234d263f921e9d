"""JSON bodies of `:predict` -> InferRequest. {"instances": [...]} is the row format: one element per row, a value or
{name: value}. {"inputs": ...} is the columnar format: one tensor, or {name: tensor}. Contract: TensorFlow Serving's
REST API.

Order of checks, which clients can see: syntax, top level, signature_name, model, signature, instances or inputs,
tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

import numpy as np

from tensorgate.adapters.json.body import ARRAY, length, members
from tensorgate.adapters.json.cuts import Envelope, lone_array
from tensorgate.adapters.tf_serving.example_proto import example_inputs
from tensorgate.adapters.tf_serving.json_text import show
from tensorgate.adapters.tf_serving.model_spec import outputs_of, resolve_model, signature_of
from tensorgate.adapters.tf_serving.request_body import MAX_DEPTH, plain_body, read_object
from tensorgate.adapters.tf_serving.tensors import (
    MAX_RANK,
    READ_AS_THEY_ARE,
    RankTooLarge,
    Shape,
    Tensor,
    is_map,
    make_tensor,
    read_array,
    read_tensor,
    walk,
)
from tensorgate.gateway.contract.call import Buffer, Call, MustOffload
from tensorgate.gateway.contract.canonical import InferRequest, ModelView
from tensorgate.gateway.contract.dialect import INLINE_DECODE_MAX_JSON_BYTES, INLINE_DECODE_MAX_TENSOR_BYTES, Resolve
from tensorgate.gateway.contract.errors import ErrorReason, GatewayError, InvalidArgument, Unsupported
from tensorgate.gateway.contract.shortcuts import is_taken
from tensorgate.gateway.contract.tensor import BYTES, DEFAULT_SIGNATURE, Signature, Tensors

_ROWS: Final = "instances"
_ENVELOPE: Final = Envelope("signature_name", _ROWS, "inputs")
_STACKS: Final = is_taken("stacked_columns")
_AT_ONCE: Final = 1 << 16
"""Rows of which objects are made at a time."""
_LONG_VALUE_BYTES: Final = 1 << 10
_FEW: Final = 8
"""As many arrays may each look through the whole body; more would make the work quadratic."""

Stacked: TypeAlias = Callable[[Any, bytes, dict[str, np.dtype[Any]]], Tensors | None]
"""Rows, the body where arrays may look at it, the dtypes -> a tensor for each input, None where only the exact way can
tell."""
_SEVERAL_ROWS: Final = (
    "instances is a plain list, but expecting list of objects as multiple input tensors required as per tensorinfo_map"
)
_SEVERAL_COLUMNS: Final = (
    "inputs is a plain value/list, but expecting an object as multiple input tensors required as per tensorinfo_map"
)


class PredictForm(NamedTuple):
    """What the encoder needs to answer in kind: whose names to use, and the row or the columnar format."""

    signature: Signature
    rows: bool


def decode_predict(call: Call, resolve: Resolve) -> InferRequest:
    """JSON body -> request, with inputs by the model's names and of the dtypes it declares. Raises MustOffload beside
    what the contract says.
    """
    if len(call.body) > INLINE_DECODE_MAX_TENSOR_BYTES and not call.in_thread:
        raise MustOffload
    body = plain_body(call) if "content-encoding" in call.headers else call.body
    request = _lone_tensor(call, resolve, body)
    if request is not None:
        return request
    if len(body) > INLINE_DECODE_MAX_JSON_BYTES and not call.in_thread:
        raise MustOffload
    return _document(call, resolve, bytes(body))


def _lone_tensor(call: Call, resolve: Resolve, body: Buffer) -> InferRequest | None:
    """A request of one plain tensor and no more, read in place. None for all else, and wherever anything is wrong: the
    other way then finds what that is in the order of the contract.
    """
    opened = _ENVELOPE.open(body)
    if opened is None:
        return None
    try:
        view = resolve_model(call, resolve)
        signature = signature_of(view, opened.text or DEFAULT_SIGNATURE)
    except GatewayError:
        return None
    if len(signature.inputs) != 1:
        return None
    [(name, spec)] = signature.inputs.items()
    if spec.dtype == BYTES:
        if len(body) > INLINE_DECODE_MAX_JSON_BYTES and not call.in_thread:
            raise MustOffload
    elif spec.dtype not in READ_AS_THEY_ARE:
        return None
    tensor = lone_array(body, opened, spec.dtype, call.max_json_depth or MAX_DEPTH)
    return None if tensor is None else _request(call, view, signature, {name: tensor}, opened.key == _ROWS)


def _document(call: Call, resolve: Resolve, body: bytes) -> InferRequest:
    root = read_object(call, body)
    signature_name = root.get("signature_name", "")
    if not isinstance(signature_name, str):
        _refuse(root, "not formatted correctly. 'signature_name' key must be a string value.")
    view = resolve_model(call, resolve)
    signature = signature_of(view, signature_name or DEFAULT_SIGNATURE)
    inputs, rows = _inputs(root, body, _wanted(root, signature))
    return _request(call, view, signature, inputs, rows)


def _request(call: Call, view: ModelView, signature: Signature, inputs: Tensors, rows: bool) -> InferRequest:
    """`inputs` by the caller's names."""
    if signature.features is None:
        inputs = {signature.inputs[name].name: tensor for name, tensor in inputs.items()}
    else:
        inputs = example_inputs(signature, inputs["inputs"], in_thread=call.in_thread)
    return InferRequest(
        view,
        inputs,
        outputs=outputs_of(view, signature),
        signature=signature.name,
        deadline=call.deadline,
        wire=PredictForm(signature, rows),
    )


def _wanted(root: Any, signature: Signature) -> dict[str, np.dtype[Any]]:
    """The dtypes of all inputs but those that a request may leave out, and this one does."""
    specs = signature.inputs
    if any(spec.optional for spec in specs.values()):
        found = root.get("inputs", root.get("instances"))
        first = found[0] if isinstance(found, ARRAY) and len(found) else found
        named = {name for name, _ in members(first)} if is_map(first) else set()
        specs = {name: spec for name, spec in specs.items() if not spec.optional or name in named}
    return {name: spec.dtype for name, spec in specs.items()}


def _inputs(root: Any, body: bytes, dtypes: dict[str, np.dtype[Any]]) -> tuple[Tensors, bool]:
    """Tensors by the caller's names, and whether they came in the row format."""
    if "instances" in root:
        if "inputs" in root:
            _refuse(root, "Not formatted correctly expecting only one of 'inputs' or 'instances' keys to exist ")
        return _rows(root, body, dtypes), True
    if "inputs" in root:
        return _columns(root["inputs"], body, dtypes), False
    raise InvalidArgument("Missing 'inputs' or 'instances' key")


def _refuse(value: Any, objection: str) -> NoReturn:
    raise InvalidArgument(f"JSON Value: {show(value)} {objection}")


# ----------------------------------------------------------------------------------------------------- columnar format


def _columns(value: Any, body: bytes, dtypes: dict[str, np.dtype[Any]]) -> Tensors:
    """A tensor or a map of tensors, where names that the signature lacks are ignored."""
    if is_map(value):
        return {name: read_tensor(name, _member(value, name), dtype, body) for name, dtype in dtypes.items()}
    if len(dtypes) != 1:
        raise InvalidArgument(_SEVERAL_COLUMNS)
    return {name: read_tensor(name, value, dtype, body) for name, dtype in dtypes.items()}


def _member(value: Any, name: str) -> Any:
    try:
        return value[name]
    except KeyError:
        raise InvalidArgument(f"Missing named input: {name} in 'inputs' object.", ErrorReason.MISSING_INPUT) from None


# ---------------------------------------------------------------------------------------------------------- row format


def _rows(root: Any, body: bytes, dtypes: dict[str, np.dtype[Any]]) -> Tensors:
    instances = root["instances"]
    if not isinstance(instances, ARRAY):
        _refuse(root, "Expecting 'instances' to be an list/array")
    if not len(instances):
        _refuse(root, "No values in 'instances' array")
    are_many = _STACKS and length(instances) > _AT_ONCE
    if is_map(instances[0]):
        pays = _STACKS and not are_many and _is_worth_stacking(instances, body, dtypes)
        columns = _stacked_columns(instances, body, dtypes) if pays else None
        return columns or _walk_rows(instances, dtypes, _stacked_columns if are_many else None, _maps)
    if len(dtypes) != 1:
        raise InvalidArgument(_SEVERAL_ROWS)
    [(name, dtype)] = dtypes.items()
    tensor = read_array(instances, dtype, body)
    if tensor is not None:
        return {name: tensor}
    return _walk_rows(instances, dtypes, _stacked_values if are_many else None, _values)


def _is_worth_stacking(instances: Any, body: bytes, dtypes: dict[str, np.dtype[Any]]) -> bool:
    """Of scalars, and of long arrays: to make an array of each short one takes longer than to walk it."""
    if len(body) >= _LONG_VALUE_BYTES * length(instances) * len(dtypes):
        return True
    return not any(isinstance(value, ARRAY) for _, value in members(instances[0]))


def _stacked_columns(instances: Any, body: bytes, dtypes: dict[str, np.dtype[Any]]) -> Tensors | None:
    """Rows that are maps, read column by column: the fast way, None where only the exact one can tell."""
    rows = list(instances)
    if not all(is_map(row) and len(row) == len(dtypes) and all(name in row for name in dtypes) for row in rows):
        return None
    text = body if len(rows) * len(dtypes) <= _FEW else b""
    columns = {name: _stack([row[name] for row in rows], dtype, text) for name, dtype in dtypes.items()}
    return columns if all(column is not None for column in columns.values()) else None


def _stacked_values(instances: Any, body: bytes, dtypes: dict[str, np.dtype[Any]]) -> Tensors | None:
    """Rows that are plain values, read as one column; None where only the exact way can tell."""
    [(name, dtype)] = dtypes.items()
    tensor = _stack(instances, dtype, body)
    return None if tensor is None else {name: tensor}


def _stack(column: list[Any], dtype: np.dtype[Any], body: bytes) -> Tensor | None:
    """One input's value of every row -> [rows, *shape of a value], None where they do not fit together."""
    if not isinstance(column[0], ARRAY):
        return read_array(column, dtype, b"")
    if not all(isinstance(value, ARRAY) for value in column):
        return None
    slices = [read_array(value, dtype, body) for value in column]
    first = slices[0]
    if first is None or first.ndim == MAX_RANK or any(s is None or s.shape != first.shape for s in slices):
        return None
    return np.stack(slices)  # type: ignore[arg-type]


class _Slice:
    """One input's value in one row, and the words that open an objection to it."""

    __slots__ = ("name", "place", "value")

    def __init__(self, name: str, value: Any, place: str) -> None:
        self.name = name
        self.value = value
        self.place = place

    def refuse(self, objection: str) -> NoReturn:
        raise InvalidArgument(f"Failed to process element: {self.place} of 'instances' list. Error: {objection}")


def _values(instances: Any, dtypes: dict[str, np.dtype[Any]], start: int) -> Iterator[_Slice]:
    """The slices of rows that are plain values, from one row on."""
    [name] = dtypes
    for index, value in enumerate(islice(instances, start, None), start):
        if is_map(value):
            raise InvalidArgument(f"Expecting value/list but got object at item {index} of input list")
        yield _Slice(name, value, str(index))


def _maps(instances: Any, dtypes: dict[str, np.dtype[Any]], start: int) -> Iterator[_Slice]:
    """The slices of rows that are maps, from one row on; each must name all inputs of the signature and nothing else. A
    name that comes twice gives two slices (a quirk).
    """
    for index, row in enumerate(islice(instances, start, None), start):
        if not is_map(row):
            raise InvalidArgument(f"Expecting object but got list at item {index} of input list")
        names = dict.fromkeys(row.keys())
        for name, value in members(row):
            one = _Slice(name, value, f"{index} key: {name}")
            if name not in dtypes:
                one.refuse(f"INVALID_ARGUMENT: JSON object: does not have named input: {name}")
            yield one
        if names.keys() != dtypes.keys():
            raise InvalidArgument(
                f"Failed to process element: {index} of 'instances' list. JSON object: {show(row)}"
                f" keys must be equal to: {','.join(sorted(dtypes))}"
            )


def _walk_rows(
    instances: Any, dtypes: dict[str, np.dtype[Any]], stacked: Stacked | None, slices: Callable[..., Iterable[_Slice]]
) -> Tensors:
    """The exact way: slice by slice, in the order of the document. Where rows are many, `stacked` reads thousands at a
    time as far as they fit together; the exact way begins where they do not.
    """
    columns = {name: _Column(dtype) for name, dtype in dtypes.items()}
    start = 0
    if stacked is not None:
        rows = iter(instances)
        while some := list(islice(rows, _AT_ONCE)):
            parts = stacked(some, b"", dtypes)
            if parts is None or not all(columns[name].fits(part) for name, part in parts.items()):
                break
            for name, part in parts.items():
                columns[name].add_rows(part)
            start += len(some)
    for one in slices(instances, dtypes, start):
        columns[one.name].add(one)
    return {name: column.tensor(length(instances)) for name, column in columns.items()}


class _Column:
    """One input, slice after slice: each has the first one's number of elements, and its shape."""

    __slots__ = ("dtype", "leaves", "parts", "shape", "slices")

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self.shape: Shape = ()
        self.leaves: list[Any] = []
        self.parts: list[Tensor] = []
        self.slices = 0

    def fits(self, part: Tensor) -> bool:
        """Whether the slices of many rows have the shape of those before."""
        return not self.slices or part.shape[1:] == self.shape

    def add_rows(self, part: Tensor) -> None:
        """Slices of many rows, before any single one."""
        self.parts.append(part)
        self.shape = part.shape[1:]
        self.slices += len(part)

    def add(self, one: _Slice) -> None:
        shape, leaves = self._walk(one)
        if not self.slices:
            self.shape = shape
        elif shape != self.shape:
            self._refuse_shape(one, shape, len(leaves))
        self.leaves += leaves
        self.slices += 1

    def tensor(self, rows: int) -> Tensor:
        """The first slices, one for each row."""
        left = rows - sum(map(len, self.parts))
        leaves = self.leaves if self.slices == rows else self.leaves[: left * math.prod(self.shape)]
        rest = make_tensor(leaves, (left, *self.shape), self.dtype)
        return np.concatenate((*self.parts, rest)) if self.parts else rest

    def _walk(self, one: _Slice) -> tuple[Shape, list[Any]]:
        try:
            shape, leaves = walk(one.name, one.value, self.dtype)
        except RankTooLarge:
            raise
        except InvalidArgument as error:
            one.refuse(f"INVALID_ARGUMENT: {error.text}")
        except Unsupported as error:
            one.refuse(f"UNIMPLEMENTED: {error.text}")
        if len(shape) == MAX_RANK:  # the rows are one more dimension
            raise RankTooLarge(f"tensor parsing error: {one.name}")
        return shape, leaves

    def _refuse_shape(self, one: _Slice, shape: Shape, size: int) -> NoReturn:
        first_size = math.prod(self.shape)
        if size != first_size:
            one.refuse(f"INVALID_ARGUMENT: Expecting tensor size: {first_size} but got: {size}")
        one.refuse(f"INVALID_ARGUMENT: Expecting shape {_bracketed(self.shape)} but got: {_bracketed(shape)}")


def _bracketed(shape: Shape) -> str:
    return f"[{','.join(map(str, shape))}]"
