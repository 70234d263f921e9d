"""TensorFlow Serving over gRPC: messages as they come, replies to the byte, every refusal with its code."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tensorgate.adapters.protobuf import varints
from tensorgate.adapters.protobuf.messages import message
from tensorgate.adapters.tf_serving import KIND
from tensorgate.adapters.tf_serving.proto_response import _around_lone
from tensorgate.gateway.contract import errors
from tensorgate.gateway.contract.call import Call, MustOffload, Reply
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelRef, ModelView, OutputRequest
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.errors import Code, GatewayError, LabelNotFound, ModelNotFound
from tensorgate.gateway.contract.questions import ModelMetadata, ModelStatus, VersionStatus
from tensorgate.gateway.contract.tensor import BYTES, DTYPES, Signature, TensorSpec

DIALECT = KIND.make(KIND.options())
CONTENT_DIALECT = KIND.make(KIND.options(tensor_content=True))
PREDICTION, MODEL = "/tensorflow.serving.PredictionService/", "/tensorflow.serving.ModelService/"
PREDICT = DIALECT.grpc[PREDICTION + "Predict"]
METADATA = DIALECT.grpc[PREDICTION + "GetModelMetadata"]
STATUS = DIALECT.grpc[MODEL + "GetModelStatus"]
Request, Response = message("tensorflow.serving.PredictRequest"), message("tensorflow.serving.PredictResponse")
TensorProto = message("tensorflow.TensorProto")
MetadataRequest = message("tensorflow.serving.GetModelMetadataRequest")
StatusRequest = message("tensorflow.serving.GetModelStatusRequest")

NAMES = {
    "BOOL": "DT_BOOL",
    "UINT8": "DT_UINT8",
    "UINT16": "DT_UINT16",
    "UINT32": "DT_UINT32",
    "UINT64": "DT_UINT64",
    "INT8": "DT_INT8",
    "INT16": "DT_INT16",
    "INT32": "DT_INT32",
    "INT64": "DT_INT64",
    "FP16": "DT_HALF",
    "BF16": "DT_BFLOAT16",
    "FP32": "DT_FLOAT",
    "FP64": "DT_DOUBLE",
    "BYTES": "DT_STRING",
}


def with_signature(view: ModelView, signature: Signature) -> ModelView:
    return replace(view, signatures={**view.signatures, signature.name: signature})


def spec(name: str, datatype: str, *, optional: bool = False) -> TensorSpec:
    return TensorSpec(name, DTYPES[datatype], (-1,), optional=optional)


@pytest.fixture
def resolve(make_model: Callable[..., ModelView]) -> Resolve:
    vector = {"x": ("FP32", (-1, 2))}
    pair = {"a": ("FP32", (-1,)), "b": ("FP32", (-1,))}
    outs = {"y": ("FP32", (-1,)), "z": ("INT64", (-1,))}
    views = [
        make_model("m", vector, vector),
        make_model("zero", vector, vector, version=0, versions=(0,)),
        make_model("pair", pair, outs, signatures={"serving_default": ({"a": "a", "b": "b"}, {"y": "y", "z": "z"})}),
        make_model("alias", vector, outs, signatures={"first": ({"image": "x"}, {"scores": "y", "again": "y"})}),
        make_model("token", vector, vector, decoupled=True),
        *(make_model(name.lower(), {"x": (name, None)}, {"x": (name, None)}) for name in DTYPES),
    ]
    filled = make_model("filled", pair, outs)
    needs = {"a": spec("a", "FP32"), "b": spec("b", "FP32")}
    one = Signature("serving_default", needs, filled.outputs, defaults={"b": np.float32([7])})
    views.append(with_signature(filled, one))
    may = {"a": spec("a", "FP32"), "b": spec("b", "FP32", optional=True)}
    views.append(with_signature(replace(filled, name="may"), replace(one, inputs=may, defaults={})))
    features = {"age": TensorSpec("x", DTYPES["INT64"], (-1, 1))}
    takes_examples = Signature("serving_default", {"inputs": TensorSpec("e", BYTES, (-1,))}, {}, features=features)
    views.append(with_signature(make_model("examples", {"x": ("INT64", (-1, 1))}, {}), takes_examples))

    def resolve(ref: ModelRef) -> ModelView:
        for view in views:
            if view.name == ref.name and ref.label in (None, "stable") and ref.version in (None, view.version):
                return view
        known = any(view.name == ref.name for view in views)
        if ref.label is not None and known:
            raise LabelNotFound(ref.name, ref.label)
        raise ModelNotFound(ref.name, ref.version, known=known)

    return resolve


def ask(resolve: Resolve, body: Any, endpoint: Any = PREDICT, **more: Any) -> Any:
    """The question that a message asks, or the reply that refuses it."""
    body = body if isinstance(body, bytes) else body.SerializeToString()
    call = Call(body, "POST", endpoint.address, {}, "grpc", **more)
    try:
        return endpoint.decode(call, resolve)
    except GatewayError as error:
        return endpoint.encode_error(error, call)


def tensor(datatype: str | int, shape: Any = (), **fields: Any) -> Any:
    number = NAMES.get(datatype, datatype) if isinstance(datatype, str) else datatype
    proto = TensorProto(dtype=number, **fields)
    if shape is not None:
        proto.tensor_shape.SetInParent()
        for size in shape:
            proto.tensor_shape.dim.add(size=size)
    return proto


def request_of(model: str, /, output_filter: Any = (), signature: str = "", **inputs: Any) -> Any:
    spec = {"name": model, "signature_name": signature}
    request = Request(model_spec=spec, output_filter=output_filter)
    for name, proto in inputs.items():
        request.inputs[name].CopyFrom(proto)
    return request


def whole(reply: Reply) -> bytes:
    return reply.body if isinstance(reply.body, bytes) else b"".join(reply.body)  # type: ignore[arg-type]


def refusal(reply: Any) -> tuple[Code, str]:
    assert isinstance(reply, Reply), reply
    assert reply.grpc_code is not Code.OK
    assert whole(reply) == b""
    return reply.grpc_code, reply.message


def given(resolve: Resolve, model: str, proto: Any, **more: Any) -> Any:
    """The array that a tensor becomes."""
    request = ask(resolve, request_of(model, x=proto), **more)
    assert isinstance(request, InferRequest), request
    [array] = request.inputs.values()
    return array


# ------------------------------------------------------------------------------------------- tensors, both directions

TYPED: list[tuple[str, list[int], list[Any], bytes]] = [
    ("FP32", [2], [1, -2.5], b"\x2a\x08\x00\x00\x80\x3f\x00\x00\x20\xc0"),
    ("FP64", [1], [1], b"\x32\x08" + b"\0" * 6 + b"\xf0\x3f"),
    ("INT32", [3], [1, -1, 300], b"\x3a\x0d\x01" + b"\xff" * 9 + b"\x01\xac\x02"),
    ("INT16", [1, 1], [-32768], b"\x3a\x0a\x80\x80\xfe" + b"\xff" * 6 + b"\x01"),
    ("INT8", [1], [-128], b"\x3a\x0a\x80" + b"\xff" * 8 + b"\x01"),
    ("UINT8", [2], [127, 255], b"\x3a\x03\x7f\xff\x01"),
    ("UINT16", [1], [65535], b"\x3a\x03\xff\xff\x03"),
    ("BYTES", [2, 2], [b"a", b"", b"\xff\0", b"xyz"], b"\x42\x01a\x42\x00\x42\x02\xff\0\x42\x03xyz"),
    ("INT64", [], [-(2**63)], b"\x52\x0a" + b"\x80" * 9 + b"\x01"),
    ("BOOL", [3], [True, False, True], b"\x5a\x03\1\0\1"),
    ("FP16", [2], [1, -0.0], b"\x6a\x05\x80\x78\x80\x80\x02"),
    ("BF16", [1], [1], b"\x6a\x03\x80\x7f"[:1] + b"\x02\x80\x7f"),
    ("UINT32", [1], [2**32 - 1], b"\x82\x01\x05\xff\xff\xff\xff\x0f"),
    ("UINT64", [1], [2**64 - 1], b"\x8a\x01\x0a" + b"\xff" * 9 + b"\x01"),
    ("FP32", [0, 4], [], b""),
    ("BYTES", [0], [], b""),
]
CONTENT: list[tuple[str, list[int], list[Any], bytes]] = [
    ("FP32", [2], [1, np.nan], b"\x00\x00\x80\x3f\x00\x00\xc0\x7f"),
    ("FP64", [], [1], b"\0" * 6 + b"\xf0\x3f"),
    ("INT32", [2, 1], [1, -1], b"\1\0\0\0\xff\xff\xff\xff"),
    ("INT16", [1, 2], [-2, 1], b"\xfe\xff\1\0"),
    ("INT8", [1], [-1], b"\xff"),
    ("UINT8", [3], [0, 1, 255], b"\x00\x01\xff"),
    ("UINT16", [1], [0x0102], b"\x02\x01"),
    ("BYTES", [3], [b"a", b"", b"x" * 130], b"\1\0\x82\1a" + b"x" * 130),
    ("INT64", [1], [1], b"\1" + b"\0" * 7),
    ("BOOL", [2], [True, False], b"\1\0"),
    ("FP16", [1], [1], b"\x00\x3c"),
    ("BF16", [1], [1], b"\x80\x3f"),
    ("UINT32", [1], [1], b"\1\0\0\0"),
    ("UINT64", [1], [2**64 - 1], b"\xff" * 8),
]


def dimensions(shape: list[int]) -> bytes:
    """A TensorShapeProto, of small sizes."""
    dims = b"".join([b"\x12\x02\x08" + bytes([size]) if size else b"\x12\x00" for size in shape])
    return b"\x12" + bytes([len(dims)]) + dims


def entry(proto: bytes, key: bytes = b"x") -> bytes:
    """An entry of the map of inputs or outputs, without its tag."""
    value = b"\x0a" + bytes([len(key)]) + key + b"\x12" + bytes([len(proto) & 0x7F | 0x80, len(proto) >> 7]) + proto
    if len(proto) < 128:
        value = b"\x0a" + bytes([len(key)]) + key + b"\x12" + bytes([len(proto)]) + proto
    return (bytes([len(value)]) if len(value) < 128 else bytes([len(value) & 0x7F | 0x80, len(value) >> 7])) + value


def number_of(datatype: str) -> int:
    return int(TensorProto.DESCRIPTOR.fields_by_name["dtype"].enum_type.values_by_name[NAMES[datatype]].number)


def check_both_directions(
    dialect: Any, resolve: Resolve, datatype: str, shape: list[int], values: list[Any], proto: bytes
) -> None:
    name = datatype.lower()
    spec = b"\x0a" + bytes([len(name)]) + name.encode()
    request = ask(resolve, b"\x0a" + bytes([len(spec)]) + spec + b"\x12" + entry(proto))
    assert isinstance(request, InferRequest), request
    array = request.inputs["x"]
    assert (array.dtype, array.shape) == (DTYPES[datatype], tuple(shape))
    np.testing.assert_array_equal(array.ravel(), np.array(values, DTYPES[datatype]))
    assert [*map(str, array.ravel())] == [*map(str, np.array(values, DTYPES[datatype]))], "zeros keep their sign"

    effective = spec + b"\x12\x02\x08\x01" + b"\x1a\x0fserving_default"
    expected = b"\x0a" + entry(proto) + b"\x12" + bytes([len(effective)]) + effective
    reply = dialect.grpc[PREDICTION + "Predict"].encode(InferResponse({"x": array}), request)
    assert whole(reply) == expected
    assert Response.FromString(expected).outputs["x"] == TensorProto.FromString(proto)


@pytest.mark.parametrize(("datatype", "shape", "values", "field"), TYPED)
def test_typed_fields_in_both_directions(
    datatype: str, shape: list[int], values: list[Any], field: bytes, resolve: Resolve
) -> None:
    proto = b"\x08" + bytes([number_of(datatype)]) + dimensions(shape) + field
    check_both_directions(DIALECT, resolve, datatype, shape, values, proto)


@pytest.mark.parametrize(("datatype", "shape", "values", "content"), CONTENT)
def test_content_in_both_directions(
    datatype: str, shape: list[int], values: list[Any], content: bytes, resolve: Resolve
) -> None:
    size = bytes([len(content)]) if len(content) < 128 else bytes([len(content) & 0x7F | 0x80, len(content) >> 7])
    proto = b"\x08" + bytes([number_of(datatype)]) + dimensions(shape) + b"\x22" + size + content
    check_both_directions(CONTENT_DIALECT, resolve, datatype, shape, values, proto)


def test_empty_tensors_have_no_elements_as_bytes_either(resolve: Resolve) -> None:
    proto = b"\x08\x01" + dimensions([0, 4])
    check_both_directions(CONTENT_DIALECT, resolve, "FP32", [0, 4], [], proto)


READ: dict[str, tuple[Any, Any]] = {
    "content wins": (tensor("FP32", [1], tensor_content=b"\0\0\x80\x3f", float_val=[9, 9]), np.float32([1])),
    "the last value is repeated": (tensor("FP32", [2, 2], float_val=[1, 2]), np.float32([[1, 2], [2, 2]])),
    "one value for a million": (tensor("FP32", [1000000], float_val=[3]), np.full(1000000, 3, np.float32)),
    "no values are zeros": (tensor("INT64", [2]), np.int64([0, 0])),
    "no strings are empty ones": (tensor("BYTES", [2]), np.array([b"", b""], object)),
    "strings are repeated": (tensor("BYTES", [3], string_val=[b"a", b"b"]), np.array([b"a", b"b", b"b"], object)),
    "surplus values are dropped": (tensor("INT32", [1], int_val=[1, 2, 3]), np.int32([1])),
    "surplus strings are dropped": (tensor("BYTES", [1], string_val=[b"a", b"b"]), np.array([b"a"], object)),
    "values of a scalar": (tensor("INT32", [], int_val=[5, 6]), np.int32(5)),
    "no values of a scalar": (tensor("BOOL", []), np.bool_(False)),
    "no shape is a scalar": (tensor("FP32", None, float_val=[2]), np.float32(2)),
    "an empty tensor": (tensor("FP32", [0, 3], float_val=[2]), np.zeros((0, 3), np.float32)),
    "an empty tensor's content is not read": (tensor("FP32", [0], tensor_content=b"abc"), np.zeros(0, np.float32)),
    "other fields are not read": (tensor("INT64", [2], int_val=[1, 2], float_val=[3]), np.int64([0, 0])),
    "int8 is cut": (tensor("INT8", [3], int_val=[300, -129, 2**31 - 1]), np.int8([44, 127, -1])),
    "uint8 is cut": (tensor("UINT8", [2], int_val=[-1, 256]), np.uint8([255, 0])),
    "int16 is cut": (tensor("INT16", [2], int_val=[40000, 65536]), np.int16([-25536, 0])),
    "uint16 is cut": (tensor("UINT16", [2], int_val=[-1, 65537]), np.uint16([65535, 1])),
    "half is bits": (tensor("FP16", [2], half_val=[0x7C00, 0x13C00]), np.float16([np.inf, 1])),
    "bfloat16 is bits": (tensor("BF16", [1], half_val=[0xBF80]), np.array([-1], ml_dtypes.bfloat16)),
    "truth is any byte but 0": (tensor("BOOL", [3], tensor_content=b"\0\2\xff"), np.array([False, True, True])),
    "empty strings alone": (tensor("BYTES", [2], tensor_content=b"\0\0"), np.array([b"", b""], object)),
    "lengths in more bytes than they need": (tensor("BYTES", [1], tensor_content=b"\x81\0a"), np.array([b"a"], object)),
    "64 dimensions": (tensor("INT32", [1] * 64, int_val=[4]), np.full([1] * 64, 4, np.int32)),
}


@pytest.mark.parametrize("case", READ)
@pytest.mark.parametrize("long", [False, True])
def test_what_a_tensor_becomes(case: str, long: bool, resolve: Resolve) -> None:
    """The same from a message that protobuf reads alone, and from one that is walked by hand."""
    proto, expected = READ[case]
    names = {np.dtype(dtype): name for name, dtype in DTYPES.items()}
    request = request_of(names[expected.dtype].lower(), x=proto)
    request.client_id = b"c" * 2000 * long
    array = ask(resolve, request).inputs["x"]
    assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
    assert array.tolist() == expected.tolist()


def test_unknown_rank_is_the_rank_of_the_dimensions(resolve: Resolve) -> None:
    """Those that are there count, as in the original; without any it is a scalar."""
    for sizes in ([], [2]):
        proto = tensor("FP32", sizes, float_val=[2, 3])
        proto.tensor_shape.unknown_rank = True
        assert given(resolve, "fp32", proto).shape == tuple(sizes)


UNREADABLE: dict[str, Any] = {
    "no dtype": tensor(0, [1], float_val=[1]),
    "a dtype that there is not": tensor(99, [1]),
    "a reference": tensor(101, [1]),
    "negative": tensor("FP32", [-1], float_val=[1]),
    "negative beside nothing": tensor("FP32", [0, -1]),
    "most negative": tensor("FP32", [-(2**63)]),
    "255 dimensions": tensor("FP32", [1] * 255, float_val=[1]),
    "65 dimensions": tensor("FP32", [1] * 65, float_val=[1]),
    "more elements than int64": tensor("FP32", [2**32, 2**32], float_val=[1]),
    "the same before nothing": tensor("FP32", [2**62, 2**62, 0]),
    "a shape that no array has": tensor("FP32", [0, 2**62, 2**62]),
    "a million million": tensor("FP32", [10**12], float_val=[1]),
    "a million million zeros": tensor("FP32", [10**6, 10**6]),
    "a million million strings": tensor("BYTES", [10**12], string_val=[b"a"]),
    "a million million strings as bytes": tensor("BYTES", [10**12], tensor_content=b"a"),
    "content too short": tensor("FP32", [2], tensor_content=b"\0\0\x80\x3f"),
    "content too long": tensor("FP32", [1], tensor_content=b"\0\0\x80\x3f\0"),
    "a byte of content": tensor("INT64", [], tensor_content=b"\1"),
    "string is longer than all": tensor("BYTES", [1], tensor_content=b"\2a"),
    "string is shorter": tensor("BYTES", [1], tensor_content=b"\1ab"),
    "a length is cut short": tensor("BYTES", [1], tensor_content=b"\x81"),
    "lengths are missing": tensor("BYTES", [3], tensor_content=b"\0\0"),
    "a length of six bytes": tensor("BYTES", [1], tensor_content=b"\x80\x80\x80\x80\x80\0"),
    "lengths beyond four bytes": tensor("BYTES", [2], tensor_content=b"\xff\xff\xff\xff\x0f\2a"),
    "complex content too short": tensor("DT_COMPLEX64", [1], tensor_content=b"1234567"),
}


@pytest.mark.parametrize("case", UNREADABLE)
@pytest.mark.parametrize("long", [False, True])
def test_tensors_that_are_none(case: str, long: bool, resolve: Resolve) -> None:
    request = request_of("bytes" if UNREADABLE[case].dtype == 7 else "fp32", x=UNREADABLE[case])
    request.client_id = b"c" * 2000 * long
    assert refusal(ask(resolve, request)) == (Code.INVALID_ARGUMENT, "tensor parsing error: x")


def test_repeated_values_are_bounded_for_all_inputs_together(resolve: Resolve) -> None:
    """A sixteenth of a message's limit, several values count four times; what is there in full is not counted."""

    def got(a: Any, b: Any) -> Any:
        return ask(resolve, request_of("pair", a=a, b=b), max_body_bytes=4000 * 16)

    half, more = (tensor("FP32", [size], float_val=[1]) for size in (500, 501))
    assert len(got(half, half).inputs["b"]) == 500
    text = "tensor parsing error: b: 2004 bytes, of which few were sent"
    assert refusal(got(half, more)) == (Code.INVALID_ARGUMENT, text)
    some, several = (tensor("FP32", [size], float_val=[1, 2]) for size in (125, 126))
    assert got(half, some).inputs["b"].tolist() == [1] + [2] * 124
    assert refusal(got(half, several))[1] == "tensor parsing error: b: 504 bytes, of which few were sent"
    full = tensor("FP32", [5000], float_val=[1] * 5000)
    assert len(got(full, full).inputs["a"]) == 5000


