"""Open Inference V2 over gRPC, inference: messages as they come, replies to the byte, every refusal with its code."""

import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from tensorgate.adapters.open_inference import KIND, proto_message
from tensorgate.adapters.open_inference.options import OpenInferenceOptions
from tensorgate.adapters.protobuf.messages import message
from tensorgate.gateway.contract import errors
from tensorgate.gateway.contract.call import Call, MustRelay, Reply
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelView, OutputRequest, Sequence
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.errors import Code, GatewayError
from tensorgate.gateway.contract.tensor import DTYPES, TensorSpec, check_inputs

DIALECT = KIND.make(OpenInferenceOptions())
SERVICE = "/inference.GRPCInferenceService/"
UNARY, STREAM = DIALECT.grpc[SERVICE + "ModelInfer"], DIALECT.grpc[SERVICE + "ModelStreamInfer"]
Request, Response = message("inference.ModelInferRequest"), message("inference.ModelInferResponse")
StreamResponse = message("inference.ModelStreamInferResponse")
UNKNOWN = "[request id: <id_unknown>] "


@pytest.fixture
def resolve(make_model: Callable[..., ModelView], make_resolve: Callable[..., Resolve]) -> Resolve:
    vector = {"x": ("FP32", (-1, 2))}
    pair = {"a": ("INT32", (-1, 2)), "b": ("INT32", (-1, 2))}
    return make_resolve(
        make_model("pair", pair, pair),
        make_model("rows", vector, {"y": ("FP32", (-1, 2)), "z": ("FP32", (-1,))}, max_batch_size=4),
        make_model("rows2", {"x": ("FP32", (-1, 2)), "w": ("FP32", (-1, 1))}, {}, max_batch_size=4),
        make_model("token", vector, vector, decoupled=True),
        make_model("seven", vector, vector, version=7, versions=(3, 7)),
        *(make_model(name.lower(), {"x": (name, None)}, {"x": (name, None)}) for name in DTYPES),
    )


def item(name: str, datatype: str, shape: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, **more}


def call_of(body: bytes, **more: Any) -> Call:
    return Call(body, "POST", SERVICE + "ModelInfer", more.pop("headers", {}), "grpc", **more)


def ask(resolve: Resolve, body: Any, endpoint: Any = UNARY, **more: Any) -> Any:
    """The request that a message asks for, or the reply that refuses it."""
    call = call_of(body if isinstance(body, bytes) else body.SerializeToString(), **more)
    try:
        return endpoint.decode(call, resolve)
    except GatewayError as error:
        return endpoint.encode_error(error, call)


def one(model: str, raw: bytes | None = None, shape: Any = (1, 2), datatype: str = "FP32", **more: Any) -> Any:
    """A request with one input `x`."""
    given = {} if raw is None else {"raw_input_contents": [raw]}
    contents = {"contents": more.pop("contents")} if "contents" in more else {}
    of_input = {"parameters": more.pop("of_input")} if "of_input" in more else {}
    return Request(model_name=model, inputs=[item("x", datatype, shape, **contents, **of_input)], **given, **more)


def whole(reply: Reply) -> bytes:
    return reply.body if isinstance(reply.body, bytes) else b"".join(reply.body)  # type: ignore[arg-type]


def refusal(reply: Any) -> tuple[Code, str]:
    assert isinstance(reply, Reply), reply
    assert reply.grpc_code is not Code.OK
    return reply.grpc_code, reply.message


def paper(specs: dict[str, TensorSpec]) -> Any:
    """A view for tests that hypothesis repeats."""
    return SimpleNamespace(name="m", inputs=specs, outputs=specs, max_batch_size=0, decoupled=False)


ROW = struct.pack("<2f", 1, 2)

# --------------------------------------------------------------------------------------------------- both directions

RAW: list[tuple[str, list[int], list[Any], bytes]] = [
    ("BOOL", [2], [True, False], b"\1\0"),
    ("UINT8", [3], [0, 1, 255], b"\x00\x01\xff"),
    ("UINT16", [1], [0x0102], b"\x02\x01"),
    ("UINT32", [1], [1], b"\1\0\0\0"),
    ("UINT64", [1], [2**64 - 1], b"\xff" * 8),
    ("INT8", [1], [-1], b"\xff"),
    ("INT16", [1, 2], [-2, 1], b"\xfe\xff\1\0"),
    ("INT32", [2, 1], [1, -1], b"\1\0\0\0\xff\xff\xff\xff"),
    ("INT64", [], [1], b"\1" + b"\0" * 7),
    ("FP16", [1], [1], b"\x00\x3c"),
    ("BF16", [1], [1], b"\x80\x3f"),
    ("FP32", [1], [np.nan], b"\x00\x00\xc0\x7f"),
    ("FP64", [1], [1], b"\0" * 6 + b"\xf0\x3f"),
    ("BYTES", [2, 2], [b"a", b"", b"\xff\0", b"xyz"], b"\1\0\0\0a\0\0\0\0\2\0\0\0\xff\0\3\0\0\0xyz"),
    ("BYTES", [0], [], b""),
    ("FP32", [0, 4], [], b""),
]


