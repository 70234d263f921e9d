"""A request as its caller means it, and a form in which it goes over the wire: what all dialects have in common."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from truth import DTYPES, Arrays, Model, Refused, View
from wire import Message, Reply
from worlds import KEYS

DEFAULT: Final = "serving_default"


@dataclass(frozen=True, repr=False)
class Ask:
    """What a caller wants. `outputs` empty is all, in the order of asking; `classes` of which how many classes."""

    model: Model
    form: str
    tensors: Arrays
    outputs: tuple[str, ...] = ()
    classes: Mapping[str, int] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""
    signature: str = ""
    version: str = ""
    timeout_s: float | None = None
    caller: str = ""
    quirk: str = ""
    genuine: bool = False
    spoil: int = 0
    seed: int = 0

    def __repr__(self) -> str:
        told = {
            name: f"{array.dtype}{list(array.shape)} {array.ravel()[:8].tolist()}"
            for name, array in self.tensors.items()
        }
        facts = ("outputs", "classes", "parameters", "id", "signature", "version", "caller", "quirk", "spoil")
        more = " ".join(f"{name}={getattr(self, name)!r}" for name in facts if getattr(self, name))
        return f"{self.model.name} by {self.form}: {told} {more}"

    @property
    def view(self) -> View:
        return self.model.signatures.get(self.signature or DEFAULT, View())

    @property
    def random(self) -> random.Random:
        """For what does not matter; the same each time."""
        return random.Random(self.seed)


class Unknown(Exception):
    """The contract knows what the answer is, this suite does not."""


@dataclass(frozen=True, slots=True)
class Form:
    """`encode` makes the message. `decode` gives the answers, or raises Refused. `takes` are the datatypes that it can
    carry in, `gives` out. `streams`: any number of answers; else one, and `generators`: from a generator, too.
    """

    name: str
    transport: str
    encode: Callable[[Ask], Message]
    decode: Callable[[Ask, Reply], list[Arrays]]
    takes: frozenset[str]
    gives: frozenset[str]
    streams: bool = False
    generators: bool = False
    selects: bool = False
    flat: bool = False
    """Outputs come without shapes."""
    parameters: bool = False
    dialect: str = "v2"


def _headers(ask: Ask, *more: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    own = tuple(more)
    if ask.caller:
        own += (("authorization", f"Bearer {KEYS[ask.caller]}"),)
    return own


def over_http(ask: Ask, target: str, body: bytes, *more: tuple[str, str]) -> Message:
    return Message("http", target, (body,), headers=_headers(ask, *more), quirk=ask.quirk)


def over_grpc(ask: Ask, target: str, *bodies: Any) -> Message:
    made = tuple(each.SerializeToString(deterministic=True) for each in bodies)
    return Message(
        "grpc", target, made, headers=_headers(ask), quirk=ask.quirk, genuine=ask.genuine, timeout_s=ask.timeout_s
    )


def _texts(array: Any) -> list[Any]:
    return [text.decode() for text in array.ravel()]


def leaves_of(array: Any) -> list[Any]:
    flat: list[Any] = _texts(array) if array.dtype == np.object_ else array.ravel().tolist()
    return flat


def nested_of(array: Any) -> Any:
    if array.dtype == np.object_:
        flat = np.empty(array.size, object)
        flat[:] = _texts(array)
        return flat.reshape(array.shape).tolist()
    return array.tolist()


def raw_bytes(array: Any) -> bytes:
    if array.dtype == np.object_:
        return b"".join(struct.pack("<I", len(text)) + text for text in array.ravel())
    return bytes(np.ascontiguousarray(array).tobytes())


def from_raw(data: bytes, datatype: str, shape: Sequence[int]) -> Any:
    if datatype != "BYTES":
        return np.frombuffer(data, DTYPES[datatype]).reshape(shape)
    texts = []
    while data:
        size = int.from_bytes(data[:4], "little")
        texts.append(data[4 : 4 + size])
        data = data[4 + size :]
    flat = np.empty(len(texts), np.object_)
    flat[:] = texts
    return flat.reshape(shape)


def from_json(leaves: Any, datatype: str, shape: Sequence[int]) -> Any:
    if datatype == "BYTES":
        flat = np.empty(len(leaves), np.object_)
        flat[:] = [leaf.encode() for leaf in leaves]
        return flat.reshape(shape)
    with np.errstate(all="ignore"):
        return np.array(leaves, DTYPES[datatype]).reshape(shape)


def given(ask: Ask) -> list[tuple[str, str, Any]]:
    """In the model's order or another."""
    found = [
        (each.name, each.datatype, ask.tensors[each.name]) for each in ask.model.inputs if each.name in ask.tensors
    ]
    if ask.seed % 3 == 1:
        found.reverse()
    return found


def given_in_order(ask: Ask) -> list[tuple[str, str, Any]]:
    return [(each.name, each.datatype, ask.tensors[each.name]) for each in ask.model.inputs if each.name in ask.tensors]


def check_json(reply: Reply) -> None:
    """An error as this dialect tells it."""
    if reply.status != 200:
        document = json.loads(reply.body)
        raise Refused(f"{reply.status} {document['error']}")


def check_grpc(reply: Reply) -> None:
    if reply.status != 0:
        raise Refused(f"{reply.status} {reply.header('grpc-message')}")


def read_anything(ask: Ask, reply: Reply) -> list[Arrays]:
    raise Unknown("only compared")


def plain_json(document: Any) -> bytes:
    return json.dumps(document).encode()


def from_nested(value: Any, datatype: str) -> Any:
    shape = []
    level = value
    while isinstance(level, list):
        shape.append(len(level))
        if not level:
            break
        level = level[0]
    return from_json(flat_of(value), datatype, shape)


def flat_of(value: Any) -> list[Any]:
    return [leaf for each in value for leaf in flat_of(each)] if isinstance(value, list) else [value]
