"""Signature -> tensorflow.SignatureDef, which TensorFlow Serving's metadata shows over both transports."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tensorgate.adapters.protobuf.messages import message
from tensorgate.adapters.tf_serving.data_types import BY_DTYPE
from tensorgate.gateway.contract.tensor import BYTES, Array, Signature, TensorSpec

SignatureDef: Final = message("tensorflow.SignatureDef")
_TensorInfo: Final = message("tensorflow.TensorInfo")
_TensorProto: Final = message("tensorflow.TensorProto")


def signature_def(signature: Signature) -> Any:
    """The message: the model's own if it brought one, else made of the specifications."""
    if signature.definition:
        return SignatureDef.FromString(signature.definition)
    # Where features become inputs, defaults are the features', whose parsing no SignatureDef shows.
    defaults = signature.defaults if signature.features is None else {}
    return SignatureDef(
        inputs={name: _tensor_info(spec) for name, spec in signature.inputs.items()},
        outputs={name: _tensor_info(spec) for name, spec in signature.outputs.items()},
        method_name=signature.method,
        defaults={name: _tensor_proto(array) for name, array in defaults.items()},
    )


def feed_name(signature: Signature, name: str) -> str:
    """What TensorFlow calls the tensor behind an input."""
    return str(signature_def(signature).inputs[name].name)


def _tensor_info(spec: TensorSpec) -> Any:
    return _TensorInfo(name=f"{spec.name}:0", dtype=BY_DTYPE[spec.dtype].number, tensor_shape=_shape(spec.shape))


def _tensor_proto(array: Array) -> Any:
    """A host array, elements as bytes or strings."""
    proto = _TensorProto(dtype=BY_DTYPE[array.dtype].number, tensor_shape=_shape(array.shape))
    if array.dtype == BYTES:
        proto.string_val.extend(array.reshape(-1))
    else:
        proto.tensor_content = np.ascontiguousarray(array).tobytes()
    return proto


def _shape(shape: tuple[int, ...] | None) -> dict[str, Any]:
    return {"unknown_rank": True} if shape is None else {"dim": [{"size": size} for size in shape]}
