"""JSON and server-sent events of generate_stream from the client's side, V2's only stream over HTTP: InferRequest ->
body, events -> answers.

It carries values without shapes: a server fills what its model declares. So a request whose shape would become another
one is refused here, and an answer has the shape that its declaration leaves: the innermost variable dimension is as
long as needed, any other one is 1. Source: Triton's generate extension.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Final

import orjson

from tensorgate.adapters.json import body as json_body
from tensorgate.adapters.json.texts import array_of
from tensorgate.adapters.open_inference.generate import bare_value, filled_shape
from tensorgate.adapters.open_inference.response import dumps
from tensorgate.adapters.upstream import broken, http_failure, json_object, whole
from tensorgate.gateway.contract.call import Reply
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse
from tensorgate.gateway.contract.errors import EncodingFailed, InvalidArgument, ModelFailed
from tensorgate.gateway.contract.tensor import BYTES, Array, ParameterValue, Tensors, TensorSpec
from tensorgate.gateway.contract.upstream import Ask, Description

_HEADERS: Final = {"Content-Type": "application/json", "Accept": "text/event-stream"}
_ABOUT: Final = frozenset({"id", "model_name", "model_version"})
_PARAMETERS: Final = "parameters"
_ERROR: Final = "error"
_EVENT: Final = "generate event"


def encode_generate(path: str, tensors: Tensors, request: InferRequest, description: Description) -> Ask:
    """A question with any number of answers. Raises EncodingFailed for what the extension cannot carry."""
    if request.sequence is not None:
        raise EncodingFailed("a request of a sequence cannot be streamed over HTTP")
    specs = {spec.name: spec for spec in description.inputs}
    document: dict[str, Any] = {"id": request.id} if request.id else {}
    for name, array in tensors.items():
        document[name] = orjson.Fragment(_value(name, array, specs.get(name)))
    if request.parameters:
        for name in request.parameters:
            if name in specs:
                raise EncodingFailed(f"a parameter has the name of the input '{name}'")
        document[_PARAMETERS] = dict(request.parameters)
    return Ask(f"{path}/generate_stream", (dumps(document),), headers=_HEADERS, cut=Events)


def _value(name: str, array: Array, spec: TensorSpec | None) -> bytes:
    if name == _PARAMETERS:
        raise EncodingFailed(f"an input cannot be called '{name}' in a stream over HTTP")
    if spec is not None and not _is_filled(array.shape, array.size, spec):
        raise EncodingFailed(
            f"input '{name}' of shape {list(array.shape)} cannot be streamed over HTTP, where values have no shape"
        )
    try:
        return bare_value(name, array)
    except EncodingFailed:
        raise EncodingFailed(
            f"input '{name}' is {'no text' if array.dtype == BYTES else array.dtype}, which JSON cannot carry"
        ) from None


def _is_filled(shape: tuple[int, ...], elements: int, spec: TensorSpec) -> bool:
    """Whether a server makes this shape of so many values."""
    try:
        return filled_shape(spec, elements) == shape
    except InvalidArgument:
        return False


def decode_event(reply: Reply, description: Description) -> InferResponse:
    """One event, or what the server said in place of a stream. The end of the stream is the only word after the last.

    Raises GatewayError.
    """
    if reply.http_status != 200:
        raise http_failure(_unwrapped(reply))
    document = json_object(whole(reply), _EVENT, not_json=_EVENT)
    specs = {spec.name: spec for spec in description.outputs}
    if isinstance(document.get(_ERROR), str) and _ERROR not in specs:
        raise ModelFailed(document[_ERROR])
    outputs: dict[str, Array] = {}
    parameters: dict[str, ParameterValue] = {}
    for name, value in document.items():
        if name in specs:
            outputs[name] = _array(value, specs[name])
        elif name not in _ABOUT and isinstance(value, (bool, int, float, str)):
            parameters[name] = value
    return InferResponse(outputs, parameters, final=False)


def _unwrapped(reply: Reply) -> Reply:
    """A model's failure is an event, also where it comes first, with a status that tells its kind."""
    events = Events()
    body = bytes(whole(reply))
    found = [*events.feed(body), *events.end()]
    return replace(reply, body=found[0]) if found else reply


def _array(value: Any, spec: TensorSpec) -> Array:
    values = value if isinstance(value, list) else [value]
    try:
        shape = filled_shape(spec, len(values))
        if spec.dtype == BYTES:
            return array_of([text.encode() for text in values]).reshape(shape)
        return json_body.numbers(values, spec.dtype).reshape(shape)
    except (InvalidArgument, AttributeError, ValueError, json_body.WrongLeaf):
        raise broken(_EVENT) from None


# --------------------------------------------------------------------------------------------------- server-sent events

_END_OF_LINE: Final = re.compile(rb"\r\n|\n|\r")
_MARK: Final = b"\xef\xbb\xbf"


class Events:
    """The `Cutter` of server-sent events: a message is the data of one event.

    Lines end as CR LF, LF or CR; the data of an event may have several. Names and numbers of events, and comments, say
    nothing of a tensor. Source: the HTML standard, "server-sent events".
    """

    def __init__(self) -> None:
        self._line: list[bytes] = []
        self._data: list[bytes] = []
        self._is_first = True

    def feed(self, data: bytes) -> list[bytes]:
        self._line.append(data)
        if b"\n" not in data and b"\r" not in data:
            return []
        text = b"".join(self._line)
        if text.endswith(b"\r"):  # half of a line's end, perhaps
            text, kept = text[:-1], b"\r"
        else:
            kept = b""
        *lines, rest = _END_OF_LINE.split(text)
        self._line = [rest + kept]
        return self._events(lines)

    def end(self) -> list[bytes]:
        """What is left: an event that nothing ends is not whole, but may be all that is lacking is its end."""
        events = self._events(_END_OF_LINE.split(b"".join(self._line)))
        return [*events, *self._events([b""])]

    def _events(self, lines: list[bytes]) -> list[bytes]:
        events: list[bytes] = []
        for line in lines:
            if self._is_first:
                line, self._is_first = line.removeprefix(_MARK), False
            if not line:
                if self._data:
                    events.append(b"\n".join(self._data))
                    self._data = []
                continue
            name, _, value = line.partition(b":")
            if name == b"data":
                self._data.append(value.removeprefix(b" "))
        return events