@pytest.mark.parametrize(("datatype", "shape", "values", "data"), RAW)
def test_raw_contents_in_both_directions(
    datatype: str, shape: list[int], values: list[Any], data: bytes, resolve: Resolve
) -> None:
    request = ask(resolve, one(datatype.lower(), data, shape, datatype))
    assert isinstance(request, InferRequest), request
    array = request.inputs["x"]
    assert (array.dtype, array.shape) == (DTYPES[datatype], tuple(shape))
    np.testing.assert_array_equal(array.ravel(), np.array(values, DTYPES[datatype]))

    outputs = [item("x", datatype, shape)]
    expected = Response(
        model_name=datatype.lower(), model_version="1", outputs=outputs, raw_output_contents=[data]
    ).SerializeToString()
    assert whole(UNARY.encode(InferResponse({"x": array}), request)) == expected


def test_a_message_and_its_answer_to_the_byte(resolve: Resolve) -> None:
    body = (
        b"\x0a\x04pair\x1a\x02id"
        b"\x2a\x0e\x0a\x01a\x12\x05INT32\x1a\x02\x01\x02"
        b"\x2a\x0e\x0a\x01b\x12\x05INT32\x1a\x02\x01\x02"
        b"\x32\x03\x0a\x01b"
        b"\x3a\x08\1\0\0\0\2\0\0\0\x3a\x08\3\0\0\0\4\0\0\0"
    )
    request = ask(resolve, body)
    assert request.outputs == (OutputRequest("b"),)
    assert [array.tolist() for array in request.inputs.values()] == [[[1, 2]], [[3, 4]]]
    reply = UNARY.encode(InferResponse({"b": request.inputs["b"]}), request)
    assert whole(reply) == (
        b"\x0a\x04pair\x12\x011\x1a\x02id\x2a\x0e\x0a\x01b\x12\x05INT32\x1a\x02\x01\x02\x32\x08\3\0\0\0\4\0\0\0"
    )
    assert reply.grpc_code is Code.OK


def test_outputs_of_every_shape_and_layout(resolve: Resolve) -> None:
    request = ask(resolve, one("rows", ROW))
    grid = np.arange(12, dtype=np.float32).reshape(3, 4)
    outputs = {"t": grid.T, "every": grid[:, ::2], "scalar": np.float64(1.5).reshape(()), "none": grid[:0]}
    answer = Response.FromString(whole(UNARY.encode(InferResponse(outputs), request)))
    assert [list(each.shape) for each in answer.outputs] == [[4, 3], [3, 2], [], [0, 4]]
    assert list(answer.raw_output_contents) == [array.tobytes() for array in outputs.values()]
    assert not any(each.HasField("contents") for each in answer.outputs)


def test_what_a_model_says_beside_its_tensors(resolve: Resolve) -> None:
    request = ask(resolve, one("rows", ROW, id="é"))
    values = {"s": "ü", "b": True, "i": -(2**63), "d": 0.5}
    answer = Response.FromString(whole(UNARY.encode(InferResponse({}, values), request)))
    assert answer.id == "é"
    assert {
        key: getattr(each, each.WhichOneof("parameter_choice")) for key, each in answer.parameters.items()
    } == values
    for unfit in (2**63, [1], "\ud800"):
        with pytest.raises(errors.EncodingFailed):
            UNARY.encode(InferResponse({}, {"p": unfit}), request)  # type: ignore[dict-item]


def test_large_messages_are_not_copied(resolve: Resolve) -> None:
    array = np.arange(2000, dtype=np.float32).reshape(-1, 2)
    body = one("fp32", array.tobytes(), array.shape).SerializeToString()
    assert len(body) > proto_message.WALKED_BYTES
    request = ask(resolve, body)
    got = request.inputs["x"]
    assert np.shares_memory(got, np.frombuffer(body, np.uint8))
    np.testing.assert_array_equal(got, array)
    parts = UNARY.encode(InferResponse({"x": array}), request).body
    assert any(np.shares_memory(array, np.frombuffer(part, np.uint8)) for part in parts if len(part) > 4000)


# ------------------------------------------------------------------------------------------------------ typed contents

TYPED = [
    ("BOOL", "bool_contents", [True, False]),
    ("UINT8", "uint_contents", [0, 255]),
    ("UINT16", "uint_contents", [0, 2**16 - 1]),
    ("UINT32", "uint_contents", [0, 2**32 - 1]),
    ("UINT64", "uint64_contents", [0, 2**64 - 1]),
    ("INT8", "int_contents", [-128, 127]),
    ("INT16", "int_contents", [-(2**15), 2**15 - 1]),
    ("INT32", "int_contents", [-(2**31), 2**31 - 1]),
    ("INT64", "int64_contents", [-(2**63), 2**63 - 1]),
    ("FP32", "fp32_contents", [np.float32(0.1), -np.inf]),
    ("FP64", "fp64_contents", [0.1, -0.0]),
    ("BYTES", "bytes_contents", [b"\xff\0", b""]),
    # any integer field, as the protocol's own examples have it
    ("UINT32", "int_contents", [0, 2**31 - 1]),
    ("UINT8", "int64_contents", [0, 255]),
    ("INT64", "uint64_contents", [0, 2**63 - 1]),
    ("UINT64", "int_contents", [0, 5]),
    ("INT8", "uint_contents", [0, 127]),
]