FOREIGN = {
    "DT_COMPLEX64": "complex64",
    "DT_COMPLEX128": "complex128",
    "DT_QINT8": "qint8",
    "DT_QUINT8": "quint8",
    "DT_QINT32": "qint32",
    "DT_QINT16": "qint16",
    "DT_QUINT16": "quint16",
    "DT_RESOURCE": "resource",
    "DT_VARIANT": "variant",
    "DT_FLOAT8_E5M2": "float8_e5m2",
    "DT_FLOAT8_E4M3FN": "float8_e4m3fn",
    "DT_INT4": "int4",
    "DT_UINT4": "uint4",
}


@pytest.mark.parametrize("name", FOREIGN)
def test_dtypes_that_no_model_takes(name: str, resolve: Resolve) -> None:
    for proto in (tensor(name, [2]), tensor(name, [10**12]), tensor(name, [0], tensor_content=b"abc")):
        text = f"Expects arg[0] to be float but {FOREIGN[name]} is provided"
        assert refusal(ask(resolve, request_of("m", x=proto))) == (Code.INVALID_ARGUMENT, text)


def test_one_value_for_all_takes_no_memory(resolve: Resolve) -> None:
    for model, proto in (("fp32", tensor("FP32", [1000, 1000], float_val=[3])), ("int64", tensor("INT64", [2000, 9]))):
        array = given(resolve, model, proto)
        assert array.strides == (0, 0)


