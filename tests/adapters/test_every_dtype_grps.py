"""grps: every datatype in every encoding, in both directions, on both sides, whichever way it takes.

The judges are json, struct, NumPy and protobuf's runtime; replies are laid out as Python's json prints them.
"""

import base64
import json
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from dtype_cases import (
    DTYPES,
    FLOATS,
    INTEGERS,
    WAYS,
    WAYS_OUT,
    Key,
    Shape,
    assert_same,
    cases,
    edges,
    few_layouts,
    flat,
    joined,
    json_leaves,
    json_text,
    leaves,
    nested,
    received,
    shaped,
    take,
    turns,
)

from tensorgate.adapters.grps import KIND
from tensorgate.adapters.grps.client import GrpsHttpClient
from tensorgate.adapters.grps.options import GrpsMapping, GrpsOptions
from tensorgate.adapters.grps.proto_client import GrpsGrpcClient
from tensorgate.adapters.protobuf.messages import message
from tensorgate.gateway.contract.call import Call
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelView
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.errors import EncodingFailed, InvalidArgument, ModelFailed
from tensorgate.gateway.contract.upstream import Description, UpstreamModel

DIALECT = KIND.make(GrpsOptions())
PREDICT = "/grps/v1/infer/predict"
HTTP = DIALECT.match("POST", PREDICT).endpoint
GRPC = DIALECT.grpc["/grps.protos.v1.GrpsService/Predict"]
GrpsMessage = message("grps.protos.v1.GrpsMessage")
JSON = {"content-type": "application/json"}
TABLE = {
    "UINT8": (1, "DT_UINT8", "flat_uint8"),
    "INT8": (2, "DT_INT8", "flat_int8"),
    "INT16": (3, "DT_INT16", "flat_int16"),
    "INT32": (4, "DT_INT32", "flat_int32"),
    "INT64": (5, "DT_INT64", "flat_int64"),
    "FP16": (6, "DT_FLOAT16", "flat_float16"),
    "FP32": (7, "DT_FLOAT32", "flat_float32"),
    "FP64": (8, "DT_FLOAT64", "flat_float64"),
    "BYTES": (9, "DT_STRING", "flat_string"),
}
"""Datatype -> its number and name, and the flat field that has its elements."""
WITHOUT = [name for name in DTYPES if name not in TABLE]
every_way = pytest.mark.parametrize("way", WAYS)
ways_out = pytest.mark.parametrize("way", WAYS_OUT)
carried = pytest.mark.parametrize("datatype", TABLE)
not_carried = pytest.mark.parametrize("datatype", WITHOUT)


class Model:
    """One input x and one output y of a datatype, of any shape."""

    def __init__(
        self, make_model: Callable[..., ModelView], make_resolve: Callable[..., Resolve], datatype: str, **more: Any
    ) -> None:
        self.view = make_model("m", {"x": (datatype, None)}, {"y": (datatype, None)}, **more)
        self.resolve = make_resolve(self.view)
        self.described = Description(tuple(self.view.inputs.values()), tuple(self.view.outputs.values()))

    def over_http(self, body: str | bytes, target: str = PREDICT, headers: Any = JSON) -> InferRequest:
        match = DIALECT.match("POST", target)
        whole = body if isinstance(body, bytes) else body.encode()
        call = Call(whole, "POST", target, headers, "http", match.args, in_thread=True)
        asked = match.endpoint.decode(call, self.resolve)
        assert isinstance(asked, InferRequest)
        return asked

    def over_grpc(self, **fields: Any) -> InferRequest:
        body = GrpsMessage(**fields).SerializeToString()
        asked = GRPC.decode(Call(body, "POST", GRPC.address, {}, "grpc"), self.resolve)
        assert isinstance(asked, InferRequest)
        return asked


@pytest.fixture
def make(make_model: Callable[..., ModelView], make_resolve: Callable[..., Resolve]) -> Callable[..., Model]:
    return lambda datatype, **more: Model(make_model, make_resolve, datatype, **more)


def body_of(key: Key, shape: Shape, text: str) -> str:
    _, name, field = TABLE[key.datatype]
    return (
        f'{{"gtensors":{{"tensors":[{{"name":"x","dtype":"{name}","shape":{json.dumps(shape)},"{field}":{text}}}]}}}}'
    )