@pytest.mark.parametrize(("datatype", "field", "values"), TYPED)
def test_typed_contents(datatype: str, field: str, values: list[Any], resolve: Resolve) -> None:
    request = ask(resolve, one(datatype.lower(), None, [2, 1], datatype, contents={field: values}))
    assert isinstance(request, InferRequest), request
    array = request.inputs["x"]
    assert (array.dtype, array.shape) == (DTYPES[datatype], (2, 1))
    expected = np.empty((2, 1), DTYPES[datatype])
    expected[:, 0] = values
    np.testing.assert_array_equal(array, expected)
    if datatype != "BYTES":
        assert array.tobytes() == expected.tobytes()


@pytest.mark.parametrize("datatype", DTYPES)
def test_empty_contents_are_no_bytes(datatype: str, resolve: Resolve) -> None:
    request = ask(resolve, one(datatype.lower(), None, [0, 3], datatype, contents={}))
    assert (request.inputs["x"].dtype, request.inputs["x"].shape) == (DTYPES[datatype], (0, 3))


@given(st.sampled_from([name for name in DTYPES if name not in ("BYTES", "FP16", "BF16")]), st.data())
def test_the_same_tensor_comes_in_every_way(datatype: str, data: st.DataObject) -> None:
    """JSON, binary, raw contents and typed contents give the same bits."""
    dtype = DTYPES[datatype]
    elements = st_numpy.from_dtype(dtype, allow_nan=False, allow_infinity=False)
    shapes = st_numpy.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4)
    array = data.draw(st_numpy.arrays(dtype, shapes, elements=elements))
    spec = {"x": TensorSpec("x", dtype, None)}
    view: Any = type(
        "View", (), {"name": "m", "inputs": spec, "outputs": spec, "max_batch_size": 0, "decoupled": False}
    )
    fields = {"u": "uint_contents", "i": "int_contents", "b": "bool_contents"}
    field = {"FP32": "fp32_contents", "FP64": "fp64_contents", "INT64": "int64_contents", "UINT64": "uint64_contents"}
    typed = {"contents": {field.get(datatype, fields.get(dtype.kind, "")): array.ravel().tolist()}}

    def of_grpc(body: Any) -> Any:
        return UNARY.decode(call_of(body.SerializeToString()), lambda ref: view).inputs["x"]

    def of_http(body: bytes, headers: dict[str, str]) -> Any:
        endpoint = DIALECT.match("POST", "/v2/models/m/infer").endpoint
        call = Call(body, "POST", "/v2/models/m/infer", headers, "http", {"model": "m"})
        return endpoint.decode(call, lambda ref: view).inputs["x"]

    head = {"name": "x", "datatype": datatype, "shape": list(array.shape)}
    json = orjson.dumps({"inputs": [head | {"data": array.ravel().tolist()}]})
    tensors = [head | {"parameters": {"binary_data_size": array.nbytes}}]
    binary = orjson.dumps({"inputs": tensors})
    ways = [
        of_grpc(one("m", array.tobytes(), array.shape, datatype)),
        of_grpc(one("m", array.tobytes(), array.shape, datatype, id="i" * proto_message.WALKED_BYTES)),
        of_grpc(one("m", None, array.shape, datatype, **typed)),
        of_http(json, {}),
        of_http(binary + array.tobytes(), {"inference-header-content-length": str(len(binary))}),
    ]
    for way in ways:
        assert (way.dtype, way.shape, way.tobytes()) == (array.dtype, array.shape, array.tobytes())


@given(st_numpy.arrays(object, st_numpy.array_shapes(max_side=3), elements=st.binary(max_size=9)))
def test_the_same_texts_come_in_every_way(array: Any) -> None:
    spec = {"x": TensorSpec("x", DTYPES["BYTES"], None)}
    view: Any = type(
        "View", (), {"name": "m", "inputs": spec, "outputs": spec, "max_batch_size": 0, "decoupled": False}
    )
    raw = b"".join(struct.pack("<I", len(each)) + each for each in array.ravel())
    for body in (
        one("m", raw, array.shape, "BYTES"),
        one("m", None, array.shape, "BYTES", contents={"bytes_contents": list(array.ravel())}),
    ):
        got = UNARY.decode(call_of(body.SerializeToString()), lambda ref: view).inputs["x"]
        assert got.shape == array.shape
        assert got.ravel().tolist() == array.ravel().tolist()


# ------------------------------------------------------------------------------------------------------------ refusals