def test_many_strings_as_bytes_are_read_in_a_thread(resolve: Resolve) -> None:
    proto = tensor("BYTES", [20_000], tensor_content=b"\0" * 20_000)
    with pytest.raises(MustOffload):
        ask(resolve, request_of("bytes", x=proto))
    assert given(resolve, "bytes", proto, in_thread=True).shape == (20_000,)


def test_large_numbers_are_views_of_the_message(resolve: Resolve) -> None:
    array = np.arange(1000, dtype=np.float32)
    for fields in ({"float_val": array.tolist()}, {"tensor_content": array.tobytes()}):
        body = request_of("m", x=tensor("FP32", [500, 2], **fields)).SerializeToString()
        got = ask(resolve, body).inputs["x"]
        assert np.array_equal(got.ravel(), array)
        assert np.shares_memory(got, np.frombuffer(body, np.uint8))


def test_large_numbers_leave_as_views_of_the_array(resolve: Resolve) -> None:
    request = ask(resolve, request_of("m", x=tensor("FP32", [1], float_val=[1])))
    array = np.arange(1000, dtype=np.float32).reshape(10, 100)
    parts = PREDICT.encode(InferResponse({"x": array}), request).body
    assert any(np.shares_memory(np.frombuffer(part, np.uint8), array) for part in parts)
    turned = whole(PREDICT.encode(InferResponse({"x": array.T}), request))
    assert Response.FromString(turned).outputs["x"].float_val[:] == array.T.ravel().tolist()


