"""tf.Examples as messages: those of gRPC, and serialized ones in a tensor of strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from google.protobuf.message import DecodeError

from adapters.pb import message
from adapters.tf_serving.example_tensors import Feature, Kind, model_inputs
from adapters.tf_serving.tensors import Tensor
from gateway.canonical import Signature, Tensors
from gateway.errors import InvalidArgument

_Example: Final = message("tensorflow.Example")
_KINDS: Final[dict[str, Kind]] = {"bytes_list": "bytes", "float_list": "float", "int64_list": "int64"}
_FEW: Final = 16
"""More numbers than that are quicker copied at once."""


class ProtoExamples:
    """Examples of a message; on a clash with the context an Example's own feature counts, even one without a kind."""

    def __init__(self, examples: Sequence[Any], context: Any = None) -> None:
        self._examples = examples
        self._context = context

    def __len__(self) -> int:
        return len(self._examples)

    def column(self, name: str) -> list[Feature | None]:
        """See Examples."""
        shared = None if self._context is None else self._context.features.feature.get(name)
        return [_feature(example.features.feature.get(name, shared)) for example in self._examples]

    def serialized(self) -> list[bytes]:
        """See Examples. One message after the other is their merge: the latter's features count."""
        shared = b"" if self._context is None else self._context.SerializeToString()
        return [shared + example.SerializeToString() for example in self._examples]


def example_inputs(signature: Signature, serialized: Tensor) -> Tensors:
    """A tensor of serialized Examples, host BYTES, -> inputs by the model's names, for a signature with features.

    Raises InvalidArgument.
    """
    if serialized.ndim != 1:
        shape = ",".join(map(str, serialized.shape))
        raise InvalidArgument(f"Expected serialized to be a vector, got shape: [{shape}]")
    return model_inputs(signature, ProtoExamples([_parse(at, text) for at, text in enumerate(serialized.tolist())]))


def _parse(index: int, text: bytes) -> Any:
    try:
        return _Example.FromString(text)
    except DecodeError:
        raise InvalidArgument(f"Could not parse example input, index: {index}") from None


def _feature(feature: Any) -> Feature | None:
    if feature is None:
        return None
    field = feature.WhichOneof("kind")
    if field is None:
        return None
    kind = _KINDS[field]
    values = getattr(feature, field).value
    return Feature(kind, values if kind == "bytes" or len(values) < _FEW else np.array(values))
