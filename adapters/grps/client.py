"""GrpsMessage in JSON from the client's side, POST /grps/v1/infer/predict: InferRequest -> body, body -> InferResponse.
Contract: grps v1.1.0; the gRPC client shares what is not JSON.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

import numpy as np
import orjson

from tensorgate.adapters.grps.tensors import BY_FIELD, NUMBERS, GrpsTensor, array_of, row_of
from tensorgate.adapters.json import texts
from tensorgate.adapters.upstream import broken, failure, http_failure, whole
from tensorgate.gateway.contract.call import Reply
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse
from tensorgate.gateway.contract.errors import Code, EncodingFailed, GatewayError, InvalidArgument
from tensorgate.gateway.contract.tensor import BYTES, DATATYPES, DTYPES, Array, Tensors
from tensorgate.gateway.contract.upstream import Ask, Client, Description, UpstreamModel

_ROOT: Final = "/grps/v1"
_HEADERS: Final = {"Content-Type": "application/json"}
_EXACT: Final = 2.0**53
_CODES: Final = {
    400: Code.INVALID_ARGUMENT,
    404: Code.NOT_FOUND,
    503: Code.UNAVAILABLE,
}
"""The protocol's own; it says 500 of whatever else goes wrong."""


class GrpsClient(Client):
    """What the `Client` of grps servers is over both transports: the protocol does not describe a model's tensors."""

    streams: Final = "server"
    platform: Final = "grps"

    def __init__(self, model: UpstreamModel) -> None:
        self._name = model.name

    @property
    def aliases(self) -> tuple[str, ...]:
        """Metadata are asked by the name before the version."""
        return tuple(filter(None, [self._name.rpartition("-")[0]]))

    @abstractmethod
    def decode(self, reply: Reply, description: Description) -> InferResponse: ...

    def decode_part(self, reply: Reply, description: Description) -> InferResponse:
        """An answer of a stream, whose end is the only word after its last answer."""
        return InferResponse(self.decode(reply, description).outputs, final=False)


class GrpsHttpClient(GrpsClient):
    """The `Client` of grps servers over HTTP."""

    transport: Final = "http"

    def __init__(self, model: UpstreamModel) -> None:
        super().__init__(model)
        self._path = f"{_ROOT}/infer/predict?model={quote(model_name(model), safe='')}"

    def probe(self) -> Ask:
        return Ask(f"{_ROOT}/health/live", method="GET")

    def is_ready(self, reply: Reply) -> bool:
        return reply.http_status == 200

    def encode(
        self, tensors: Tensors, outputs: Sequence[str], request: InferRequest, description: Description, *, stream: bool
    ) -> Ask:
        written = [_written(name, array) for name, array in tensors.items()]
        body = orjson.dumps({"gtensors": {"tensors": written}}, option=orjson.OPT_SERIALIZE_NUMPY)
        if stream:
            return Ask(f"{self._path}&streaming=true", (body,), headers=_HEADERS, cut=Documents)
        return Ask(self._path, (body,), headers=_HEADERS)

    def decode(self, reply: Reply, description: Description) -> InferResponse:
        try:
            answer = orjson.loads(whole(reply))
            status = answer.get("status") or {}
            code, text = int(status.get("code", 200)), str(status.get("msg", ""))
        except (ValueError, TypeError, AttributeError):
            if reply.http_status != 200:
                raise http_failure(reply) from None  # a proxy's, or that there was none in time
            raise broken("grps message") from None
        if code != 200 or reply.http_status != 200:
            raise failed(code if code != 200 else reply.http_status, text)
        try:
            tensors = answer["gtensors"].get("tensors", ())
            return named([_read(item) for item in tensors], description)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            raise broken("grps message with tensors") from None


def model_name(model: UpstreamModel) -> str:
    """As grps names it: name and version as one word."""
    return model.name if model.version is None else f"{model.name}-{model.version}"


def failed(code: int, text: str) -> GatewayError:
    """What a status says."""
    return failure(_CODES.get(code, Code.INTERNAL), text or f"status {code}")


