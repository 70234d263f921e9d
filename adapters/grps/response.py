"""InferResponse -> bodies of grps' predict: JSON, raw bytes, or documents of a stream.

A predict reply is one of five things: gtensors, the first output as nested lists (return-ndarray), the one element of a
BYTES output as text or as raw bytes, or such elements in gmap. Which one is settled with the request, so that only the
outputs it needs are asked for.
Source: grps v1.1.0, what the Python server prints; streams carry its messages with two spaces of indent.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from tensorgate.adapters.grps.number_text import joined
from tensorgate.adapters.grps.options import MAP_DATATYPES, MapName, mapping_of
from tensorgate.adapters.grps.printing import (
    BYTES_TYPE,
    JSON,
    Printed,
    elements,
    envelope,
    members,
    nested,
    numbers,
    strings,
    success,
)
from tensorgate.adapters.grps.printing import text as printed_text
from tensorgate.adapters.grps.tensors import Array, output_row
from tensorgate.gateway.contract.call import Reply
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelView, OutputRequest
from tensorgate.gateway.contract.errors import EncodingFailed, UnknownOutput
from tensorgate.gateway.contract.tensor import BYTES, DATATYPES, DTYPES, Tensors

Form: TypeAlias = Literal["gtensors", "ndarray", "str_data", "bin_data", "gmap"]

HEADERS: Final[Mapping[str, str]] = MappingProxyType({"Content-Type": JSON})
BYTES_HEADERS: Final[Mapping[str, str]] = MappingProxyType({"Content-Type": BYTES_TYPE})

_FLOAT32: Final = np.dtype(np.float32)


@dataclass(frozen=True, slots=True)
class ReplyForm:
    """What the reply will be, and of which output, or of gmap's entries. `if_single`: gtensors after all, should it not
    be one element.
    """

    form: Form
    output: str = ""
    if_single: bool = False
    stream: bool = False
    entries: Mapping[MapName, Mapping[str, str]] = field(default_factory=dict)

    @property
    def indent(self) -> int:
        return 2 if self.stream else 1


def reply_form(
    view: ModelView, kind: Form, as_ndarray: bool, stream: bool
) -> tuple[ReplyForm, tuple[OutputRequest, ...]]:
    """The form of the reply to a request of this kind, and the outputs to ask the model for (empty: all).

    Raw bytes that the model's YAML names come before return-ndarray, text after it; and before all of them, where it
    names gtensors, these for a request of tensors.
    """
    reply = mapping_of(view).reply
    if reply.gtensors and (kind == "gtensors" or kind == "ndarray"):
        return _of_tensors(view, reply.gtensors, as_ndarray, stream)
    if reply.bin_data and (kind == "bin_data" or not reply.str_data):
        return _of_output(view, "bin_data", reply.bin_data, stream)
    if as_ndarray:
        first = next(iter(view.outputs), "")
        if not (kind == "bin_data" and _texts(view) == [first]):
            return _of_output(view, "ndarray", first, stream)
    if reply.gmap and (kind == "gmap" or not reply.str_data):
        return _of_entries(view, reply.gmap, stream)
    if reply.str_data:
        return _of_output(view, "str_data", reply.str_data, stream)
    if (kind == "str_data" or kind == "bin_data") and len(names := _texts(view)) == 1:
        return ReplyForm(kind, names[0], if_single=True, stream=stream), ()
    return (_STREAMED_GTENSORS if stream else _GTENSORS), ()


def _texts(view: ModelView) -> list[str]:
    return [name for name, spec in view.outputs.items() if spec.dtype == BYTES]


_GTENSORS: Final = ReplyForm("gtensors")
_STREAMED_GTENSORS: Final = ReplyForm("gtensors", stream=True)


def _of_output(view: ModelView, form: Form, output: str, stream: bool) -> tuple[ReplyForm, tuple[OutputRequest, ...]]:
    if output not in view.outputs:
        raise UnknownOutput(output, view.name)
    return ReplyForm(form, output, stream=stream), (OutputRequest(output),)


def _of_tensors(
    view: ModelView, outputs: tuple[str, ...], as_ndarray: bool, stream: bool
) -> tuple[ReplyForm, tuple[OutputRequest, ...]]:
    if as_ndarray:
        return _of_output(view, "ndarray", outputs[0], stream)
    for output in outputs:
        if output not in view.outputs:
            raise UnknownOutput(output, view.name)
    return (_STREAMED_GTENSORS if stream else _GTENSORS), tuple(map(OutputRequest, outputs))


def _of_entries(
    view: ModelView, entries: Mapping[MapName, Mapping[str, str]], stream: bool
) -> tuple[ReplyForm, tuple[OutputRequest, ...]]:
    outputs = dict.fromkeys(output for named in entries.values() for output in named.values())
    for output in outputs:
        if output not in view.outputs:
            raise UnknownOutput(output, view.name)
    return ReplyForm("gmap", stream=stream, entries=entries), tuple(map(OutputRequest, outputs))


def encode_predict(
    answer: InferResponse, question: InferRequest, stream_headers: Mapping[str, str] = BYTES_HEADERS
) -> Reply:
    """One answer -> one reply, or one document of a stream. Raises EncodingFailed for what grps cannot carry."""
    form: ReplyForm = question.wire
    if form.form == "ndarray":
        printed = success("ndarray", _ndarray(given(answer, form), form.indent), form.indent)
    elif form.form == "gmap":
        printed = success("gmap", _gmap(filled(answer, form), form.indent), form.indent)
    elif is_lone(answer, form):
        data = single(form, given(answer, form))
        if form.form == "bin_data" and data:
            return Reply(data, headers=stream_headers if form.stream else BYTES_HEADERS, streamed=form.stream)
        printed = success(form.form, [printed_text(utf8(data, form.output))], form.indent)
    else:
        printed = success("gtensors", _gtensors(answer.outputs, form.indent), form.indent)
    return Reply(printed, headers=stream_headers if form.stream else HEADERS, streamed=form.stream)


def is_lone(answer: InferResponse, form: ReplyForm) -> bool:
    """Whether the reply is the one element of an output, and not gtensors."""
    return bool(form.output) and not (form.if_single and np.size(answer.outputs.get(form.output, ())) != 1)


def given(answer: InferResponse, form: ReplyForm) -> Array:
    """A model may leave an output out; a reply of one output cannot."""
    array: Array | None = answer.outputs.get(form.output)
    if array is None:
        raise EncodingFailed(f"The model gave no output {form.output}.")
    return array


def single(form: ReplyForm, array: Array) -> bytes:
    """The one element of a BYTES output."""
    if array.dtype != BYTES:
        raise EncodingFailed(f"Output {form.output} is {DATATYPES[array.dtype]}, {form.form} carries BYTES.")
    if array.size != 1:
        raise EncodingFailed(f"Output {form.output} has {array.size} elements, {form.form} carries one.")
    data: bytes = array.reshape(1)[0]
    return data


def utf8(data: bytes, output: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise EncodingFailed(f"Output {output} holds bytes that are not UTF-8 text.") from None


def filled(answer: InferResponse, form: ReplyForm) -> dict[MapName, dict[str, Any]]:
    """gmap's maps with what the model gave: bytes, or an array of one number. Raises EncodingFailed."""
    maps: dict[MapName, dict[str, Any]] = {}
    for name, entries in form.entries.items():
        want = DTYPES[MAP_DATATYPES[name]]
        for key, output in entries.items():
            array = answer.outputs.get(output)
            if array is None:
                continue
            if array.dtype != want or array.size != 1:
                got = f"{DATATYPES[array.dtype]} {list(array.shape)}"
                raise EncodingFailed(f"Output {output} is {got}, {name} of gmap carries one {DATATYPES[want]}.")
            value = array.reshape(1)
            maps.setdefault(name, {})[key] = value[0] if want == BYTES else value
            if name == "s_s":
                utf8(value[0], output)
    return maps