@pytest.mark.parametrize("helper", ["compiled", "without"])
@pytest.mark.parametrize("datatype", [name for name in DTYPES if name != "BYTES"])
def test_small_answers_of_one_shape_differ_in_their_numbers(
    datatype: str, helper: str, resolve: Resolve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small and large integers take other numbers of bytes: nothing of one answer may stand in the next."""
    if helper == "without":
        monkeypatch.setattr(varints, "_native_encode", None)
        monkeypatch.setattr(varints, "_native_decode", None)
    _around_lone.cache_clear()
    dtype = DTYPES[datatype]
    request = ask(resolve, request_of(datatype.lower(), x=tensor(datatype, [])))
    for bits in (b"\0", b"\1", b"\x7f", b"\xff", b"\0"):
        array = np.frombuffer((b"\1" if datatype == "BOOL" else bits) * 3 * dtype.itemsize, dtype)
        proto = Response.FromString(whole(PREDICT.encode(InferResponse({"x": array}), request))).outputs["x"]
        assert given(resolve, datatype.lower(), proto).tobytes() == array.tobytes()


@pytest.mark.parametrize("datatype", [name for name in DTYPES if name != "BYTES"])
def test_large_answers_are_what_protobuf_would_write(datatype: str, resolve: Resolve) -> None:
    bits = np.random.default_rng(1).integers(0, 256, 40_000, np.uint8)
    array = (bits < 128) if datatype == "BOOL" else bits.view(DTYPES[datatype])
    request = ask(resolve, request_of(datatype.lower(), x=tensor(datatype, [])))
    proto = Response.FromString(whole(PREDICT.encode(InferResponse({"x": array}), request))).outputs["x"]
    again = given(resolve, datatype.lower(), proto)
    assert again.tobytes() == array.tobytes()
    field = [field.name for field, _ in proto.ListFields() if field.name.endswith("_val")]
    assert len(field) == 1
    assert len(getattr(proto, field[0])) == array.size


# ------------------------------------------------------------------------------------------------- which model it means

ROW = tensor("FP32", [1, 2], float_val=[1, 2])
SPECS: list[tuple[Any, Any, tuple[Code, str] | None]] = [
    ({"name": "m"}, ("m", 1), None),
    ({"name": "m", "version": {"value": 1}}, ("m", 1), None),
    ({"name": "m", "version_label": "stable"}, ("m", 1), None),
    ({"name": "zero", "version": {}}, ("zero", 0), None),
    ({"name": "m", "version": {}}, None, (Code.NOT_FOUND, "Servable not found for request: Specific(m, 0)")),
    ({"name": "m", "version": {"value": 9}}, None, (Code.NOT_FOUND, "Servable not found for request: Specific(m, 9)")),
    (
        {"name": "m", "version": {"value": -1}},
        None,
        (Code.NOT_FOUND, "Servable not found for request: Specific(m, -1)"),
    ),
    ({"name": "no"}, None, (Code.NOT_FOUND, "Servable not found for request: Latest(no)")),
    (
        {"name": "no", "version": {"value": 2}},
        None,
        (Code.NOT_FOUND, "Servable not found for request: Specific(no, 2)"),
    ),
    (
        {"name": "m", "version_label": "odd"},
        None,
        (Code.INVALID_ARGUMENT, "Unrecognized servable version label: odd"),
    ),
    ({"name": "m", "version_label": ""}, None, (Code.INVALID_ARGUMENT, "Unrecognized servable version label: ")),
    (
        {"name": "no", "version_label": "odd"},
        None,
        (Code.INVALID_ARGUMENT, "Unrecognized servable version label: odd"),
    ),
    (None, None, (Code.INVALID_ARGUMENT, "Missing ModelSpec")),
    ({}, None, (Code.INVALID_ARGUMENT, "ModelSpec has no name specified.")),
    ({"version": {"value": 1}}, None, (Code.INVALID_ARGUMENT, "ModelSpec has no name specified.")),
]


@pytest.mark.parametrize(("spec", "found", "refused"), SPECS)
def test_model_spec(spec: Any, found: Any, refused: Any, resolve: Resolve) -> None:
    predict = Request(model_spec=spec, inputs={"x": ROW})
    metadata = MetadataRequest(model_spec=spec, metadata_field=["signature_def"])
    for asked, endpoint in ((predict, PREDICT), (metadata, METADATA)):
        got = ask(resolve, asked, endpoint)
        if refused:
            assert refusal(got) == refused
        else:
            assert (got.view.name, got.view.version) == found


def test_an_answer_names_what_answered(resolve: Resolve) -> None:
    spec = {"name": "m", "version_label": "stable", "signature_name": ""}
    request = ask(resolve, Request(model_spec=spec, inputs={"x": ROW}))
    answer = Response.FromString(whole(PREDICT.encode(InferResponse({"x": np.float32([1])}), request)))
    expected = {"name": "m", "version": {"value": 1}, "signature_name": "serving_default"}
    assert answer.model_spec == Request(model_spec=expected).model_spec


# ------------------------------------------------------------------------------------------------------------- predict

ONE = tensor("FP32", [1], float_val=[1])
INT = tensor("INT32", [1], int_val=[1])
MISSING = "Signature input alias: {}(feed name: {}:0) not found in request and no default value provided. "
WRONG: dict[str, tuple[Any, Code, str]] = {
    "unknown signature": (
        request_of("m", signature="odd", x=ROW),
        Code.FAILED_PRECONDITION,
        'Serving signature key "odd" not found.',
    ),
    "no default signature": (
        request_of("alias", image=ROW),
        Code.FAILED_PRECONDITION,
        'Serving signature key "serving_default" not found.',
    ),
    "too few": (
        request_of("pair", b=ONE),
        Code.INVALID_ARGUMENT,
        "input size does not match signature: 1!=2 len({b}) != len({a,b}). Sent extra: {}. Missing but required: {a}.",
    ),
    "none": (
        request_of("pair"),
        Code.INVALID_ARGUMENT,
        "input size does not match signature: 0!=2 len({}) != len({a,b}). Sent extra: {}. Missing but required: {a,b}.",
    ),
    "too many": (
        request_of("pair", d=ONE, c=ONE, b=ONE, a=ONE),
        Code.INVALID_ARGUMENT,
        "input size does not match signature: 4!=2 len({a,b,c,d}) != len({a,b})."
        " Sent extra: {c,d}. Missing but required: {}.",
    ),
    "too many beside defaults": (
        request_of("filled", a=ONE, b=ONE, c=ONE),
        Code.INVALID_ARGUMENT,
        "input size does not match signature: 3!=2 len({a,b,c}) != len({a,b})."
        " Sent extra: {c}. Missing but required: {}.",
    ),
    "another name": (
        request_of("pair", a=ONE, c=ONE),
        Code.INVALID_ARGUMENT,
        MISSING.format("b", "b") + "Inputs expected to be in the request {a,c}, or default input alias set: ",
    ),
    "without the one that has no default": (
        request_of("filled", b=ONE),
        Code.INVALID_ARGUMENT,
        MISSING.format("a", "a") + "Inputs expected to be in the request {b}, or default input alias set: b",
    ),
    "another name in place of a default": (
        request_of("filled", a=ONE, c=ONE),
        Code.INVALID_ARGUMENT,
        "Inputs contains invalid name. Used request inputs: a, request input: a,c",
    ),
    "another dtype": (
        request_of("m", x=INT),
        Code.INVALID_ARGUMENT,
        "Expects arg[0] to be float but int32 is provided",
    ),
    "another dtype of the second": (
        request_of("pair", a=ONE, b=tensor("FP64", [1])),
        Code.INVALID_ARGUMENT,
        "Expects arg[1] to be float but double is provided",
    ),
    "another dtype of both": (
        request_of("pair", b=INT, a=tensor("BYTES", [1])),
        Code.INVALID_ARGUMENT,
        "Expects arg[0] to be float but string is provided",
    ),
    "unknown output": (
        request_of("pair", ["y", "odd"], a=ONE, b=ONE),
        Code.INVALID_ARGUMENT,
        "output tensor alias not found in signature: odd Outputs expected to be in the set {y,z}.",
    ),
    "an output twice": (
        request_of("pair", ["y", "y"], a=ONE, b=ONE),
        Code.INVALID_ARGUMENT,
        "duplicate output tensor alias: y",
    ),
    "an unreadable tensor before its dtype": (
        request_of("m", x=tensor("INT32", [-1])),
        Code.INVALID_ARGUMENT,
        "tensor parsing error: x",
    ),
    "an unreadable tensor before a wrong name": (
        request_of("filled", a=tensor("FP32", [-1]), c=ONE),
        Code.INVALID_ARGUMENT,
        "tensor parsing error: a",
    ),
    "outputs before dtypes": (
        request_of("m", ["odd"], x=INT),
        Code.INVALID_ARGUMENT,
        "output tensor alias not found in signature: odd Outputs expected to be in the set {x}.",
    ),
    "inputs before outputs": (
        request_of("pair", ["odd"], a=ONE, c=ONE),
        Code.INVALID_ARGUMENT,
        MISSING.format("b", "b") + "Inputs expected to be in the request {a,c}, or default input alias set: ",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_predict_refuses(case: str, resolve: Resolve) -> None:
    request, code, text = WRONG[case]
    assert refusal(ask(resolve, request)) == (code, text)


def test_a_definition_says_how_tensors_are_called(make_model: Callable[..., ModelView], make_resolve: Any) -> None:
    """TensorFlow feeds tensors in the order of its own names for them."""
    view = make_model("m", {"a": ("FP32", (-1,)), "b": ("FP32", (-1,))}, {"y": ("FP32", (-1,))})
    definition = message("tensorflow.SignatureDef")(
        inputs={"a": {"name": "z_a:0", "dtype": "DT_FLOAT"}, "b": {"name": "serving_b:0", "dtype": "DT_FLOAT"}}
    )
    signature = replace(view.signatures["serving_default"], definition=definition.SerializeToString())
    resolve = make_resolve(with_signature(view, signature))
    assert refusal(ask(resolve, request_of("m", a=INT, b=ONE)))[1] == "Expects arg[1] to be float but int32 is provided"
    assert refusal(ask(resolve, request_of("m", b=ONE, c=ONE)))[1].startswith(MISSING.format("a", "z_a"))


def test_defaults_stand_for_what_is_left_out(resolve: Resolve) -> None:
    inputs = ask(resolve, request_of("filled", a=ONE)).inputs
    assert {name: array.tolist() for name, array in inputs.items()} == {"a": [1], "b": [7]}
    inputs = ask(resolve, request_of("filled", a=ONE, b=ONE)).inputs
    assert {name: array.tolist() for name, array in inputs.items()} == {"a": [1], "b": [1]}
    assert ask(resolve, request_of("may", a=ONE)).inputs.keys() == {"a"}


def test_declared_shapes_are_the_models_to_check(resolve: Resolve) -> None:
    assert given(resolve, "m", tensor("FP32", [3, 3, 3], float_val=[1])).shape == (3, 3, 3)


def test_serialized_examples_become_the_models_inputs(resolve: Resolve) -> None:
    Example = message("tensorflow.Example")  # noqa: N806
    rows = [Example(features={"feature": {"age": {"int64_list": {"value": [n]}}}}) for n in (3, 4)]
    proto = tensor("BYTES", [2], string_val=[row.SerializeToString() for row in rows])
    inputs = ask(resolve, request_of("examples", inputs=proto)).inputs
    assert inputs["x"].tolist() == [[3], [4]]
    broken = tensor("BYTES", [1], string_val=[b"\x0a\xff"])
    assert refusal(ask(resolve, request_of("examples", inputs=broken)))[0] is Code.INVALID_ARGUMENT
    assert refusal(ask(resolve, request_of("examples", inputs=ONE))) == (
        Code.INVALID_ARGUMENT,
        "Expects arg[0] to be string but float is provided",
    )


OUTPUTS: list[tuple[Any, tuple[str, ...], dict[str, str]]] = [
    ([], (), {"y": "y", "z": "z"}),
    (["z"], ("z",), {"z": "z"}),
    (["z", "y"], ("z", "y"), {"z": "z", "y": "y"}),
]


@pytest.mark.parametrize(("wanted", "asked", "names"), OUTPUTS)
def test_output_filter(wanted: Any, asked: tuple[str, ...], names: dict[str, str], resolve: Resolve) -> None:
    request = ask(resolve, request_of("pair", wanted, a=ONE, b=ONE))
    assert request.outputs == tuple(map(OutputRequest, asked))
    every = {"y": np.float32([1]), "z": np.int64([2])}
    answer = Response.FromString(whole(PREDICT.encode(InferResponse({name: every[name] for name in names}), request)))
    assert answer.outputs.keys() == names.keys()


def test_outputs_by_the_signatures_names(resolve: Resolve) -> None:
    request = ask(resolve, request_of("alias", signature="first", image=ROW))
    assert request.inputs.keys() == {"x"}
    assert request.outputs == (OutputRequest("y"),)
    answer = Response.FromString(whole(PREDICT.encode(InferResponse({"y": np.float32([1, 2])}), request)))
    assert {name: proto.float_val[:] for name, proto in answer.outputs.items()} == {"scores": [1, 2], "again": [1, 2]}
    assert answer.model_spec.signature_name == "first"


def test_the_callers_deadline_is_the_models(resolve: Resolve) -> None:
    assert ask(resolve, request_of("m", x=ROW), deadline=12.5).deadline == 12.5


@pytest.mark.parametrize("body", [b"\x0a\x05a", b"\xff", b"\x12\x03\x0a\x01\xff", b"\x12\x02\x12\x09"])
def test_bytes_that_are_no_message(body: bytes, resolve: Resolve) -> None:
    text = "failed to parse the request: it is no valid tensorflow.serving.PredictRequest"
    for padding in (b"", b"\x32\x84\x10" + bytes(2052)):
        assert refusal(ask(resolve, padding + body)) == (Code.INVALID_ARGUMENT, text)


# --------------------------------------------------------------------------------------------------- metadata, status

FIELDS: list[tuple[Any, str]] = [
    ([], "GetModelMetadataRequest must specify at least one metadata_field"),
    (["odd"], "Metadata field odd is not supported"),
    (["signature_def", "odd"], "Metadata field odd is not supported"),
    ([""], "Metadata field  is not supported"),
]


@pytest.mark.parametrize(("fields", "text"), FIELDS)
def test_metadata_fields_are_looked_at_before_the_model(fields: Any, text: str, resolve: Resolve) -> None:
    for spec in ({"name": "m"}, {"name": "no"}, {}):
        asked = MetadataRequest(model_spec=spec, metadata_field=fields)
        assert refusal(ask(resolve, asked, METADATA)) == (Code.INVALID_ARGUMENT, text)
    asked = MetadataRequest(metadata_field=fields)
    assert refusal(ask(resolve, asked, METADATA)) == (Code.INVALID_ARGUMENT, "Missing ModelSpec")


def test_metadata_to_the_byte(resolve: Resolve) -> None:
    asked = ask(resolve, b"\x0a\x03\x0a\x01m\x12\x0dsignature_def", METADATA)
    assert isinstance(asked, ModelMetadata)
    unknown = b"\x12\x0b\x08" + b"\xff" * 9 + b"\x01"
    info = b"\x0a\x03x:0\x10\x01\x1a\x11" + unknown + b"\x12\x02\x08\x02"
    tensors = b"\x0a\x01x\x12" + bytes([len(info)]) + info
    size = bytes([len(tensors)])
    definition = b"\x0a" + size + tensors + b"\x12" + size + tensors + b"\x1a\x1atensorflow/serving/predict"
    named = b"\x0a\x0fserving_default\x12" + bytes([len(definition)]) + definition
    value = b"\x0a" + varint(len(named)) + named
    url = b"type.googleapis.com/tensorflow.serving.SignatureDefMap"
    packed = b"\x0a" + bytes([len(url)]) + url + b"\x12" + varint(len(value)) + value
    metadata = b"\x0a\x0dsignature_def\x12" + varint(len(packed)) + packed
    expected = b"\x0a\x07\x0a\x01m\x12\x02\x08\x01" + b"\x12" + varint(len(metadata)) + metadata
    assert whole(METADATA.encode(asked.view, asked)) == expected


def varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 0x7F | 0x80, number >> 7])


def test_metadata_twice_is_metadata(resolve: Resolve) -> None:
    asked = MetadataRequest(model_spec={"name": "m"}, metadata_field=["signature_def", "signature_def"])
    assert isinstance(ask(resolve, asked, METADATA), ModelMetadata)


def test_metadata_has_every_signature(resolve: Resolve) -> None:
    asked = ask(resolve, MetadataRequest(model_spec={"name": "filled"}, metadata_field=["signature_def"]), METADATA)
    answer = message("tensorflow.serving.GetModelMetadataResponse").FromString(
        whole(METADATA.encode(asked.view, asked))
    )
    signatures = message("tensorflow.serving.SignatureDefMap")()
    assert answer.metadata["signature_def"].Unpack(signatures)
    definition = signatures.signature_def["serving_default"]
    assert definition.inputs.keys() == {"a", "b"}
    assert definition.defaults.keys() == {"b"}


@pytest.mark.parametrize(
    ("spec", "ref"),
    [
        ({"name": "m"}, ModelRef("m")),
        ({"name": "m", "version": {"value": 3}}, ModelRef("m", 3)),
        ({"name": "m", "version": {}}, ModelRef("m", 0)),
        ({"name": "m", "version_label": "odd"}, ModelRef("m")),
        ({"name": "m", "version_label": ""}, ModelRef("m")),
        ({}, ModelRef("")),
    ],
)
def test_status_asks_for_versions_and_ignores_labels(spec: Any, ref: ModelRef, resolve: Resolve) -> None:
    assert ask(resolve, StatusRequest(model_spec=spec), STATUS) == ModelStatus(ref)


def test_status_needs_a_model_spec(resolve: Resolve) -> None:
    assert refusal(ask(resolve, b"", STATUS)) == (Code.INVALID_ARGUMENT, "Missing ModelSpec")


def test_status_to_the_byte() -> None:
    versions = (
        VersionStatus(300, "AVAILABLE"),
        VersionStatus(4, "LOADING"),
        VersionStatus(3, "START"),
        VersionStatus(2, "UNLOADING"),
        VersionStatus(1, "END", "bad file"),
    )
    assert whole(STATUS.encode(versions, ModelStatus(ModelRef("m")))) == (
        b"\x0a\x07\x08\xac\x02\x10\x1e\x1a\x00"
        b"\x0a\x06\x08\x04\x10\x14\x1a\x00"
        b"\x0a\x06\x08\x03\x10\x0a\x1a\x00"
        b"\x0a\x06\x08\x02\x10\x28\x1a\x00"
        b"\x0a\x12\x08\x01\x10\x32\x1a\x0c\x08\x02\x12\x08bad file"
    )


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ModelNotFound("m"), "Could not find any versions of model m"),
        (ModelNotFound(""), "Could not find any versions of model "),
        (ModelNotFound("m", 3, known=True), "Could not find version 3 of model m"),
    ],
)
def test_status_of_what_is_not_there(error: ModelNotFound, text: str) -> None:
    reply = STATUS.encode_error(error, Call(b"", "POST", STATUS.address, {}, "grpc"))
    assert refusal(reply) == (Code.NOT_FOUND, text)


# -------------------------------------------------------------------------------------------------------------- errors

CALL = Call(b"", "POST", PREDICT.address, {}, "grpc")


@pytest.mark.parametrize("endpoint", DIALECT.grpc.values(), ids=lambda endpoint: endpoint.method)
def test_texts_are_those_of_rest(endpoint: Any) -> None:
    for error, code, text in (
        (errors.InvalidArgument("odd"), Code.INVALID_ARGUMENT, "odd"),
        (errors.LabelNotFound("m", "l"), Code.INVALID_ARGUMENT, "Unrecognized servable version label: l"),
        (errors.QueueTimeout("m"), Code.DEADLINE_EXCEEDED, "Run() timeout exceeded while waiting in batching queue"),
        (errors.ModelFailed("boom"), Code.INTERNAL, "boom"),
        (errors.Internal(), Code.INTERNAL, "Internal error"),
    ):
        assert refusal(endpoint.encode_error(error, CALL)) == (code, text)


def test_details_are_cut() -> None:
    def details(text: str) -> str:
        return refusal(PREDICT.encode_error(errors.InvalidArgument(text), CALL))[1]

    assert details("e" * 1024) == "e" * 1024
    assert details("e" * 1025) == "e" * 1024 + "...TRUNCATED"
    assert details("é" * 513) == "é" * 512 + "...TRUNCATED"
    assert details("a" + "é" * 512) == "a" + "é" * 511 + "...TRUNCATED", "no half of a character"
    assert details("\ud800") == "?"
