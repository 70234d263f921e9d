"""The model that an address or a message names."""

from __future__ import annotations

from tensorgate.gateway.contract.call import Call
from tensorgate.gateway.contract.canonical import ModelRef, ModelView
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.errors import LabelNotFound, ModelNotFound


def model_ref(call: Call) -> ModelRef:
    """The address as the routes took it apart: a model, and a version or a label or neither."""
    version = call.args.get("version")
    return ModelRef(call.args["model"], None if version is None else int(version), call.args.get("label"))


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
