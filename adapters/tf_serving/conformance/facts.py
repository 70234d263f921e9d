"""What is asked of a server first: what its models take and give. It lists none: they are named, or known."""

from __future__ import annotations

import json
import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from google.protobuf.message import DecodeError

from tensorgate.adapters.conformance.case import Finding, FoundServer, WireReply, WireRequest
from tensorgate.adapters.conformance.http_calls import get, post
from tensorgate.adapters.conformance.plain import plain_message
from tensorgate.adapters.protobuf.messages import message
from tensorgate.adapters.tf_serving.conformance.calls import (
    NUMBERS,
    call,
    model_spec,
    nested,
    predict_request,
    request,
    tensor,
)
from tensorgate.adapters.tf_serving.conformance.known_models import KNOWN

MAX_ZEROS: Final = 1 << 20
"""Elements of an input; larger ones are not sent."""
Asking = Generator[WireRequest, WireReply, Any]
_NAMES: Final = {number: name for name, number in NUMBERS.items()}


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """A tensor of a signature: its type, and its shape with -1 where it varies, None where its rank does, too."""

    dtype: str
    shape: tuple[int, ...] | None

    @property
    def zeros(self) -> tuple[tuple[int, ...], tuple[Any, ...]]:
        """(shape, values) of one row."""
        shape = tuple(1 if size < 0 else size for size in ((-1,) if self.shape is None else self.shape))
        zero: Any = {"DT_STRING": b"", "DT_BOOL": False}.get(self.dtype, 0)
        return shape, (zero,) * math.prod(shape)


@dataclass(frozen=True, slots=True)
class TfModelFacts:
    """A model as its metadata says it is, by its default signature."""

    name: str
    version: str
    inputs: Mapping[str, TensorFacts]
    outputs: Mapping[str, TensorFacts]
    takes_zeros: bool = False

    @property
    def path(self) -> str:
        return f"/v1/models/{quote(self.name, safe='')}"

    @property
    def zeros_in_json(self) -> dict[str, Any]:
        """A tensor for each input, as nested lists."""
        found = {}
        for name, each in self.inputs.items():
            shape, values = each.zeros
            found[name] = nested(["" if value == b"" else value for value in values], shape)
        return found

    @property
    def zeros_in_proto(self) -> dict[str, Any]:
        return {name: tensor(each.dtype, *each.zeros) for name, each in self.inputs.items()}


def find(transports: Sequence[str], named: Sequence[str]) -> Finding:
    """Ask for the metadata of each model that is named; without names, of those that --repository writes."""
    models, notes = [], []
    for name in named or KNOWN:
        facts = yield from (_over_http(name) if "http" in transports else _over_grpc(name))
        if facts is None:
            if named:
                notes.append(f"{name}: its metadata could not be had, or its tensors cannot be asked for")
            continue
        models.append(facts)
        if not facts.takes_zeros and named:
            notes.append(f"{name}: takes no zeros, so only its metadata was asked")
    if not named and len(models) < len(KNOWN):
        there = f"{len(models)} of the {len(KNOWN)} models that --repository writes are there"
        notes.append(f"{there}; ask about others with --model")
    return FoundServer("", models, notes)


def _over_http(name: str) -> Asking:
    asked, _ = get(f"/v1/models/{quote(name, safe='')}/metadata")
    reply = yield asked
    try:
        document = json.loads(reply.body)
        signature = document["metadata"]["signature_def"]["signature_def"]["serving_default"]
        version = document["model_spec"]["version"]
        facts = _facts(name, version, signature, lambda dtype: str(dtype))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    if facts is None:
        return None
    asked, _ = post(f"{facts.path}:predict", {"inputs": facts.zeros_in_json})
    reply = yield asked
    return _with_zeros(facts, takes_zeros=reply.status == 200)


def _over_grpc(name: str) -> Asking:
    given = request("GetModelMetadataRequest", metadata_field=["signature_def"], **model_spec(name))
    asked, _ = call("GetModelMetadata", given)
    reply = yield asked
    try:
        found = message("tensorflow.serving.GetModelMetadataResponse").FromString(reply.body)
        signatures = message("tensorflow.serving.SignatureDefMap").FromString(found.metadata["signature_def"].value)
        signature = plain_message(signatures)["signature_def"]["serving_default"]
        version = str(found.model_spec.version.value)
        facts = _facts(name, version, signature, lambda dtype: _NAMES[dtype])
    except (DecodeError, KeyError):
        return None
    if facts is None:
        return None
    asked, _ = call("Predict", predict_request(name, facts.zeros_in_proto))
    reply = yield asked
    return _with_zeros(facts, takes_zeros=not reply.code)


def _with_zeros(facts: TfModelFacts, *, takes_zeros: bool) -> TfModelFacts:
    return TfModelFacts(facts.name, facts.version, facts.inputs, facts.outputs, takes_zeros)


def _facts(name: str, version: str, signature: Any, dtype_of: Any) -> TfModelFacts | None:
    """None where a tensor has a type that JSON has not, or too many elements."""
    sides: list[dict[str, TensorFacts]] = []
    for side in ("inputs", "outputs"):
        tensors = {}
        for key, info in signature[side].items():
            dtype = dtype_of(info["dtype"])
            shape = info.get("tensor_shape", {})
            sizes = tuple(int(dim["size"]) for dim in shape.get("dim", ()))
            if dtype not in NUMBERS or math.prod(abs(size) for size in sizes) > MAX_ZEROS:
                return None
            tensors[key] = TensorFacts(dtype, None if shape.get("unknown_rank", True) else sizes)
        sides.append(tensors)
    return TfModelFacts(name, version, sides[0], sides[1])