MISMATCH = UNKNOWN + "input byte size mismatch for input 'x' for model '{}'. Expected {}, got {}"
EXPLICIT = "unexpected explicit tensor data for input tensor 'x' for model '{}'"
REFUSED: list[tuple[Any, Code, str]] = [
    (b"\xff", Code.INVALID_ARGUMENT, "failed to parse the request: it is no valid inference.ModelInferRequest"),
    (
        b"\xff" * 5000,
        Code.INVALID_ARGUMENT,
        "failed to parse the request: it is no valid inference.ModelInferRequest",
    ),
    (one("absent", ROW), Code.NOT_FOUND, "Request for unknown model: 'absent' is not found"),
    (Request(), Code.NOT_FOUND, "Request for unknown model: '' is not found"),
    (
        one("rows", ROW, model_version="2"),
        Code.NOT_FOUND,
        "Request for unknown model: 'rows' version 2 is not found",
    ),
    (
        one("rows", ROW, model_version="one"),
        Code.INVALID_ARGUMENT,
        "failed to get model version from specified version string 'one' (details: stol), "
        "version should be an integral value > 0",
    ),
    (
        one("rows", ROW, model_version="9" * 20),
        Code.INVALID_ARGUMENT,
        f"failed to get model version from specified version string '{'9' * 20}' (details: stol), "
        "version should be an integral value > 0",
    ),
    (
        one("rows", ROW, model_version="-2"),
        Code.INVALID_ARGUMENT,
        "invalid model version specified '-2' , version should be an integral value > 0",
    ),
    (one("token", ROW), Code.UNIMPLEMENTED, "ModelInfer RPC doesn't support models with decoupled transaction policy"),
    (one("rows"), Code.INVALID_ARGUMENT, "unable to find data for input tensor 'x' for model 'rows' in request."),
    (
        one("rows", b"", contents={"fp32_contents": [1, 2]}),
        Code.INVALID_ARGUMENT,
        "contents field must not be specified when using raw_input_contents for 'x' for model 'rows'",
    ),
    (one("rows", ROW[:7]), Code.INVALID_ARGUMENT, MISMATCH.format("rows", 8, 7)),
    (one("rows", ROW + b"\0"), Code.INVALID_ARGUMENT, MISMATCH.format("rows", 8, 9)),
    (one("rows", contents={}), Code.INVALID_ARGUMENT, MISMATCH.format("rows", 8, 0)),
    (one("rows", contents={"fp32_contents": [1]}), Code.INVALID_ARGUMENT, MISMATCH.format("rows", 8, 4)),
    (one("rows", contents={"fp32_contents": [1, 2, 3]}), Code.INVALID_ARGUMENT, MISMATCH.format("rows", 8, 12)),
    (
        one("rows", ROW[:7], id="42"),
        Code.INVALID_ARGUMENT,
        "[request id: 42] input byte size mismatch for input 'x' for model 'rows'. Expected 8, got 7",
    ),
    (
        one("rows", contents={"int_contents": [1, 2]}),
        Code.INVALID_ARGUMENT,
        EXPLICIT.format("rows") + " of type 'INT32', expected datatype 'FP32'",
    ),
    (
        one("rows", contents={"fp64_contents": [1, 2]}),
        Code.INVALID_ARGUMENT,
        EXPLICIT.format("rows") + " of type 'FP64', expected datatype 'FP32'",
    ),
    (
        one("bool", None, [2], "BOOL", contents={"uint_contents": [1, 2]}),
        Code.INVALID_ARGUMENT,
        EXPLICIT.format("bool") + " of type 'UINT32', expected datatype 'BOOL'",
    ),
    (
        one("fp16", None, [2], "FP16", contents={"fp32_contents": [1, 2]}),
        Code.INVALID_ARGUMENT,
        EXPLICIT.format("fp16") + " of type 'FP32', expected datatype 'FP16'",
    ),
    (
        one("int32", None, [1], "INT32", contents={"bytes_contents": [b"a"]}),
        Code.INVALID_ARGUMENT,
        EXPLICIT.format("int32") + " of type 'BYTES', expected datatype 'INT32'",
    ),
    (
        one("int32", None, [1], "INT32", contents={"int_contents": [1], "int64_contents": [1]}),
        Code.INVALID_ARGUMENT,
        EXPLICIT.format("int32") + ", binary data was already supplied.",
    ),
    (
        one("uint8", None, [2], "UINT8", contents={"uint_contents": [1, 256]}),
        Code.INVALID_ARGUMENT,
        EXPLICIT.format("uint8") + ": 256 is out of range for UINT8",
    ),
    (
        one("uint64", None, [2], "UINT64", contents={"int_contents": [1, -1]}),
        Code.INVALID_ARGUMENT,
        EXPLICIT.format("uint64") + ": -1 is out of range for UINT64",
    ),
    (
        one("int64", None, [1], "INT64", contents={"uint64_contents": [2**63]}),
        Code.INVALID_ARGUMENT,
        EXPLICIT.format("int64") + f": {2**63} is out of range for INT64",
    ),
    (
        one("bytes", None, [3], "BYTES", contents={"bytes_contents": [b"a", b"b"]}),
        Code.INVALID_ARGUMENT,
        "[request id: <id_unknown>] expected 3 string elements for inference input 'x' for model 'bytes', got 2",
    ),
    (
        one("bytes", None, [1], "BYTES", contents={"bytes_contents": [b"a", b"b"]}),
        Code.INVALID_ARGUMENT,
        "[request id: <id_unknown>] unexpected number of string elements 2 "
        "for inference input 'x' for model 'bytes', expecting 1",
    ),
    (
        one("bytes", b"\x10\0\0\0abc", [1], "BYTES"),
        Code.INVALID_ARGUMENT,
        "incomplete string data for inference input 'x', expecting string of length 16 but only 3 bytes available",
    ),
    (
        one("rows", ROW, datatype="float"),
        Code.INVALID_ARGUMENT,
        UNKNOWN + "inference input 'x' data-type is '<invalid>', but model 'rows' expects 'FP32'",
    ),
    (
        one("rows", contents={"int_contents": [1]}, datatype=""),
        Code.INVALID_ARGUMENT,
        UNKNOWN + "inference input 'x' data-type is '<invalid>', but model 'rows' expects 'FP32'",
    ),
    (
        one("rows", ROW, datatype="INT32"),
        Code.INVALID_ARGUMENT,
        UNKNOWN + "inference input 'x' data-type is 'INT32', but model 'rows' expects 'FP32'",
    ),
    (
        one("seven", ROW, [2]),
        Code.INVALID_ARGUMENT,
        UNKNOWN + "unexpected shape for input 'x' for model 'seven'. Expected [-1,2], got [2]. ",
    ),
    (
        one("rows", ROW, [-1, 2]),
        Code.INVALID_ARGUMENT,
        "invalid shape for input 'x': shape [-1,2] has a negative dimension",
    ),
    (
        one("rows", ROW, [2**32, 2**32]),
        Code.INVALID_ARGUMENT,
        "invalid shape for input 'x': shape [4294967296,4294967296] causes total element count to exceed maximum size "
        "of 9223372036854775807",
    ),
    (
        one("rows", ROW, [2**61, 2]),
        Code.INVALID_ARGUMENT,
        "byte size overflow for input 'x': 4611686018427387904 elements of 4 bytes exceed 9223372036854775807",
    ),
    (
        one("rows", ROW, [1] * 65),
        Code.INVALID_ARGUMENT,
        "invalid shape for input 'x': shape has 65 dimensions, at most 64 are possible",
    ),
    (
        one("rows", ROW * 5, [5, 2]),
        Code.INVALID_ARGUMENT,
        UNKNOWN + "inference request batch-size must be <= 4 for 'rows'",
    ),
    (
        Request(
            model_name="rows2",
            inputs=[item("x", "FP32", [1, 2]), item("w", "FP32", [2, 1])],
            raw_input_contents=[ROW, ROW],
        ),
        Code.INVALID_ARGUMENT,
        UNKNOWN + "input 'x' batch size does not match other inputs for 'rows2'",
    ),
    (
        Request(model_name="rows", inputs=[item("x", "FP32", [1, 2])] * 2, raw_input_contents=[ROW, ROW]),
        Code.INVALID_ARGUMENT,
        UNKNOWN + "input 'x' already exists in request",
    ),
    (
        Request(model_name="rows", inputs=[item("y", "FP32", [1, 2])], raw_input_contents=[ROW]),
        Code.INVALID_ARGUMENT,
        "unexpected inference input 'y' for model 'rows'",
    ),
    (
        Request(model_name="pair", inputs=[item("a", "INT32", [1, 2])], raw_input_contents=[ROW]),
        Code.INVALID_ARGUMENT,
        UNKNOWN + "expected 2 inputs but got 1 inputs for model 'pair'. Got input(s) ['a'], but missing required "
        "input(s) ['b']. Please provide all required input(s).",
    ),
    (
        one("rows", ROW, outputs=[{"name": "nothing"}]),
        Code.INVALID_ARGUMENT,
        "unexpected inference output 'nothing' for model 'rows'",
    ),
]