def named(tensors: Sequence[GrpsTensor] | None, description: Description) -> InferResponse:
    """Tensors of an answer by name; those without names in the model's order. Raises ModelFailed."""
    if tensors is None:
        raise broken("grps message with tensors")
    names = [spec.name for spec in description.outputs]
    try:
        arrays = [_array(tensor) for tensor in tensors]
    except InvalidArgument as error:
        raise broken(f"grps message: {error}") from None
    if len(arrays) == len(names) and not any(tensor.name for tensor in tensors):
        return InferResponse(dict(zip(names, arrays, strict=True)))
    return InferResponse({tensor.name: array for tensor, array in zip(tensors, arrays, strict=True)})


def _array(tensor: GrpsTensor) -> Array:
    """An empty tensor has no elements to be checked."""
    if 0 in tensor.shape and tensor.dtype:
        row = next(row for row in BY_FIELD.values() if row.number == tensor.dtype)
        return np.empty(tensor.shape, DTYPES[row.datatype])
    return array_of(tensor)


def _written(name: str, array: Array) -> dict[str, Any]:
    row = row_of(array)
    if row is None:
        raise EncodingFailed(f"input {name} is {DATATYPES[array.dtype]}, for which grps has no dtype")
    flat: Any = np.ascontiguousarray(array).reshape(-1)
    if array.dtype == BYTES:
        try:
            flat = [text.decode() for text in flat]
        except UnicodeDecodeError:
            raise EncodingFailed(f"input {name} holds bytes that are not UTF-8 text") from None
    elif array.dtype.kind == "f" and not np.isfinite(flat).all():
        flat = [value if np.isfinite(value) else _words(value) for value in flat.astype(np.float64).tolist()]
    elif array.dtype == np.float16:
        flat = flat.astype(np.float32)
    return {"name": name, "dtype": row.name, "shape": array.shape, row.field: flat}


def _words(value: float) -> str:
    return "NaN" if np.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _read(item: Any) -> GrpsTensor:
    """Numbers may come as texts: large integers do, and what is not finite."""
    data: dict[str, Array] = {}
    for field, row in BY_FIELD.items():
        if field not in item:
            continue
        values = item[field]
        if row.datatype == "BYTES":
            data[field] = texts.array_of([text.encode() for text in values])
        elif row.datatype.startswith("FP"):
            data[field] = np.array([float(value) for value in values], DTYPES[row.datatype])
        else:
            data[field] = np.array([_whole(value) for value in values], DTYPES[row.datatype])
    dtype = item.get("dtype", 0)
    number = dtype if isinstance(dtype, int) else NUMBERS[dtype]
    return GrpsTensor(item.get("name", ""), number, tuple(int(size) for size in item.get("shape", ())), data)


def _whole(value: Any) -> int:
    """1, 1.0 and "1" are the same number; one with a fraction, or rounded by its reader, is none. Raises ValueError."""
    if isinstance(value, float) and not (value.is_integer() and abs(value) <= _EXACT):
        raise ValueError(value)
    return int(value)


# -------------------------------------------------------------------------------------- the ends of a stream's messages

_OUTSIDE: Final = re.compile(rb'["{}]')
_INSIDE: Final = re.compile(rb'["\\]')
_BEGIN: Final = re.compile(rb"[^ \t\r\n]")


class Documents:
    """The `Cutter` of a grps server's stream: JSON documents that follow one another without anything between them. A
    message is one object; what is no object is a message as it is, which nobody takes for one.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._depth = 0
        self._in_text = False
        self._skips = False

    def feed(self, data: bytes) -> list[bytes]:
        found: list[bytes] = []
        begin = at = 0
        while True:
            if not self._depth and not self._pieces:
                first = _BEGIN.search(data, at)
                if first is None:
                    return found
                begin = at = first.start()
                if first[0] != b"{":
                    return [*found, data[at:]]
            if self._skips and at < len(data):
                self._skips, at = False, at + 1
            mark = (_INSIDE if self._in_text else _OUTSIDE).search(data, at)
            if mark is None:
                break
            at = mark.end()
            if self._took(mark[0]):
                self._pieces.append(data[begin:at])
                found += self.end()
        if begin < len(data):
            self._pieces.append(data[begin:])
        return found

    def end(self) -> list[bytes]:
        """What has begun."""
        pieces, self._pieces = self._pieces, []
        return [b"".join(pieces)] if pieces else []

    def _took(self, mark: bytes) -> bool:
        """Whether a document ends with this."""
        if mark == b'"':
            self._in_text = not self._in_text
        elif mark == b"\\":
            self._skips = True
        elif mark == b"{":
            self._depth += 1
        else:
            self._depth -= 1
            return self._depth <= 0
        return False
