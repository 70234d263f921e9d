"""SavedModels whose behaviour the cases know, written without TensorFlow: graphs of a few nodes.

Field numbers are those of TensorFlow's saved_model.proto, meta_graph.proto, graph.proto and attr_value.proto, of which
our descriptor set has only what travels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tensorgate.adapters.protobuf.messages import message
from tensorgate.adapters.tf_serving.conformance.calls import NUMBERS, tensor

HALF_PLUS_TWO: Final = "conform_half_plus_two"
ADD_SUB: Final = "conform_add_sub"
_FLOAT: Final = NUMBERS["DT_FLOAT"]


def identity_name(dtype: str) -> str:
    """The model that gives back its one tensor of this type, `x` as `y`, whatever its shape."""
    return f"conform_identity_{dtype.removeprefix('DT_').lower()}"


KNOWN: Final = (HALF_PLUS_TWO, ADD_SUB, *(identity_name(dtype) for dtype in NUMBERS))


def repository(folder: str) -> Mapping[str, bytes]:
    """Files by their paths in the folder, whose absolute path the configuration names."""
    models = {
        HALF_PLUS_TWO: _saved_model(
            [
                _placeholder("x", "DT_FLOAT"),
                _constant("half", 0.5),
                _constant("two", 2.0),
                _node("Mul", "scaled", ["x", "half"], T=_type(_FLOAT)),
                _node("AddV2", "sum", ["scaled", "two"], T=_type(_FLOAT)),
            ],
            {"x": ("x:0", "DT_FLOAT")},
            {"y": ("sum:0", "DT_FLOAT")},
        ),
        ADD_SUB: _saved_model(
            [
                _placeholder("a", "DT_FLOAT"),
                _placeholder("b", "DT_FLOAT"),
                _node("AddV2", "sum", ["a", "b"], T=_type(_FLOAT)),
                _node("Sub", "difference", ["a", "b"], T=_type(_FLOAT)),
            ],
            {"a": ("a:0", "DT_FLOAT"), "b": ("b:0", "DT_FLOAT")},
            {"sum": ("sum:0", "DT_FLOAT"), "difference": ("difference:0", "DT_FLOAT")},
        ),
    }
    for dtype, number in NUMBERS.items():
        nodes = [_placeholder("x", dtype), _node("Identity", "y", ["x"], T=_type(number))]
        models[identity_name(dtype)] = _saved_model(nodes, {"x": ("x:0", dtype)}, {"y": ("y:0", dtype)})
    entries = "".join(
        f'  config {{ name: "{name}" base_path: "{folder}/{name}" model_platform: "tensorflow" }}\n' for name in models
    )
    files = {f"{name}/1/saved_model.pb": data for name, data in models.items()}
    return files | {"models.config": f"model_config_list {{\n{entries}}}\n".encode()}


def _saved_model(nodes: Sequence[bytes], inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> bytes:
    """A SavedModel of one graph and its default signature: (tensor of the graph, type) by names."""
    signature = message("tensorflow.SignatureDef")(method_name="tensorflow/serving/predict")
    for side, tensors in ((signature.inputs, inputs), (signature.outputs, outputs)):
        for name, (tensor_name, dtype) in tensors.items():
            side[name].name = tensor_name
            side[name].dtype = NUMBERS[dtype]
            side[name].tensor_shape.dim.add(size=-1)
    graph = b"".join(_field(1, node) for node in nodes) + _field(4, _number(1, 1087))
    meta_info = _field(4, b"serve") + _field(5, b"2.0.0")
    entry = _field(1, b"serving_default") + _field(2, signature.SerializeToString(deterministic=True))
    meta_graph = _field(1, meta_info) + _field(2, graph) + _field(5, entry)
    return _number(1, 1) + _field(2, meta_graph)


def _placeholder(name: str, dtype: str) -> bytes:
    unknown = message("tensorflow.TensorShapeProto")(unknown_rank=True).SerializeToString()
    return _node("Placeholder", name, [], dtype=_type(NUMBERS[dtype]), shape=_field(7, unknown))


def _constant(name: str, value: float) -> bytes:
    made = tensor("DT_FLOAT", (), [value]).SerializeToString()
    return _node("Const", name, [], dtype=_type(_FLOAT), value=_field(8, made))


def _node(op: str, name: str, inputs: Sequence[str], **attributes: bytes) -> bytes:
    """A NodeDef; attributes are AttrValues."""
    data = _field(1, name.encode()) + _field(2, op.encode()) + b"".join(_field(3, each.encode()) for each in inputs)
    for key, value in attributes.items():
        data += _field(5, _field(1, key.encode()) + _field(2, value))
    return data


def _type(number: int) -> bytes:
    return _number(6, number)


def _number(field: int, value: int) -> bytes:
    return bytes([field << 3]) + _varint(value)


def _field(field: int, data: bytes) -> bytes:
    return bytes([field << 3 | 2]) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])