@pytest.mark.parametrize(("body", "code", "text"), REFUSED)
def test_refusals(body: Any, code: Code, text: str, resolve: Resolve) -> None:
    assert refusal(ask(resolve, body)) == (code, text)


def test_a_batch_dimension_is_explained(resolve: Resolve) -> None:
    code, text = refusal(ask(resolve, one("rows", ROW, [2])))
    assert code is Code.INVALID_ARGUMENT
    assert text.startswith(
        UNKNOWN + "unexpected shape for input 'x' for model 'rows'. Expected [-1,2], got [2]. NOTE: Setting a non-zero "
    )


@pytest.mark.parametrize("version", ["", "-1", "7", "007"])
def test_versions(version: str, resolve: Resolve) -> None:
    assert ask(resolve, one("seven", ROW, model_version=version)).view.version == 7


def test_raw_entries_belong_to_inputs_in_order(resolve: Resolve) -> None:
    request = Request(
        model_name="pair",
        inputs=[item("b", "INT32", [1, 2]), item("a", "INT32", [1, 2])],
        raw_input_contents=[b"\1\0\0\0\2\0\0\0", b"\3\0\0\0\4\0\0\0"],
    )
    got = ask(resolve, request).inputs
    assert {name: array.tolist() for name, array in got.items()} == {"b": [[1, 2]], "a": [[3, 4]]}