def _gmap(maps: Mapping[MapName, Mapping[str, Any]], indent: int) -> Printed:
    printed: dict[str, list[tuple[str, Printed]]] = {
        name: [(json.dumps(key)[1:-1], [_value(name, value)]) for key, value in entries.items()]
        for name, entries in maps.items()
    }
    return members([(name, members(entries, 2, indent)) for name, entries in printed.items()], 1, indent)


def _value(name: MapName, value: Any) -> bytes:
    if name == "s_s":
        return printed_text(value.decode())
    if name == "s_b":
        return b'"%b"' % base64.b64encode(value)
    number = bytes(joined(value, (b"",)))
    return b'"%b"' % number if name == "s_i64" else number


def _ndarray(array: Array, indent: int) -> Printed:
    if array.dtype != _FLOAT32:
        raise EncodingFailed("No float32 tensors in output. Cannot convert to ndarray.")
    return nested(array, 1, indent)


def _gtensors(outputs: Tensors, indent: int) -> Printed:
    if not outputs:
        return [b"{}"]
    tensors = [_tensor(name, array, indent) for name, array in outputs.items()]
    return members([("tensors", elements(tensors, 2, indent))], 1, indent)


def _tensor(name: str, array: Array, indent: int) -> Printed:
    """One tensor; what has its default value (no name, no shape, no elements) is left out."""
    row = output_row(name, array)
    fields: list[tuple[str, Printed]] = [("name", [printed_text(name)])] if name else []
    fields.append(("dtype", [b'"%b"' % row.name.encode()]))
    if array.shape:
        fields.append(("shape", elements([[b"%d" % size] for size in array.shape], 4, indent)))
    if array.size:
        fields.append((row.field, _flat(name, array.reshape(-1), indent)))
    return members(fields, 3, indent)


def _flat(name: str, flat: Array, indent: int) -> Printed:
    if flat.dtype == BYTES:
        return strings([utf8(data, name) for data in flat], 4, indent)
    if flat.dtype == np.float16:
        return numbers(flat.astype(_FLOAT32), 4, indent)
    return numbers(flat, 4, indent, quoted=flat.dtype == np.int64)


# ------------------------------------------------------------------------------------------------------- other answers


def encode_success(answer: Any, question: Any) -> Reply:
    """The envelope of what went well and has nothing to say."""
    return Reply(envelope(200, "OK"), headers=HEADERS)


def encode_ready(answer: bool, question: Any, *, always_200: bool = False) -> Reply:
    """Up or not: 200 or 503."""
    if answer:
        return encode_success(answer, question)
    return Reply(envelope(503, "Service Unavailable"), 200 if always_200 else 503, HEADERS)


def encode_text(text: str) -> Reply:
    """A text in str_data."""
    return Reply(success("str_data", [printed_text(text)]), headers=HEADERS)
