"""Addresses of TensorFlow Serving's REST API and ModelSpec messages -> the model, version and signature that they mean;
and the ModelSpec that an answer has.

Source: the field table of ModelSpec; the texts are TensorFlow Serving's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from tensorgate.adapters.protobuf.messages import message
from tensorgate.adapters.protobuf.wire_format import MAX_HEAD_BYTES, first_text, parse, too_large
from tensorgate.gateway.contract.call import Buffer, Call
from tensorgate.gateway.contract.canonical import ModelRef, ModelView, OutputRequest
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.errors import InvalidArgument, LabelNotFound, ModelNotFound, SignatureNotFound
from tensorgate.gateway.contract.tensor import DEFAULT_SIGNATURE, Signature

_PACKAGE: Final = "tensorflow.serving."
_MODEL_SPEC: Final = 1 << 3 | 2
"""The tag of model_spec in all requests of PredictionService."""
_SPEC: Final = message(_PACKAGE + "ModelSpec")


def read_small(kind: str, body: Buffer) -> Any:
    """Bytes -> the message of that name, which is one of tensorflow.serving and has no data. Raises InvalidArgument."""
    if len(body) > MAX_HEAD_BYTES:
        raise too_large()
    return parse(_PACKAGE + kind, body)


def resolve_request(request: Any, resolve: Resolve) -> ModelView:
    """The model that a request with a model_spec means. Raises InvalidArgument, LabelNotFound, ModelNotFound."""
    if not request.HasField("model_spec"):
        raise InvalidArgument("Missing ModelSpec")
    return resolve_spec(request.model_spec, resolve)


def resolve_spec(spec: Any, resolve: Resolve) -> ModelView:
    """The model that a ModelSpec means. Raises InvalidArgument, LabelNotFound, ModelNotFound."""
    if not spec.name:
        raise InvalidArgument("ModelSpec has no name specified.")
    return view_of(ref_of(spec), resolve)


def ref_of(spec: Any) -> ModelRef:
    """A version that is there counts, even if it is 0; so does an empty label."""
    choice = spec.WhichOneof("version_choice")
    if choice == "version":
        return ModelRef(spec.name, spec.version.value)
    return ModelRef(spec.name, label=spec.version_label if choice else None)


def model_of(args: Mapping[str, str], begun: bytes) -> ModelRef | None:
    """The model that a message names in its first field, model_spec, as all clients' do."""
    name = first_text(begun[2:]) if len(begun) > 2 and begun[0] == _MODEL_SPEC else None
    return None if name is None else ModelRef(name)


def signature_name(spec: Any) -> str:
    """The signature that a ModelSpec means."""
    return spec.signature_name or DEFAULT_SIGNATURE


# Never stale: made of nothing but its arguments.
@lru_cache(maxsize=1024)
def effective_spec(name: str, version: int, signature: str = "") -> bytes:
    """What an answer says of the model: a serialized ModelSpec, with the version that answered and never a label.

    `name` is the one that was asked for (`view.name`), `signature` the one that was used.
    """
    spec = _SPEC(name=name, signature_name=signature)
    spec.version.value = version
    serialized: bytes = spec.SerializeToString()
    return serialized


# ------------------------------------------------------------------------------------------------------------ addresses


def model_ref(call: Call) -> ModelRef:
    """The address as the routes took it apart: a model, and a version or a label or neither."""
    version = call.args.get("version")
    return _ref(call.args["model"], None if version is None else int(version), call.args.get("label"))


_ref: Final = lru_cache(maxsize=1024)(ModelRef)
"""Never stale: a name, which is resolved each time. None is longer than a request line."""


def note_spec(call: Call, spec: Any) -> None:
    """Note which model a failed call is about."""
    call.notes["model"] = spec.name
    choice = spec.WhichOneof("version_choice")
    if choice == "version":
        call.notes["version"] = str(spec.version.value)
    elif choice == "version_label":
        call.notes["label"] = spec.version_label


def resolve_model(call: Call, resolve: Resolve) -> ModelView:
    """The model that an address names. Raises LabelNotFound, ModelNotFound."""
    return view_of(model_ref(call), resolve)


def view_of(ref: ModelRef, resolve: Resolve) -> ModelView:
    """The model's view. Labels are looked up before models: an unknown model with a label is an unknown label."""
    try:
        return resolve(ref)
    except ModelNotFound as error:
        if ref.label is not None and error.version is None and not error.known:
            raise LabelNotFound(ref.name, ref.label) from None
        raise


# ----------------------------------------------------------------------------------------------------------- signatures


def signature_of(view: ModelView, name: str) -> Signature:
    """Raises SignatureNotFound."""
    try:
        return view.signatures[name]
    except KeyError:
        raise SignatureNotFound(view.name, name) from None


def outputs_of(view: ModelView, signature: Signature) -> tuple[OutputRequest, ...]:
    """The signature's outputs by the model's names; nothing, which means all, where it shows all of them."""
    wanted = [spec.name for spec in signature.outputs.values()]
    return () if {*wanted} == view.outputs.keys() else requests_of(wanted)


def requests_of(names: Iterable[str]) -> tuple[OutputRequest, ...]:
    """Each output once, by the model's names."""
    return tuple([OutputRequest(name) for name in dict.fromkeys(names)])