@pytest.mark.parametrize("surplus", [[ROW], [b""], [ROW, b"more"], [bytes(8 << 10)]])
@pytest.mark.parametrize("endpoint", [UNARY, STREAM], ids=["unary", "stream"])
def test_raw_entries_that_belong_to_no_input_are_refused(endpoint: Any, surplus: list[bytes], resolve: Resolve) -> None:
    request = one("fp32", ROW)
    assert isinstance(ask(resolve, request, endpoint), InferRequest)
    request.raw_input_contents.extend(surplus)
    for _ in range(2):
        reply = ask(resolve, request, endpoint)
        assert reply.grpc_code is Code.INVALID_ARGUMENT or reply.streamed
        assert "unexpected additional input data for model 'fp32'" in str(reply.message or whole(reply))


@pytest.mark.parametrize("endpoint", [UNARY, STREAM], ids=["unary", "stream"])
def test_an_output_named_twice_is_refused(endpoint: Any, resolve: Resolve) -> None:
    request = one("fp32", ROW, outputs=[{"name": "x"}])
    assert isinstance(ask(resolve, request, endpoint), InferRequest)
    request.outputs.add(name="x")
    for _ in range(2):
        reply = ask(resolve, request, endpoint)
        assert reply.grpc_code is Code.INVALID_ARGUMENT or reply.streamed
        assert "output 'x' already exists in request" in str(reply.message or whole(reply))


