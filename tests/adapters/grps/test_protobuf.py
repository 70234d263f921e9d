"""grps messages in JSON beside protobuf's own: printed to the same bytes, and read to the same values.

The schema is built here from the protocol's field numbers, in a pool of its own.
"""

import json
from typing import Any

import numpy as np
import pytest
from compiled_helpers import needs
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from tensorgate.adapters.grps.fields import known_members
from tensorgate.adapters.grps.flat import cut
from tensorgate.adapters.grps.message import MESSAGE, message
from tensorgate.adapters.grps.response import ReplyForm, encode_predict
from tensorgate.adapters.grps.tensors import BY_DTYPE, BY_FIELD, NUMBERS
from tensorgate.adapters.json.body import read
from tensorgate.adapters.json.cuts import marked
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse
from tensorgate.gateway.contract.errors import GatewayError
from tensorgate.gateway.contract.tensor import BYTES, DTYPES

PACKAGE = ".grps.protos.v1."
SCHEMA = {
    "Status": "1 code int32, 2 msg string, 3 status Status.StatusFlag",
    "GenericTensor": "1 name string, 2 dtype DataType, 3 shape uint32*, 4 flat_uint8 uint32*, 5 flat_int8 int32*, "
    "6 flat_int16 int32*, 7 flat_int32 int32*, 8 flat_int64 int64*, 9 flat_float16 float*, 10 flat_float32 float*, "
    "11 flat_float64 double*, 12 flat_string string*",
    "GenericTensorData": "1 tensors GenericTensor*",
    "NDArrayData": "",
    "GrpsMessage": "1 status Status, 2 model string, 3 bin_data bytes, 4 str_data string, "
    "5 gtensors GenericTensorData, 6 ndarray NDArrayData",
}


def message_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="grps.proto", package="grps.protos.v1", syntax="proto3")
    file.enum_type.add(name="DataType").value.extend(enum_values(NUMBERS))
    for name, fields in SCHEMA.items():
        kind = file.message_type.add(name=name)
        if name == "Status":
            flags = {"UNKNOWN": 0, "SUCCESS": 1, "FAILURE": 2}
            kind.enum_type.add(name="StatusFlag").value.extend(enum_values(flags))
        if name == "GrpsMessage":
            kind.oneof_decl.add(name="data_oneof")
        for number, field, of in (each.split() for each in fields.split(", ") if each):
            add_field(kind, int(number), field, of)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE[1:]}GrpsMessage"))


def enum_values(numbers: Any) -> Any:
    return [descriptor_pb2.EnumValueDescriptorProto(name=name, number=number) for name, number in numbers.items()]


def add_field(kind: Any, number: int, name: str, of: str) -> None:
    types = descriptor_pb2.FieldDescriptorProto.Type
    of, star, _ = of.partition("*")
    field = kind.field.add(name=name, number=number, label=3 if star else 1)
    if f"TYPE_{of.upper()}" in types.keys():  # noqa: SIM118 - protobuf's own wrapper, no dict
        field.type = types.Value(f"TYPE_{of.upper()}")
    else:
        field.type = types.Value("TYPE_ENUM" if of in ("DataType", "Status.StatusFlag") else "TYPE_MESSAGE")
        field.type_name = PACKAGE + of
    if kind.name == "GrpsMessage" and number >= 3:
        field.oneof_index = 0


GrpsMessage = message_class()