def quoted(key: Key) -> str:
    """Numbers as texts: large integers come so, and what is not finite must."""
    texts = [str(value) for value in json_leaves(key)]
    return json.dumps([{"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(each, each) for each in texts])


# ------------------------------------------------------------------------------------------------------- HTTP requests


@every_way
@carried
def test_json_requests(way: str, datatype: str, monkeypatch: pytest.MonkeyPatch, make: Callable[..., Model]) -> None:
    take(way, monkeypatch)
    model = make(datatype)
    for count, shape in cases(way):
        keys = turns(datatype, count)[:: 2 if datatype == "FP32" else 1]  # FLT_MAX has no shorter digits here
        for key in [*keys, Key(datatype, count, "usual")]:
            body = body_of(key, shape, json_text(key))
            if not count:
                with pytest.raises(InvalidArgument, match=f"^Tensor x {TABLE[datatype][2]} data is empty.$"):
                    model.over_http(body)
                continue
            assert_same(model.over_http(body).inputs["x"], key, shape)
    if datatype != "BYTES":
        for count in (1, 150, 1024):
            key = Key(datatype, count, "odd" if datatype in FLOATS else "text")
            assert_same(model.over_http(body_of(key, (count,), quoted(key))).inputs["x"], key, (count,), exact=False)


@ways_out
@not_carried
def test_datatypes_without_a_name(
    way: str, datatype: str, monkeypatch: pytest.MonkeyPatch, make: Callable[..., Model]
) -> None:
    take(way, monkeypatch)
    model = make(datatype)
    for count, shape in cases(way):
        array = shaped(Key(datatype, count), shape)
        answer = InferResponse({"y": array})
        for endpoint in (HTTP, GRPC):
            asked = InferRequest(model.view, {}, wire=_form(model))
            with pytest.raises(EncodingFailed, match=f"^Output y is {datatype}, for which grps has no dtype.$"):
                joined(endpoint.encode(answer, asked))
        for client in (GrpsHttpClient(UpstreamModel("m")), GrpsGrpcClient(UpstreamModel("m"))):
            with pytest.raises(EncodingFailed, match=f"is {datatype}, for which grps has no dtype"):
                asks(client, model, array)


def _form(model: Model, target: str = PREDICT) -> Any:
    """How a reply to a tensor is to be."""
    return model.over_http('{"ndarray": [1]}', target).wire


@every_way
@pytest.mark.parametrize("datatype", [name for name in INTEGERS if name in TABLE])
def test_integers_that_do_not_fit(
    way: str, datatype: str, monkeypatch: pytest.MonkeyPatch, make: Callable[..., Model]
) -> None:
    take(way, monkeypatch)
    model = make(datatype)
    limits = np.iinfo(DTYPES[datatype])
    number, _, field = TABLE[datatype]
    for wrong in (int(limits.min) - 1, int(limits.max) + 1):
        for count in (1, 1023):
            values = [1] * (count - 1) + [wrong]
            for text in (json.dumps(values), json.dumps([*map(str, values)])):
                with pytest.raises(InvalidArgument, match=r"^Failed to parse "):
                    model.over_http(body_of(Key(datatype, count), (count,), text))
            try:
                tensor = {"name": "x", "dtype": number, "shape": [count], field: values}
                said = GrpsMessage(gtensors={"tensors": [tensor]})
            except ValueError:  # the field itself cannot hold it
                continue
            with pytest.raises(InvalidArgument, match=f"^Failed to parse {field} field: a number is out of range"):
                model.over_grpc(gtensors=said.gtensors)


@every_way
@carried
def test_what_a_field_takes(
    way: str, datatype: str, monkeypatch: pytest.MonkeyPatch, make: Callable[..., Model]
) -> None:
    """Source: the JSON mapping of protobuf, as the Python server applies it."""
    take(way, monkeypatch)
    model = make(datatype)
    kind = DTYPES[datatype].kind
    fits = {"f": ["1.0", "1e2", "1", "0.5", '"1"', '"0.5"', "true"], "O": ['"1"', '"0.5"']}
    allowed = fits.get(kind, ["1.0", "1e2", "1", '"1"'])
    for leaf in ("1.0", "1e2", "0.5", "1", "true", "null", '"1"', '"0.5"', "{}", "[1]", "NaN", "Infinity"):
        for count in (1, 1023):
            ones = ['"1"' if datatype == "BYTES" else "1"] * (count - 1)
            body = body_of(Key(datatype, count), (count,), f"[{','.join([*ones, leaf])}]")
            if leaf not in allowed:
                with pytest.raises(InvalidArgument):
                    model.over_http(body)
                continue
            got, want = model.over_http(body).inputs["x"], json.loads(leaf)
            assert got.dtype == DTYPES[datatype]
            assert got[-1] == (want.encode() if kind == "O" else float(want))


@every_way
def test_floats_beyond_their_range(way: str, monkeypatch: pytest.MonkeyPatch, make: Callable[..., Model]) -> None:
    """Half floats travel as floats, so what is beyond their own range becomes infinite; floats are refused."""
    take(way, monkeypatch)
    half, single = make("FP16"), make("FP32")
    for count in (2, 1024):
        text = json.dumps([65520.0] * (count - 1) + [-1e30])
        assert half.over_http(body_of(Key("FP16", count), (count,), text)).inputs["x"].tolist() == [np.inf] * (
            count - 1
        ) + [-np.inf]
        for wrong in ("3.4028235e38", "-3.4028235e38", "1e39", "-1e300"):
            text = "[" + "1," * (count - 1) + wrong + "]"
            for model, datatype in ((half, "FP16"), (single, "FP32")):
                with pytest.raises(InvalidArgument, match=r"^Failed to parse gtensors"):
                    model.over_http(body_of(Key(datatype, count), (count,), text))


@every_way
@carried
def test_other_names_of_fields(
    way: str, datatype: str, monkeypatch: pytest.MonkeyPatch, make: Callable[..., Model]
) -> None:
    """In lower camel case; and flat_double, which the protocol's page says and no schema has."""
    take(way, monkeypatch)
    model = make(datatype)
    _, _, field = TABLE[datatype]
    names = [field.replace("_", " ").title().replace(" ", "").replace("Flat", "flat")]
    names += ["flat_double"] if datatype == "FP64" else []
    for count in (1, 1024):
        for key in (Key(datatype, count), Key(datatype, count, "usual")):
            body = body_of(key, (count,), json_text(key))
            for name in names:
                got = model.over_http(body.replace(f'"{field}"', f'"{name}"')).inputs["x"]
                assert_same(got, key, (count,))


@every_way
def test_ndarrays(way: str, monkeypatch: pytest.MonkeyPatch, make: Callable[..., Model]) -> None:
    """Nested lists of numbers become FP32, whatever they were."""
    take(way, monkeypatch)
    model = make("FP32")
    for count, shape in cases(way):
        if not count:
            continue
        for key in turns("FP32", count):
            got = model.over_http(f'{{"ndarray": {json_text(key, shape)}}}').inputs["x"]
            assert_same(got, key, shape)
    for count, shape in ((150, (150,)), (1023, (33, 31))):
        key = Key("FP32", count, "odd")
        assert_same(model.over_http(f'{{"ndarray": {json_text(key, shape)}}}').inputs["x"], key, shape, exact=False)
    for datatype in ("INT8", "INT32", "UINT32", "BOOL"):
        for count, shape in ((1, (1,)), (1023, (33, 31)), (1024, (4, 16, 16))):
            key = Key(datatype, count)
            got = model.over_http(f'{{"model": "m-1", "ndarray": {json_text(key, shape)}}}').inputs["x"]
            assert got.dtype == np.float32
            assert got.tobytes() == shaped(key, shape).astype(np.float32).tobytes()
            assert got.shape == shape


# -------------------------------------------------------------------------------------------------------- HTTP replies


@cache
def printed(key: Key) -> list[Any]:
    """What json prints as the contract says: the shortest digits of each datatype, INT64 and what is not finite as
    texts.
    """
    if key.datatype == "BYTES":
        return [each.decode() for each in leaves(key)]
    if key.datatype == "INT64":
        return [str(each) for each in leaves(key)]
    if key.datatype not in FLOATS:
        return leaves(key)
    array = flat(key)
    array = array.astype(np.float32) if key.datatype == "FP16" else array
    texts = [str(each) for each in array]
    words = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
    return [words[text] if text in words else float(text) for text in texts]


def layout_of(key: Key, shape: Shape, indent: int) -> str:
    _, name, field = TABLE[key.datatype]
    tensor: dict[str, Any] = {"name": "y", "dtype": name}
    if shape:
        tensor["shape"] = [*shape]
    if key.elements:
        tensor[field] = printed(key)
    said = {"status": {"code": 200, "msg": "OK", "status": "SUCCESS"}, "gtensors": {"tensors": [tensor]}}
    return json.dumps(said, indent=indent)


@ways_out
@carried
@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
def test_json_replies(
    way: str, datatype: str, stream: bool, monkeypatch: pytest.MonkeyPatch, make: Callable[..., Model]
) -> None:
    take(way, monkeypatch)
    model = make(datatype)
    asked = InferRequest(model.view, {}, wire=_form(model, PREDICT + ("?streaming=true" if stream else "")))
    for count, shape in cases("" if stream else way):
        key = Key(datatype, count, "odd" if datatype in FLOATS else "text")
        want = layout_of(key, shape, 2 if stream else 1).encode()
        for layout, array in few_layouts(shaped(key, shape), way):
            reply = HTTP.encode(InferResponse({"y": array}), asked)
            assert joined(reply) == want, (shape, layout)
            assert reply.streamed == stream
            if not stream:
                assert reply.headers["Content-Type"] == "application/json;charset=utf-8"


@ways_out
@pytest.mark.parametrize("datatype", DTYPES)
def test_ndarray_replies(way: str, datatype: str, monkeypatch: pytest.MonkeyPatch, make: Callable[..., Model]) -> None:
    """Nested lists of the doubles that equal the floats; no other datatype has them."""
    take(way, monkeypatch)
    model = make(datatype)
    asked = InferRequest(model.view, {}, wire=_form(model, PREDICT + "?return-ndarray=true"))
    for count, shape in cases(way):
        key = Key(datatype, count, "odd" if datatype in FLOATS else "text")
        if datatype != "FP32":
            with pytest.raises(EncodingFailed, match=r"^No float32 tensors in output. Cannot convert to ndarray.$"):
                HTTP.encode(InferResponse({"y": shaped(key, shape)}), asked)
            continue
        values = [_word(each) for each in leaves(key)]
        said = {"status": {"code": 200, "msg": "OK", "status": "SUCCESS"}, "ndarray": nested(values, shape)}
        want = json.dumps(said, indent=1).encode()
        for layout, array in few_layouts(shaped(key, shape), way):
            assert joined(HTTP.encode(InferResponse({"y": array}), asked)) == want, (shape, layout)


def _word(value: float) -> Any:
    return value if np.isfinite(value) else "NaN" if np.isnan(value) else "Infinity" if value > 0 else "-Infinity"


@ways_out
@pytest.mark.parametrize("endpoint", [HTTP, GRPC], ids=["http", "grpc"])
def test_texts_that_are_none_are_refused(
    way: str, endpoint: Any, monkeypatch: pytest.MonkeyPatch, make: Callable[..., Model]
) -> None:
    take(way, monkeypatch)
    model = make("BYTES")
    asked = InferRequest(model.view, {}, wire=_form(model))
    for wrong in edges("BYTES", "bits")[-7:]:
        for count in (1, 1023, 5000):
            array = flat(Key("BYTES", count)).copy()
            array[-1] = wrong
            with pytest.raises(EncodingFailed, match=r"^Output y holds bytes that are not UTF-8 text.$"):
                joined(endpoint.encode(InferResponse({"y": array}), asked))
            for client in (GrpsHttpClient(UpstreamModel("m")), GrpsGrpcClient(UpstreamModel("m"))):
                with pytest.raises(EncodingFailed, match="holds bytes that are not UTF-8 text"):
                    asks(client, model, array)


# ---------------------------------------------------------------------------------------------------------------- gRPC


def tensor_of(key: Key, shape: Shape, name: str) -> dict[str, Any]:
    number, _, field = TABLE[key.datatype]
    values = [each.decode() for each in leaves(key)] if key.datatype == "BYTES" else leaves(key)
    return {"name": name, "dtype": number, "shape": shape, field: values}


@every_way
@carried
def test_messages(way: str, datatype: str, monkeypatch: pytest.MonkeyPatch, make: Callable[..., Model]) -> None:
    take(way, monkeypatch)
    model = make(datatype)
    for count, shape in cases(way):
        for key in (Key(datatype, count, "odd"), Key(datatype, count, "small"))[: 1 if datatype in FLOATS else 2]:
            tensors = {"tensors": [tensor_of(key, shape, "x")]}
            if not count:
                with pytest.raises(InvalidArgument, match=f"^Tensor x {TABLE[datatype][2]} data is empty.$"):
                    model.over_grpc(gtensors=tensors)
                continue
            assert_same(model.over_grpc(gtensors=tensors).inputs["x"], key, shape, exact=datatype not in FLOATS)


@ways_out
@carried
def test_message_replies(way: str, datatype: str, monkeypatch: pytest.MonkeyPatch, make: Callable[..., Model]) -> None:
    take(way, monkeypatch)
    model = make(datatype)
    asked = InferRequest(model.view, {}, wire=_form(model))
    number, _, field = TABLE[datatype]
    for count, shape in cases(way):
        for key in (Key(datatype, count, "odd"), Key(datatype, count, "small"))[: 1 if datatype in FLOATS else 2]:
            for layout, array in few_layouts(shaped(key, shape), way):
                told = GrpsMessage.FromString(joined(GRPC.encode(InferResponse({"y": array}), asked)))
                assert (told.status.code, told.status.msg, told.status.status) == (200, "OK", 1)
                (tensor,) = told.gtensors.tensors
                assert (tensor.name, tensor.dtype, [*tensor.shape]) == ("y", number, [*shape])
                assert {each.name for each, _ in tensor.ListFields()} <= {"name", "dtype", "shape", field}
                got = getattr(tensor, field)[:]
                if datatype in FLOATS:
                    with np.errstate(over="ignore"):
                        numbers = np.array(got, np.float64).astype(DTYPES[datatype])
                    assert_same(numbers, key, (count,), exact=False)
                else:
                    want = [each.decode() for each in leaves(key)] if datatype == "BYTES" else leaves(key)
                    assert got == want, (shape, layout)


# -------------------------------------------------------------------------------------------------------- client sides


def asks(client: Any, model: Model, array: Any) -> bytes:
    inputs = {"x": array}
    return joined(client.encode(inputs, (), InferRequest(model.view, inputs), model.described, stream=False))


@ways_out
@carried
def test_clients_ask(way: str, datatype: str, monkeypatch: pytest.MonkeyPatch, make: Callable[..., Model]) -> None:
    take(way, monkeypatch)
    model = make(datatype)
    http, grpc = GrpsHttpClient(UpstreamModel("m")), GrpsGrpcClient(UpstreamModel("m"))
    number, name, field = TABLE[datatype]
    for count, shape in cases(way):
        for key in (Key(datatype, count, "text"), Key(datatype, count, "odd"))[: 2 if datatype in FLOATS else 1]:
            for _, array in few_layouts(shaped(key, shape), ""):
                (tensor,) = GrpsMessage.FromString(asks(grpc, model, array)).gtensors.tensors
                assert (tensor.name, tensor.dtype, [*tensor.shape]) == ("x", number, [*shape])
                (item,) = json.loads(asks(http, model, array))["gtensors"]["tensors"]
                assert (item["name"], item["dtype"], item["shape"]) == ("x", name, [*shape])
                assert item.keys() == {"name", "dtype", "shape", field}
                for got in (getattr(tensor, field)[:], item[field]):
                    if datatype in FLOATS:
                        assert all(isinstance(each, float) or each in ("NaN", "Infinity", "-Infinity") for each in got)
                        with np.errstate(over="ignore"):
                            numbers = np.array([*map(float, got)]).astype(DTYPES[datatype])
                        assert_same(numbers, key, (count,), exact=False)
                    else:
                        want = [each.decode() for each in leaves(key)] if datatype == "BYTES" else leaves(key)
                        assert got == want


@every_way
@carried
def test_clients_are_answered(
    way: str, datatype: str, monkeypatch: pytest.MonkeyPatch, make: Callable[..., Model]
) -> None:
    take(way, monkeypatch)
    model = make(datatype)
    http, grpc = GrpsHttpClient(UpstreamModel("m")), GrpsGrpcClient(UpstreamModel("m"))
    for count, shape in cases(way):
        key = Key(datatype, count, "odd" if datatype in FLOATS else "text")
        exact = datatype not in FLOATS
        told = GrpsMessage(status={"code": 200}, gtensors={"tensors": [tensor_of(key, shape, "y")]})
        answer = grpc.decode(received(told.SerializeToString()), model.described)
        assert_same(answer.outputs["y"], key, shape, exact=exact)
        if way == "as it runs":
            answer = http.decode(received(layout_of(key, shape, 1).encode()), model.described)
            assert_same(answer.outputs["y"], key, shape, exact=exact)


@pytest.mark.parametrize("datatype", [name for name in INTEGERS if name in TABLE])
def test_clients_refuse_answers_that_do_not_fit(datatype: str, make: Callable[..., Model]) -> None:
    model = make(datatype)
    limits = np.iinfo(DTYPES[datatype])
    _, name, field = TABLE[datatype]
    for wrong in (int(limits.min) - 1, int(limits.max) + 1, 1.5, "1.5"):
        tensor = {"name": "y", "dtype": name, "shape": [2], field: [1, wrong]}
        body = json.dumps({"status": {"code": 200}, "gtensors": {"tensors": [tensor]}}).encode()
        with pytest.raises(ModelFailed):
            GrpsHttpClient(UpstreamModel("m")).decode(received(body), model.described)


# --------------------------------------------------------------------------------------------------- what is no tensor

MAPS: dict[Any, tuple[str, list[Any]]] = {
    "s_s": ("BYTES", ["", "a", "größe", '"\\\n\0', "😀"]),
    "s_b": ("BYTES", [b"", b"a", b"\0\xff\xfe", bytes(range(256))]),
    "s_i32": ("INT32", [0, 1, -1, 2**31 - 1, -(2**31)]),
    "s_i64": ("INT64", [0, 1, -1, 2**53 + 1, 2**63 - 1, -(2**63)]),
    "s_f": ("FP32", [0.0, 1.5, -0.0, 0.10000000149011612, 3.4028234663852886e38, 1e-45]),
    "s_d": ("FP64", [0.0, 0.1, -1.7976931348623157e308, 5e-324, 1e16, 1e-5]),
}


@ways_out
@pytest.mark.parametrize("name", MAPS)
def test_entries_of_maps(way: str, name: str, monkeypatch: pytest.MonkeyPatch, make: Callable[..., Model]) -> None:
    take(way, monkeypatch)
    datatype, values = MAPS[name]
    mapping = GrpsMapping.model_validate({"gmap": {name: {"key": "x"}}, "reply": {"gmap": {name: {"key": "y"}}}})
    model = make(datatype, mappings={"grps": mapping})
    for value in values:
        in_json = base64.b64encode(value).decode() if isinstance(value, bytes) else value
        in_json = str(value) if name == "s_i64" else in_json
        over_http = model.over_http(json.dumps({"gmap": {name: {"key": in_json}}}))
        over_grpc = model.over_grpc(gmap={name: {"key": value}})
        element = value.encode() if isinstance(value, str) else value
        want = np.empty(1, DTYPES[datatype])
        want[0] = element
        for asked in (over_http, over_grpc):
            got = asked.inputs["x"]
            assert (got.dtype, got.shape) == (want.dtype, (1,))
            assert got.tolist() == want.tolist()
            assert datatype == "BYTES" or got.tobytes() == want.tobytes()
        answer = InferResponse({"y": want})
        said = json.loads(joined(HTTP.encode(answer, over_http)))["gmap"]
        if name == "s_f":
            said = {"s_f": {"key": float(np.float32(said["s_f"]["key"]))}}
            in_json = float(want[0])
        assert said == {name: {"key": in_json}}
        told = GrpsMessage.FromString(joined(GRPC.encode(answer, over_grpc)))
        assert dict(getattr(told.gmap, name)) == {"key": float(want[0]) if name == "s_f" else value}


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("s_i32", 2**31), ("s_i32", -(2**31) - 1), ("s_i64", 2**63), ("s_f", 1e39), ("s_f", -3.4028235e38), ("s_s", 1)],
)
def test_entries_that_do_not_fit(name: str, wrong: Any, make: Callable[..., Model]) -> None:
    mapping = GrpsMapping.model_validate({"gmap": {name: {"key": "x"}}})
    model = make(MAPS[name][0], mappings={"grps": mapping})
    with pytest.raises(InvalidArgument, match=f"^Failed to parse gmap.{name}.key field"):
        model.over_http(json.dumps({"gmap": {name: {"key": wrong}}}))


@pytest.mark.parametrize("datatype", DTYPES)
def test_maps_carry_one_element_of_their_own_datatype(datatype: str, make: Callable[..., Model]) -> None:
    for name, (own, _) in MAPS.items():
        mapping = GrpsMapping.model_validate({"reply": {"gmap": {name: {"key": "y"}}}})
        model = make(datatype, mappings={"grps": mapping})
        for count in (0, 1, 2):
            answer = InferResponse({"y": flat(Key(datatype, count))})
            for endpoint in (HTTP, GRPC):
                asked = InferRequest(model.view, {}, wire=_form(model))
                if (own, 1) == (datatype, count):
                    joined(endpoint.encode(answer, asked))
                else:
                    with pytest.raises(EncodingFailed, match=rf"^Output y is {datatype} \[{count}\], {name} of gmap"):
                        joined(endpoint.encode(answer, asked))


@pytest.mark.parametrize("value", [b"", b"a", b"\0", "größe 😀".encode(), b'"\\\n', b"x" * 20_000])
def test_texts_and_bytes(value: bytes, make: Callable[..., Model]) -> None:
    model = make("BYTES")
    asked = {
        "str_data": (
            model.over_http(json.dumps({"str_data": value.decode()})),
            model.over_grpc(str_data=value.decode()),
        ),
        "bin_data": (
            model.over_http(value, PREDICT, {"content-type": "application/octet-stream"}) if value else None,
            model.over_grpc(bin_data=value),
        ),
    }
    array = np.empty(1, object)
    array[0] = value
    for kind, (over_http, over_grpc) in asked.items():
        for each in (over_http, over_grpc):
            assert each is None or (each.inputs["x"].tolist(), each.inputs["x"].shape) == ([value], (1,))
        told = GrpsMessage.FromString(joined(GRPC.encode(InferResponse({"y": array}), over_grpc)))
        assert getattr(told, kind) == (value.decode() if kind == "str_data" else value)
        assert told.WhichOneof("data_oneof") == kind
        if over_http is None:
            continue
        reply = HTTP.encode(InferResponse({"y": array}), over_http)
        if kind == "bin_data":
            assert (joined(reply), reply.headers["Content-Type"]) == (value, "application/octet-stream")
        else:
            assert json.loads(joined(reply))["str_data"] == value.decode()


RAW = (
    KIND.make(GrpsOptions.model_validate({"customized_predict_http": {"path": "/own", "customized_body": True}}))
    .match("POST", "/own")
    .endpoint
)


@pytest.mark.parametrize("datatype", DTYPES)
def test_bodies_of_the_models_own(
    datatype: str, make: Callable[..., Model], make_model: Any, make_resolve: Any
) -> None:
    """Any bytes come and go as they are, as one element of BYTES; a status may be any number."""
    resolve = make_resolve(make_model("m", {"x": ("BYTES", (1,))}, {"y": ("BYTES", (1,))}))
    for count in (0, 1, 1023, 1024, 20_000):
        body = (
            flat(Key(datatype, count, "bits")).tobytes()
            if datatype != "BYTES"
            else b"".join(flat(Key(datatype, count)))
        )
        asked = RAW.decode(Call(body, "POST", "/own", {}, "http"), resolve)
        assert asked.inputs["x"].tolist() == [body]
        assert joined(RAW.encode(InferResponse({"y": asked.inputs["x"]}), asked)) == body
    if datatype in INTEGERS and np.iinfo(DTYPES[datatype]).max >= 404:
        mapping = GrpsMapping.model_validate({"reply": {"bin_data": "y", "status": "code"}})
        outputs = {"y": ("BYTES", (1,)), "code": (datatype, (1,))}
        view = make_model("m", {"x": ("BYTES", (1,))}, outputs, mappings={"grps": mapping})
        asked = RAW.decode(Call(b"a", "POST", "/own", {}, "http"), make_resolve(view))
        for code in (200, 404):
            answer = InferResponse({"y": asked.inputs["x"], "code": np.array([code], DTYPES[datatype])})
            assert RAW.encode(answer, asked).http_status == code
