"""SignatureDefs of a SavedModel -> the signatures that callers see.

A caller's name of a tensor is the signature's key, and so is the model's own name of it here: what a signature calls
"x" is the graph's "serving_default_x:0", and only the functions themselves care. Source: TensorFlow,
meta_graph.proto (SignatureDef, TensorInfo).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from tensorgate.gateway.contract.tensor import DEFAULT_SIGNATURE, DTYPES, Array, Signature, TensorSpec

log = logging.getLogger(__name__)

PREDICT: Final = "tensorflow/serving/predict"
_HIDDEN_PREFIX: Final = (
    "__saved_model_"  # __saved_model_init_op and __saved_model_train_op are none of callers' business
)
_REFERENCE: Final = 100  # a variable of old is its dtype's number and this
_DATATYPES: Final[Mapping[int, str]] = {
    1: "FP32",
    2: "FP64",
    3: "INT32",
    4: "UINT8",
    5: "INT16",
    6: "INT8",
    7: "BYTES",
    9: "INT64",
    10: "BOOL",
    14: "BF16",
    17: "UINT16",
    19: "FP16",
    22: "UINT32",
    23: "UINT64",
}


def read_signatures(
    definitions: Mapping[str, Any], to_array: Callable[[Any], Array], model: str, wanted: str = ""
) -> dict[str, Signature]:
    """SignatureDefs by name -> signatures, the default first: the wanted one, or serving_default. `to_array` turns a
    TensorProto into an array.

    One with a tensor that no dialect can carry is left out, and the log says why. Raises ValueError where it is the
    default, or the only one.
    """
    found: dict[str, Signature] = {}
    refused: dict[str, str] = {}
    for name in sorted(definitions):
        if not name.startswith(_HIDDEN_PREFIX):
            try:
                found[name] = _signature(name, definitions[name], to_array)
            except ValueError as error:
                refused[name] = str(error)
    if (wanted or DEFAULT_SIGNATURE) in refused or (refused and not found):
        raise ValueError("; ".join(f"signature {name}: {reason}" for name, reason in refused.items()))
    if not found:
        raise ValueError("it has no signature that could be served")
    if wanted and wanted not in found:
        raise ValueError(f"it has no signature {wanted}, but {', '.join(found)}")
    for name, reason in refused.items():
        log.warning("model %s: signature %s is left out: %s", model, name, reason)
    default = wanted or _default(found)
    return {default: found.pop(default), **found}


def _default(signatures: Mapping[str, Signature]) -> str:
    """serving_default; else the first by name that predicts; else the first of all."""
    if DEFAULT_SIGNATURE in signatures:
        return DEFAULT_SIGNATURE
    predicting = [name for name, signature in signatures.items() if signature.method == PREDICT]
    return (predicting or list(signatures))[0]


def _signature(name: str, definition: Any, to_array: Callable[[Any], Array]) -> Signature:
    return Signature(
        name,
        {key: _spec(f"input '{key}'", key, definition.inputs[key]) for key in sorted(definition.inputs)},
        {key: _spec(f"output '{key}'", key, definition.outputs[key]) for key in sorted(definition.outputs)},
        definition.method_name,
        defaults={key: to_array(definition.defaults[key]) for key in sorted(definition.defaults)},
        definition=definition.SerializeToString(deterministic=True),
    )


def _spec(what: str, key: str, info: Any) -> TensorSpec:
    encoding = info.WhichOneof("encoding")
    if encoding != "name":
        raise ValueError(f"{what} is no plain tensor ({encoding or 'nothing'})")
    number = info.dtype % _REFERENCE
    if number not in _DATATYPES:
        kind = info.DESCRIPTOR.fields_by_name["dtype"].enum_type.values_by_number.get(number)
        raise ValueError(f"{what} is {kind.name if kind else number}, which no dialect can carry")
    return TensorSpec(key, DTYPES[_DATATYPES[number]], _shape(info))


def _shape(info: Any) -> tuple[int, ...] | None:
    if not info.HasField("tensor_shape") or info.tensor_shape.unknown_rank:
        return None
    return tuple(dim.size for dim in info.tensor_shape.dim)