@given(st.binary(max_size=300))
def test_garbage_is_refused_and_nothing_else(garbage: bytes) -> None:
    spec = {"x": TensorSpec("x", DTYPES["FP32"], (-1, 2))}
    view: Any = type(
        "View", (), {"name": "m", "inputs": spec, "outputs": spec, "max_batch_size": 0, "decoupled": False}
    )
    for body in (garbage, one("m", garbage, [len(garbage) // 8, 2]).SerializeToString() + garbage):
        try:
            request = UNARY.decode(call_of(body), lambda ref: view)
        except GatewayError:
            continue
        check_inputs("m", request.inputs, spec, 0)


# ---------------------------------------------------------------------------------------------------------- parameters


def test_reserved_parameters_are_consumed_and_others_passed_on(resolve: Resolve) -> None:
    parameters = {
        "sequence_id": {"int64_param": 42},
        "sequence_start": {"bool_param": True},
        "priority": {"uint64_param": 2},
        "timeout": {"int64_param": 1500},
        "text": {"string_param": "ü"},
        "flag": {"bool_param": False},
        "number": {"int64_param": -1},
        "real": {"double_param": 0.5},
    }
    request = ask(resolve, one("rows", ROW, parameters=parameters), deadline=5.0)
    assert request.parameters == {"text": "ü", "flag": False, "number": -1, "real": 0.5}
    assert request.sequence == Sequence(42, start=True, end=False)
    assert (request.priority, request.queue_timeout_us, request.deadline) == (2, 1500, 5.0)
    assert not request.stream


@pytest.mark.parametrize(
    ("value", "sequence"),
    [
        ({"string_param": "a" * 128}, Sequence("a" * 128)),
        ({"int64_param": -1}, Sequence(2**64 - 1)),
        ({"int64_param": 0}, None),
        ({"string_param": ""}, None),
    ],
)
def test_sequence_ids(value: Any, sequence: Any, resolve: Resolve) -> None:
    assert ask(resolve, one("rows", ROW, parameters={"sequence_id": value})).sequence == sequence


def test_an_int64_priority_will_do(resolve: Resolve) -> None:
    assert ask(resolve, one("rows", ROW, parameters={"priority": {"int64_param": 3}})).priority == 3


def test_a_unary_call_may_ask_for_the_empty_final_response(resolve: Resolve) -> None:
    """perf_analyzer does so with every call; there is nothing to say, and a real Triton answers as ever."""
    request = ask(resolve, one("rows", ROW, parameters={EMPTY_FINAL: {"bool_param": True}}))
    assert (request.parameters, request.wire) == ({}, None)


CUSTOM = "invalid value type for 'p' parameter, expected int64_param, bool_param, or string_param."
EMPTY_FINAL = "triton_enable_empty_final_response"
RESERVED = (
    "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting with "
    f"'triton_' are allowed: {EMPTY_FINAL}"
)
WRONG_PARAMETERS = [
    ("p", {"uint64_param": 1}, CUSTOM),
    ("p", {}, CUSTOM),
    ("triton_x", {"bool_param": True}, RESERVED),
    (EMPTY_FINAL, {"int64_param": 1}, f"invalid value type for '{EMPTY_FINAL}' parameter, expected bool_param."),
    (
        "sequence_id",
        {"uint64_param": 1},
        "invalid value type for 'sequence_id' parameter, expected int64_param or string_param.",
    ),
    (
        "sequence_start",
        {"int64_param": 1},
        "invalid value type for 'sequence_start' parameter, expected bool_param.",
    ),
    ("sequence_end", {}, "invalid value type for 'sequence_end' parameter, expected bool_param."),
    (
        "priority",
        {"string_param": "1"},
        "invalid value type for 'priority' parameter, expected int64_param or uint64_param.",
    ),
    ("priority", {"int64_param": -1}, "invalid value for 'priority', expected value >= 0."),
    ("timeout", {"uint64_param": 1}, "invalid value type for 'timeout' parameter, expected int64_param."),
    ("timeout", {"int64_param": -1}, "invalid value for 'timeout', expected value >= 0."),
]


@pytest.mark.parametrize(("key", "value", "text"), WRONG_PARAMETERS)
def test_wrong_parameters(key: str, value: Any, text: str, resolve: Resolve) -> None:
    assert refusal(ask(resolve, one("rows", ROW, parameters={key: value}))) == (Code.INVALID_ARGUMENT, text)


def test_a_sequence_id_is_short(resolve: Resolve) -> None:
    body = one("rows", ROW, parameters={"sequence_id": {"string_param": "a" * 129}})
    assert refusal(ask(resolve, body)) == (
        Code.UNIMPLEMENTED,
        "string correlation ID cannot be longer than 128 characters",
    )


# ------------------------------------------------------------------------------------- classification, shared memory


def test_classification(resolve: Resolve) -> None:
    outputs = [{"name": "z"}, {"name": "y", "parameters": {"classification": {"int64_param": 3}}}]
    request = ask(resolve, one("rows", ROW, outputs=outputs))
    assert request.outputs == (OutputRequest("z"), OutputRequest("y", top_k=3))


REGION = {"shared_memory_region": {"string_param": "r"}, "shared_memory_byte_size": {"int64_param": 8}}
WRONG_OUTPUTS: list[tuple[Any, Code, str]] = [
    (
        {"classification": {"int64_param": 0}},
        Code.INVALID_ARGUMENT,
        "invalid value for 'classification' parameter, expected >= 0",
    ),
    (
        {"classification": {"int64_param": -1}},
        Code.INVALID_ARGUMENT,
        "invalid value for 'classification' parameter, expected >= 0",
    ),
    (
        {"classification": {"uint64_param": 1}},
        Code.INVALID_ARGUMENT,
        "invalid value type for 'classification' parameter, expected int64_param",
    ),
    (REGION, Code.NOT_FOUND, "Unable to find shared memory region: 'r'"),
    (
        REGION | {"classification": {"int64_param": 1}},
        Code.INVALID_ARGUMENT,
        "output can't set both 'shared_memory_region' and 'classification'",
    ),
    (
        {"shared_memory_region": {"string_param": "r"}},
        Code.INVALID_ARGUMENT,
        "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor 'y'",
    ),
    (
        {"shared_memory_region": {"int64_param": 1}},
        Code.INVALID_ARGUMENT,
        "invalid value type for 'shared_memory_region' parameter for tensor 'y', expected string_param.",
    ),
    (
        REGION | {"shared_memory_offset": {"int64_param": -1}},
        Code.INVALID_ARGUMENT,
        "Invalid offset + byte size for shared memory region: 'r'",
    ),
]


@pytest.mark.parametrize(("parameters", "code", "text"), WRONG_OUTPUTS)
def test_wrong_outputs(parameters: Any, code: Code, text: str, resolve: Resolve) -> None:
    body = one("rows", ROW, outputs=[{"name": "y", "parameters": parameters}])
    assert refusal(ask(resolve, body)) == (code, text)


def test_an_input_in_shared_memory(resolve: Resolve) -> None:
    assert refusal(ask(resolve, one("rows", of_input=REGION))) == (
        Code.NOT_FOUND,
        "Unable to find shared memory region: 'r'",
    )
    assert refusal(ask(resolve, one("rows", contents={}, of_input=REGION))) == (
        Code.INVALID_ARGUMENT,
        "unexpected 'content' provided when using shared memory for input tensor 'x' for model 'rows'",
    )


def test_other_parameters_of_tensors_are_ignored(resolve: Resolve) -> None:
    body = one("rows", ROW, of_input={"x": {}}, outputs=[{"name": "y", "parameters": {"binary_data": {}}}])
    assert ask(resolve, body).outputs == (OutputRequest("y"),)


# ------------------------------------------------------------------------------------------------------------- streams


def streamed(reply: Reply) -> Any:
    assert reply.grpc_code is Code.OK
    assert reply.streamed
    return StreamResponse.FromString(whole(reply))


def final(response: Any) -> bool:
    assert response.parameters["triton_final_response"].WhichOneof("parameter_choice") == "bool_param"
    return bool(response.parameters["triton_final_response"].bool_param)


@pytest.mark.parametrize("last", [True, False])
def test_answers_of_a_stream(last: bool, resolve: Resolve) -> None:
    request = ask(resolve, one("token", ROW, id="9"), STREAM)
    assert request.stream
    reply = STREAM.encode(InferResponse({"x": request.inputs["x"]}, {"note": "n"}, last), request)
    answer = streamed(reply)
    assert not answer.error_message
    assert final(answer.infer_response) is last
    assert answer.infer_response.parameters["note"].string_param == "n"
    assert answer.infer_response.id == "9"
    assert list(answer.infer_response.raw_output_contents) == [ROW]


def test_an_answer_of_a_stream_to_the_byte(resolve: Resolve) -> None:
    request = ask(resolve, one("token", ROW, id="9"), STREAM)
    reply = STREAM.encode(InferResponse({"x": request.inputs["x"]}, final=False), request)
    assert whole(reply) == streamed(reply).SerializeToString()


def ended(resolve: Resolve, model: str, last: Any, **more: Any) -> Any:
    request = ask(resolve, one(model, ROW, parameters={EMPTY_FINAL: {"bool_param": True}}, **more), STREAM)
    assert STREAM.encode_end is not None
    return STREAM.encode_end(last, request)


@pytest.mark.parametrize("last", [None, InferResponse({}, final=False)])
def test_the_end_of_a_decoupled_model(last: Any, resolve: Resolve) -> None:
    response = streamed(ended(resolve, "token", last, id="9", model_version="1")).infer_response
    assert final(response)
    assert (response.id, response.model_name, response.model_version) == ("9", "token", "1")
    assert not response.outputs
    assert streamed(ended(resolve, "token", last)).infer_response.model_version == ""


def test_an_end_that_is_known_is_not_told(resolve: Resolve) -> None:
    assert ended(resolve, "token", InferResponse({})) is None
    assert ended(resolve, "rows", InferResponse({})) is None
    assert STREAM.encode_end is not None
    assert STREAM.encode_end(None, ask(resolve, one("token", ROW), STREAM)) is None


def test_the_end_is_asked_for_by_a_boolean(resolve: Resolve) -> None:
    body = one("rows", ROW, parameters={EMPTY_FINAL: {"int64_param": 1}})
    error = streamed(ask(resolve, body, STREAM)).error_message
    assert error == f"invalid value type for '{EMPTY_FINAL}' parameter, expected bool_param."


def test_an_error_is_a_message_of_the_stream(resolve: Resolve) -> None:
    answer = streamed(ask(resolve, one("absent", ROW, id="9"), STREAM))
    assert answer.error_message == "Request for unknown model: 'absent' is not found"
    assert answer.infer_response == Response(id="9")


def test_a_model_s_error_names_it_and_is_its_last_word(resolve: Resolve) -> None:
    call = call_of(one("token", ROW, id="9").SerializeToString())
    STREAM.decode(call, resolve)
    call.accepted = True
    answer = streamed(STREAM.encode_error(errors.ModelFailed("ValueError: no"), call))
    assert answer.error_message == "ValueError: no"
    assert (answer.infer_response.id, answer.infer_response.model_name) == ("9", "token")
    assert final(answer.infer_response)


def test_errors_that_end_a_stream(resolve: Resolve) -> None:
    wanted = {"triton_grpc_error": "true"}
    call = call_of(one("token", ROW).SerializeToString(), headers=wanted)
    STREAM.decode(call, resolve)
    failed = errors.ModelFailed("ValueError: no")
    assert streamed(STREAM.encode_error(failed, call)).error_message == "ValueError: no", "no model has said it yet"
    call.accepted = True
    assert refusal(STREAM.encode_error(failed, call)) == (Code.INTERNAL, "ValueError: no")
    late = STREAM.encode_error(errors.DeadlineExceeded("m"), call_of(b""))
    assert refusal(late) == (Code.DEADLINE_EXCEEDED, "Deadline Exceeded")


def test_a_fault_of_ours_says_no_more() -> None:
    reply = STREAM.encode_error(errors.Internal(), call_of(b""))
    assert streamed(reply).error_message == "internal error"


@pytest.mark.parametrize("times", [1, 3], ids=["whole", "by a template"])
def test_an_answer_of_a_stream_that_another_process_reads_names_the_model(
    make_model: Callable[..., ModelView], times: int
) -> None:
    """A door passes the call on unread, and has to say itself that the engine has died since."""
    view = make_model("elsewhere", {"x": ("FP32", (-1,))}, {"y": ("FP32", (-1,))})
    said = Request(model_name="elsewhere", inputs=[item("x", "FP32", [1])], raw_input_contents=[bytes(4)])
    body = said.SerializeToString()
    for _ in range(times - 1):
        STREAM.decode(call_of(body), lambda ref: view)

    def relay(ref: Any) -> ModelView:
        raise MustRelay

    call = call_of(body)
    with pytest.raises(MustRelay):
        STREAM.decode(call, relay)
    call.accepted = True
    answer = StreamResponse.FromString(STREAM.encode_error(errors.Unavailable("gone"), call).body)
    assert (answer.error_message, answer.infer_response.model_name) == ("gone", "elsewhere")