@pytest.mark.parametrize("dtype", BY_DTYPE, ids=str)
@given(data=st.data(), shape=st_numpy.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
def test_gtensors_are_printed_as_protobuf_prints_them(dtype: Any, data: Any, shape: tuple[int, ...]) -> None:
    row = BY_DTYPE[dtype]
    if dtype == BYTES:
        array = np.empty(shape, np.object_)
        for index in np.ndindex(shape):
            array[index] = data.draw(st.text(max_size=4)).encode()
        values: list[Any] = [each.decode() for each in array.reshape(-1)]
    else:
        # Numbers of 32 bits below its range protobuf prints with six digits, whether they need them or not.
        floats = {"allow_subnormal": False}
        array = np.asarray(data.draw(st_numpy.arrays(dtype, shape, elements=floats if dtype.kind == "f" else None)))
        values = array.reshape(-1).astype(np.float64).tolist() if dtype.kind == "f" else array.reshape(-1).tolist()
    want = GrpsMessage()
    want.status.code, want.status.msg, want.status.status = 200, "OK", 1
    tensor = want.gtensors.tensors.add(name="n\u00e9", dtype=row.number, shape=shape)
    getattr(tensor, row.field).extend(values)
    for indent in (1, 2):
        form = ReplyForm("gtensors", stream=indent == 2)
        reply = encode_predict(InferResponse({"n\u00e9": array}), InferRequest(None, {}, wire=form))  # type: ignore[arg-type]
        printed = json_format.MessageToJson(want, preserving_proto_field_name=True, indent=indent)
        assert b"".join(reply.body).decode() == printed  # type: ignore[arg-type]


SCALARS = st.sampled_from([0, 1, -1, 7, 127, 128, 255, 256, 2**31, 2**32, 2**63, 2**64, 2**70, 1.0, 1.5, 1e3, 1e30])
SCALARS |= st.sampled_from([3.4028234663852886e38, 3.4028235e38, -0.0, float("nan"), float("inf"), True, None, [], {}])
SCALARS |= st.sampled_from(
    ["1", "-1", "+5", " 1", "1.5", "1e3", "NaN", "nan", "-Infinity", "", "a", "DT_INT8", "\u0663"]
)
TENSORS = st.dictionaries(
    st.sampled_from(["name", "dtype", "shape", "unknown", *BY_FIELD]),
    st.lists(SCALARS, max_size=3) | SCALARS,
    max_size=3,
)
BODIES = st.fixed_dictionaries(
    {"gtensors": st.fixed_dictionaries({"tensors": st.lists(TENSORS, max_size=2)})},
    optional={"model": SCALARS, "status": st.dictionaries(st.sampled_from(["code", "msg", "status"]), SCALARS)},
)


@given(BODIES)
def test_what_is_accepted_protobuf_reads_to_the_same_values(value: Any) -> None:
    body = json.dumps(value).encode()
    try:
        ours = message(dict(known_members(read(body, 100), MESSAGE)), body)
    except GatewayError:
        return
    theirs = json_format.ParseDict(json.loads(body), GrpsMessage(), ignore_unknown_fields=True)
    assert ours.get("model", "") == theirs.model
    assert ours.get("status", {}).get("code", 0) == theirs.status.code
    assert len(ours["gtensors"]) == len(theirs.gtensors.tensors)
    for mine, other in zip(ours["gtensors"], theirs.gtensors.tensors, strict=True):
        assert (mine.name, mine.dtype, mine.shape) == (other.name, other.dtype, tuple(other.shape))
        for field, row in BY_FIELD.items():
            values = list(getattr(other, field))
            want = [each.encode() for each in values] if field == "flat_string" else values
            with np.errstate(over="ignore"):
                np.testing.assert_array_equal(mine.data.get(field, []), np.array(want, DTYPES[row.datatype]))


# ---------------------------------------------------------------------------------------------- arrays that are cut out

LISTS = st.lists(SCALARS, min_size=1, max_size=3) | st.lists(
    st.floats(-1e39, 1e39) | st.integers(-300, 300), max_size=4
)
FIELDS = [*BY_FIELD, "flat_double", "flatFloat32", "flatInt64", "flatDouble", "flat_float33", '\\"flat_float32']
KEYED = st.lists(
    st.tuples(st.sampled_from([*FIELDS, "name", "dtype", "x"]), LISTS | SCALARS | st.just([[1]])), max_size=4
)


def written(pairs: Any) -> str:
    """An object, its keys as they come, twice if they do."""
    return "{" + ", ".join(f'"{key}": {json.dumps(value)}' for key, value in pairs) + "}"


def outcome(body: bytes, arrays: Any = ()) -> Any:
    try:
        found = message(dict(known_members(read(body, 100), MESSAGE)), body, arrays)
    except GatewayError as error:
        return type(error)
    return [
        (tensor.name, tensor.dtype, tensor.shape, {key: repr((v.dtype, v.tolist())) for key, v in tensor.data.items()})
        for tensor in found["gtensors"]
    ]


@given(st.lists(KEYED, max_size=2), st.sampled_from(["", " ", "\n\t"]))
def test_what_is_cut_out_of_a_body_is_what_it_holds(tensors: Any, space: str) -> None:
    text = ", ".join(written(pairs) for pairs in tensors).replace(": [", f"{space}:{space}[")
    body = f'{{"gtensors": {{"tensors": [{text}]}}}}'.encode()
    kept, arrays = cut(body)
    assert outcome(kept, arrays) == outcome(body)


@needs("_numbers")
def test_long_arrays_are_cut() -> None:
    body = (
        b'{"a": "\\"flat_int8\\": [1]", "flat_float32" : [1, 2.5], "flatInt64":[3], "flat_int8": [300], "flat_x": [1]}'
    )
    kept, arrays = cut(body)
    assert [(array.dtype, array.tolist()) for array in arrays] == [("f4", [1, 2.5]), ("i8", [3])]
    members = json.loads(kept)
    assert (marked(members["flat_float32"]), marked(members["flatInt64"])) == (0, 1)
    assert members == json.loads(body) | {key: members[key] for key in ("flat_float32", "flatInt64")}
    for odd in (b"[3.4028235e38]", b"[-1e39]", b"[1, NaN]", b"[]", b"[[1]]", b"[true]", b"[1", b'["1"]', b"[1,]"):
        assert cut(b'{"flat_float32": ' + odd) == (b'{"flat_float32": ' + odd, [])
