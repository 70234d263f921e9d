"""Open Inference V2: every datatype in every encoding, in both directions, on both sides, whichever way it takes.

The judges are json, struct, NumPy and protobuf's runtime; what they say must be follows the protocol's tables.
"""

import json
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from dtype_cases import (
    DTYPES,
    FLOATS,
    INTEGERS,
    SHAPED,
    WAYS,
    WAYS_OUT,
    Key,
    Shape,
    assert_json,
    assert_same,
    cases,
    edges,
    few_layouts,
    flat,
    joined,
    json_leaves,
    json_text,
    leaves,
    raw,
    received,
    shaped,
    take,
    turns,
)

from tensorgate.adapters.open_inference import KIND
from tensorgate.adapters.open_inference.client import V2HttpClient
from tensorgate.adapters.open_inference.proto_client import V2GrpcClient
from tensorgate.adapters.protobuf.messages import message
from tensorgate.gateway.contract.call import Call
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelView, TopK
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.errors import EncodingFailed, InvalidArgument, ModelFailed
from tensorgate.gateway.contract.upstream import Description, UpstreamModel

DIALECT = KIND.make(KIND.options())
INFER = DIALECT.match("POST", "/v2/models/m/infer").endpoint
GENERATE = DIALECT.match("POST", "/v2/models/m/generate").endpoint
MODEL_INFER, STREAM_INFER = (
    DIALECT.grpc[f"/inference.GRPCInferenceService/{name}"] for name in ("ModelInfer", "ModelStreamInfer")
)
Request, Response = message("inference.ModelInferRequest"), message("inference.ModelInferResponse")
StreamResponse = message("inference.ModelStreamInferResponse")
LENGTH = "Inference-Header-Content-Length"
BINARY_ONLY = ("FP16", "BF16")
FIELDS = {
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
    "BOOL": "bool_contents",
    "BYTES": "bytes_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
}


class Model:
    """One input and one output y of a datatype, of any shape. The name is long enough for templates over gRPC, which
    look for the first 32 bytes of a message.
    """

    def __init__(
        self, make_model: Callable[..., ModelView], make_resolve: Callable[..., Resolve], datatype: str
    ) -> None:
        self.view = make_model("m", {"pixel_values_of_images": (datatype, None)}, {"y": (datatype, None)})
        self.resolve = make_resolve(self.view)
        self.described = Description(tuple(self.view.inputs.values()), tuple(self.view.outputs.values()))

    def over_http(self, body: bytes, headers: Mapping[str, str] | None = None, **more: Any) -> InferRequest:
        call = Call(body, "POST", "/v2/models/m/infer", headers or {}, "http", {"model": "m"}, in_thread=True, **more)
        asked = INFER.decode(call, self.resolve)
        assert isinstance(asked, InferRequest)
        return asked

    def over_grpc(self, body: Any, endpoint: Any = MODEL_INFER, **more: Any) -> InferRequest:
        whole = body if isinstance(body, bytes) else body.SerializeToString()
        asked = endpoint.decode(Call(whole, "POST", endpoint.address, {}, "grpc", **more), self.resolve)
        assert isinstance(asked, InferRequest)
        return asked


@pytest.fixture
def make(make_model: Callable[..., ModelView], make_resolve: Callable[..., Resolve]) -> Callable[[str], Model]:
    return lambda datatype: Model(make_model, make_resolve, datatype)


every_way = pytest.mark.parametrize("way", WAYS)
ways_out = pytest.mark.parametrize("way", WAYS_OUT)
every_datatype = pytest.mark.parametrize("datatype", DTYPES)


# ------------------------------------------------------------------------------------------------------- JSON requests


def json_body(key: Key, shape: Shape, data: str) -> bytes:
    about = f'"name":"pixel_values_of_images","shape":{json.dumps(shape)},"datatype":"{key.datatype}"'
    return f'{{"inputs":[{{{about},"data":{data}}}]}}'.encode()


@every_way
@every_datatype
def test_json_requests(way: str, datatype: str, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], Model]) -> None:
    take(way, monkeypatch)
    model = make(datatype)
    for count, shape in cases(way):
        for key in [*turns(datatype, count), *([Key(datatype, count, "usual")] if datatype == "FP64" else [])]:
            data = json_text(key) if key.turn < 2 or not shape else json_text(key, shape)
            body = json_body(key, shape, data)
            if datatype in BINARY_ONLY and count:
                with pytest.raises(
                    InvalidArgument, match=f"^receiving {datatype} data via JSON is not supported. Please"
                ):
                    model.over_http(body)
                continue
            assert_same(model.over_http(body).inputs["pixel_values_of_images"], key, shape)


@every_way
@pytest.mark.parametrize("datatype", ["FP32", "FP64"])
def test_json_requests_with_what_is_no_number(
    way: str, datatype: str, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], Model]
) -> None:
    take(way, monkeypatch)
    model = make(datatype)
    for key in (*turns(datatype, 150, "odd"), *turns(datatype, 20_000, "odd")):
        asked = model.over_http(json_body(key, (key.elements,), json_text(key)))
        assert_same(asked.inputs["pixel_values_of_images"], key, (key.elements,), exact=False)


@every_way
@pytest.mark.parametrize("datatype", INTEGERS)
def test_json_integers_that_do_not_fit(
    way: str, datatype: str, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], Model]
) -> None:
    take(way, monkeypatch)
    model = make(datatype)
    limits = np.iinfo(DTYPES[datatype])
    for wrong in (int(limits.min) - 1, int(limits.max) + 1, 2**64, -(2**63) - 1):
        for count in (1, 1023, 20_000) if wrong == limits.max + 1 else (1, 1023):
            good = json_body(Key(datatype, count), (count,), json.dumps([1] * count))
            assert model.over_http(good).inputs["pixel_values_of_images"].tolist() == [1] * count
            for place in {0, count - 1}:
                values = [1] * count
                values[place] = wrong
                with pytest.raises(InvalidArgument, match=r"^Unable to parse 'data': "):
                    model.over_http(json_body(Key(datatype, count), (count,), json.dumps(values)))


WRONG_LEAVES = ["1.0", "1e2", "true", "false", "null", '"1"', "{}", "1", "[]", "0.5"]


@every_way
@every_datatype
def test_json_has_no_coercion(
    way: str, datatype: str, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], Model]
) -> None:
    """Integers are fine for floating numbers, and nothing else is for another kind."""
    take(way, monkeypatch)
    model = make(datatype)
    fits = {"b": ["true", "false"], "i": ["1"], "u": ["1"], "f": ["1.0", "1e2", "1", "0.5"], "O": ['"1"']}
    allowed = [] if datatype in BINARY_ONLY else fits[DTYPES[datatype].kind]
    for leaf in WRONG_LEAVES:
        body = json_body(Key(datatype, 1), (1,), f"[{leaf}]")
        if leaf in allowed:
            got = model.over_http(body).inputs["pixel_values_of_images"]
            want = json.loads(leaf)
            assert got.tolist() == [want.encode() if isinstance(want, str) else want]
            assert got.dtype == DTYPES[datatype]
        else:
            with pytest.raises(InvalidArgument):
                model.over_http(body)


@every_way
def test_json_floats_beyond_their_range_are_infinite(
    way: str, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], Model]
) -> None:
    take(way, monkeypatch)
    model = make("FP32")
    for _ in range(2):
        got = model.over_http(
            json_body(Key("FP32", 4), (4,), "[3.5e38, -1e300, 1e-46, 340282346638528859811704183484516925440]")
        )
        assert got.inputs["pixel_values_of_images"].tolist() == [np.inf, -np.inf, 0.0, float(np.finfo("f4").max)]


@every_way
def test_every_datatype_in_one_request(
    way: str,
    monkeypatch: pytest.MonkeyPatch,
    make_model: Callable[..., ModelView],
    make_resolve: Callable[..., Resolve],
) -> None:
    """As JSON and as binary data, side by side, in an order in which the binary ones do not stand together."""
    take(way, monkeypatch)
    names = [*DTYPES]
    view = make_model("m", {f"{n}-{k}": (n, None) for k in "jb" for n in names}, {"y": ("FP32", None)})
    for count, shape in ((1, (1, 1)), (1023, (3, 11, 31)), (20_000, (100, 200))):
        for turn in (0, 1):
            inputs, tail, want = [], b"", {}
            for name in names:
                for kind in "jb" if name not in BINARY_ONLY else "b":
                    key = Key(name, count, "text", turn)
                    item: dict[str, Any] = {"name": f"{name}-{kind}", "shape": shape, "datatype": name}
                    if kind == "j":
                        item["data"] = json_leaves(key)
                    else:
                        item["parameters"] = {"binary_data_size": len(raw(key))}
                        tail += raw(key)
                    inputs.append(item)
                    want[item["name"]] = key
            head = json.dumps({"inputs": inputs}).encode()
            view_of_these = make_model("m", {n: (k.datatype, None) for n, k in want.items()}, {"y": ("FP32", None)})
            call = Call(
                head + tail, "POST", "", {LENGTH.lower(): str(len(head))}, "http", {"model": "m"}, in_thread=True
            )
            asked = INFER.decode(call, make_resolve(view_of_these))
            assert [*asked.inputs] == [*want]
            for name, key in want.items():
                assert_same(asked.inputs[name], key, shape)
    assert view.inputs.keys() >= want.keys()


# ----------------------------------------------------------------------------------------------------- binary requests


def binary_body(key: Key, shape: Shape) -> tuple[bytes, dict[str, str]]:
    data = raw(key)
    item = {
        "name": "pixel_values_of_images",
        "shape": shape,
        "datatype": key.datatype,
        "parameters": {"binary_data_size": len(data)},
    }
    head = json.dumps({"inputs": [item]}).encode()
    return head + data, {LENGTH.lower(): str(len(head))}


@every_way
@every_datatype
def test_binary_requests(
    way: str, datatype: str, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], Model]
) -> None:
    take(way, monkeypatch)
    model = make(datatype)
    for count, shape in cases(way):
        for key in turns(datatype, count, "bits"):
            assert_same(model.over_http(*binary_body(key, shape)).inputs["pixel_values_of_images"], key, shape)


@every_datatype
def test_a_body_that_is_nothing_but_data(datatype: str, make_model: Any, make_resolve: Any) -> None:
    for count in (0, 1, 1023, 1024, 20_000):
        key = Key(datatype, count, "bits")
        shape: Shape = (-1,) if datatype != "BYTES" else (1,)
        resolve = make_resolve(make_model("m", {"pixel_values_of_images": (datatype, shape)}, {"y": (datatype, (-1,))}))
        body = b"".join(leaves(key)) if datatype == "BYTES" else raw(key)
        call = Call(body, "POST", "", {LENGTH.lower(): "0"}, "http", {"model": "m"}, in_thread=True)
        got = INFER.decode(call, resolve).inputs["pixel_values_of_images"]
        if datatype == "BYTES":
            assert got.tolist() == [body]
        else:
            assert_same(got, key, (count,))


@every_way
@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_truth_values_are_true_unless_0(
    way: str, transport: str, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], Model]
) -> None:
    take(way, monkeypatch)
    model = make("BOOL")
    for data in (b"\0\1\2\x80\xff\0", b"\xff\0\1\1\0\0"):
        item = {"name": "pixel_values_of_images", "shape": [6], "datatype": "BOOL"}
        if transport == "grpc":
            asked = model.over_grpc(Request(model_name="m", inputs=[item], raw_input_contents=[data]))
        else:
            head = json.dumps({"inputs": [{**item, "parameters": {"binary_data_size": 6}}]}).encode()
            asked = model.over_http(head + data, {LENGTH.lower(): str(len(head))})
        assert asked.inputs["pixel_values_of_images"].tolist() == [byte != 0 for byte in data]
        assert asked.inputs["pixel_values_of_images"].tobytes() == bytes(byte != 0 for byte in data)


@every_datatype
@pytest.mark.parametrize("more", [-1, 1])
def test_data_of_another_size_is_refused(datatype: str, more: int, make: Callable[[str], Model]) -> None:
    """Also where a message like it, but for the size, has just been read."""
    model = make(datatype)
    for count in (1, 1023, 1024):
        key = Key(datatype, count, "bits")
        good = Request(
            model_name="m", inputs=[{"name": "pixel_values_of_images", "shape": [count], "datatype": datatype}]
        )
        good.raw_input_contents.append(raw(key))
        assert_same(model.over_grpc(good).inputs["pixel_values_of_images"], key, (count,))
        assert_same(model.over_http(*binary_body(key, (count,))).inputs["pixel_values_of_images"], key, (count,))
        data = raw(key)[:more] if more < 0 else raw(key) + b"\0"
        good.raw_input_contents[0] = data
        with pytest.raises(InvalidArgument):
            model.over_grpc(good)
        item = {
            "name": "pixel_values_of_images",
            "shape": [count],
            "datatype": datatype,
            "parameters": {"binary_data_size": len(data)},
        }
        head = json.dumps({"inputs": [item]}).encode()
        with pytest.raises(InvalidArgument):
            model.over_http(head + data, {LENGTH.lower(): str(len(head))})


class Memory:
    """Regions of one name each."""

    def __init__(self, **regions: bytes) -> None:
        self._regions = regions

    def view(self, name: str, offset: int, byte_size: int, *, writable: bool = False) -> memoryview:
        return memoryview(bytearray(self._regions[name]))[offset : offset + byte_size]


@every_datatype
@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_shared_memory(datatype: str, transport: str, make: Callable[[str], Model]) -> None:
    model = make(datatype)
    for count, shape in SHAPED:
        key = Key(datatype, count, "bits")
        place = {"shared_memory_region": "r", "shared_memory_offset": 16, "shared_memory_byte_size": len(raw(key))}
        regions = Memory(r=b"\xab" * 16 + raw(key) + b"\xab" * 16)
        item: dict[str, Any] = {"name": "pixel_values_of_images", "shape": shape, "datatype": datatype}
        if transport == "http":
            body = json.dumps({"inputs": [{**item, "parameters": place}]}).encode()
            asked = model.over_http(body, regions=regions)
        else:
            asked_for = {k: {"string_param" if isinstance(v, str) else "int64_param": v} for k, v in place.items()}
            said = Request(model_name="m", inputs=[{**item, "parameters": asked_for}])
            asked = model.over_grpc(said, regions=regions, in_thread=True)
        assert_same(asked.inputs["pixel_values_of_images"], key, shape)


# --------------------------------------------------------------------------------------------------------- HTTP replies


@ways_out
@every_datatype
def test_json_replies(way: str, datatype: str, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], Model]) -> None:
    take(way, monkeypatch)
    model = make(datatype)
    families: list[Any] = ["text", "odd"] if datatype in ("FP32", "FP64") else ["text"]
    for count, shape in cases(way):
        for family in families:
            key = Key(datatype, count, family)
            for layout, array in few_layouts(shaped(key, shape), way):
                answer, asked = InferResponse({"y": array}), InferRequest(model.view, {})
                if datatype in BINARY_ONLY:
                    with pytest.raises(
                        EncodingFailed, match=f"^sending {datatype} data via JSON is not supported. Please"
                    ):
                        INFER.encode(answer, asked)
                    continue
                reply = INFER.encode(answer, asked)
                assert (reply.http_status, reply.headers["Content-Type"]) == (200, "application/json")
                said = json.loads(joined(reply))
                assert said.keys() == {"model_name", "model_version", "outputs"}
                (output,) = said["outputs"]
                assert output.keys() == {"name", "datatype", "shape", "data"}, layout
                assert (output["name"], output["datatype"], output["shape"]) == ("y", datatype, [*shape])
                assert_json(output["data"], key)


@ways_out
def test_texts_that_are_none_are_refused_in_json(
    way: str, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], Model]
) -> None:
    take(way, monkeypatch)
    model = make("BYTES")
    for wrong in edges("BYTES", "bits")[-7:]:
        for count, place in ((1, 0), (1023, 1022), (5000, 0), (5000, 4999)):
            array = flat(Key("BYTES", count)).copy()
            array[place] = wrong
            with pytest.raises(EncodingFailed, match=r"^output 'y' holds bytes that are not UTF-8"):
                INFER.encode(InferResponse({"y": array}), InferRequest(model.view, {}))


@ways_out
@every_datatype
@pytest.mark.parametrize("coding", ["", "gzip", "deflate"])
def test_binary_replies(
    way: str, datatype: str, coding: str, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], Model]
) -> None:
    if coding and way != "as it runs":
        return
    take(way, monkeypatch)
    model = make(datatype)
    inputs = [{"name": "pixel_values_of_images", "shape": [0], "datatype": datatype, "data": []}]
    wanted = [{"name": "y", "parameters": {"binary_data": True}}]
    headers = {"accept-encoding": coding} if coding else {}
    asked = model.over_http(json.dumps({"inputs": inputs, "outputs": wanted}).encode(), headers)
    for count, shape in cases(way):
        key = Key(datatype, count, "bits")
        for _, array in few_layouts(shaped(key, shape), way):
            reply = INFER.encode(InferResponse({"y": array}), asked)
            assert reply.headers.get("Content-Encoding", "") == coding
            body = inflated(joined(reply), coding)
            size = int(reply.headers.get(LENGTH, len(body)))
            assert (size < len(body)) == bool(raw(key))
            assert reply.headers["Content-Type"] == ("application/octet-stream" if raw(key) else "application/json")
            (output,) = json.loads(body[:size])["outputs"]
            parameters = {"binary_data_size": len(raw(key))}
            assert output == {"name": "y", "datatype": datatype, "shape": [*shape], "parameters": parameters}
            assert body[size:] == raw(key)


def inflated(body: bytes, coding: str) -> bytes:
    import gzip
    import zlib

    return gzip.decompress(body) if coding == "gzip" else zlib.decompress(body) if coding else body


@ways_out
def test_every_datatype_in_one_reply(
    way: str, monkeypatch: pytest.MonkeyPatch, make_model: Any, make_resolve: Any
) -> None:
    take(way, monkeypatch)
    view = make_model(
        "m", {"pixel_values_of_images": ("FP32", (1,))}, {f"{k}-{n}": (n, None) for n in DTYPES for k in "jb"}
    )
    in_json = [name for name in view.outputs if name[0] == "j" and name[2:] not in BINARY_ONLY]
    wanted = [{"name": name, "parameters": {"binary_data": name[0] == "b"}} for name in view.outputs]
    wanted = [each for each in wanted if each["name"] in in_json or str(each["name"])[0] == "b"]
    inputs = [{"name": "pixel_values_of_images", "shape": [1], "datatype": "FP32", "data": [1]}]
    body = json.dumps({"id": "7", "inputs": inputs, "outputs": wanted}).encode()
    asked = INFER.decode(Call(body, "POST", "", {}, "http", {"model": "m"}), make_resolve(view))
    for count, shape in cases(way):
        keys = {each["name"]: Key(str(each["name"])[2:], count, "text") for each in wanted}
        reply = INFER.encode(InferResponse({name: shaped(key, shape) for name, key in keys.items()}), asked)
        whole = joined(reply)
        size = int(reply.headers.get(LENGTH, len(whole)))
        said, at = json.loads(whole[:size]), size
        assert said["id"] == "7"
        assert [output["name"] for output in said["outputs"]] == [*keys]
        for output in said["outputs"]:
            key = keys[output["name"]]
            assert (output["datatype"], output["shape"]) == (key.datatype, [*shape])
            if output["name"] in in_json:
                assert_json(output["data"], key)
            else:
                end = at + output["parameters"]["binary_data_size"]
                assert whole[at:end] == raw(key)
                at = end
        assert at == len(whole)


# ---------------------------------------------------------------------------------------------------------------- gRPC


@every_way
@every_datatype
@pytest.mark.parametrize("endpoint", [MODEL_INFER, STREAM_INFER], ids=["unary", "stream"])
def test_raw_contents(
    way: str, datatype: str, endpoint: Any, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], Model]
) -> None:
    take(way, monkeypatch)
    model = make(datatype)
    for count, shape in cases(way):
        for key in turns(datatype, count, "bits"):
            said = Request(
                model_name="m", inputs=[{"name": "pixel_values_of_images", "shape": shape, "datatype": datatype}]
            )
            said.raw_input_contents.append(raw(key))
            asked = model.over_grpc(said, endpoint)
            assert_same(asked.inputs["pixel_values_of_images"], key, shape)
            assert asked.stream == (endpoint is STREAM_INFER)


@every_way
@every_datatype
def test_typed_contents(way: str, datatype: str, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], Model]) -> None:
    take(way, monkeypatch)
    model = make(datatype)
    for count, shape in cases(way):
        key = Key(datatype, count, "odd" if datatype in FLOATS else "bits")
        said = Request(
            model_name="m", inputs=[{"name": "pixel_values_of_images", "shape": shape, "datatype": datatype}]
        )
        said.inputs[0].contents.SetInParent()
        if datatype not in FIELDS:
            if count:
                with pytest.raises(InvalidArgument):
                    model.over_grpc(said)
                for field in FIELDS.values():
                    filled = Request.FromString(said.SerializeToString())
                    getattr(filled.inputs[0].contents, field).extend([b"1"] if field == "bytes_contents" else [1])
                    with pytest.raises(InvalidArgument, match=f"expected datatype '{datatype}'$"):
                        model.over_grpc(filled)
            continue
        getattr(said.inputs[0].contents, FIELDS[datatype]).extend(leaves(key))
        assert_same(model.over_grpc(said).inputs["pixel_values_of_images"], key, shape, exact=datatype not in FLOATS)


@every_datatype
@pytest.mark.parametrize("field", sorted(set(FIELDS.values())))
def test_typed_contents_in_another_field(datatype: str, field: str, make: Callable[[str], Model]) -> None:
    """Integers may come in any field of integers, if they fit; nothing else may."""
    model = make(datatype)
    whole = ("int_contents", "int64_contents", "uint_contents", "uint64_contents")
    limits = np.iinfo(DTYPES[datatype]) if datatype in INTEGERS else None
    of_field = {"int_contents": "i4", "int64_contents": "i8", "uint_contents": "u4", "uint64_contents": "u8"}
    candidates: list[Any] = [1]
    if limits is not None and field in whole:
        room = np.iinfo(of_field[field])
        ends = {
            int(limits.min) - 1,
            int(limits.min),
            int(limits.max),
            int(limits.max) + 1,
            int(room.min),
            int(room.max),
        }
        candidates += sorted(end for end in ends if room.min <= end <= room.max)
    for value in candidates:
        said = Request(model_name="m", inputs=[{"name": "pixel_values_of_images", "shape": [2], "datatype": datatype}])
        values = [b"1"] * 2 if field == "bytes_contents" else [1, value]
        getattr(said.inputs[0].contents, field).extend(values)
        fits = FIELDS.get(datatype) == field
        if limits is not None and field in whole:
            fits = limits.min <= value <= limits.max
        if not fits:
            with pytest.raises(
                InvalidArgument, match=r"^unexpected explicit tensor data for input tensor 'pixel_values_of_images'"
            ):
                model.over_grpc(said)
            continue
        got = model.over_grpc(said).inputs["pixel_values_of_images"]
        assert got.dtype == DTYPES[datatype]
        assert got.tolist() == values


@pytest.mark.parametrize("datatype", FIELDS)
def test_typed_contents_of_another_number(datatype: str, make: Callable[[str], Model]) -> None:
    model = make(datatype)
    for count in (0, 1, 1023, 1024):
        for given in (count - 1, count + 1):
            if given < 0:
                continue
            said = Request(
                model_name="m", inputs=[{"name": "pixel_values_of_images", "shape": [count], "datatype": datatype}]
            )
            getattr(said.inputs[0].contents, FIELDS[datatype]).extend(leaves(Key(datatype, given)))
            with pytest.raises(InvalidArgument):
                model.over_grpc(said)


@ways_out
@every_datatype
@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
def test_grpc_replies(
    way: str, datatype: str, stream: bool, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], Model]
) -> None:
    take(way, monkeypatch)
    model = make(datatype)
    endpoint = STREAM_INFER if stream else MODEL_INFER
    said = Request(
        model_name="m",
        inputs=[{"name": "pixel_values_of_images", "shape": [0], "datatype": datatype}],
        raw_input_contents=[b""],
    )
    asked = model.over_grpc(said, endpoint)
    said.id = "größe"
    named = model.over_grpc(said, endpoint)
    for count, shape in cases(way):
        key = Key(datatype, count, "bits")
        for layout, array in few_layouts(shaped(key, shape), way):
            question = named if layout == "writable" else asked
            body = joined(endpoint.encode(InferResponse({"y": array}), question))
            answer = StreamResponse.FromString(body).infer_response if stream else Response.FromString(body)
            (output,) = answer.outputs
            assert (output.name, output.datatype, [*output.shape]) == ("y", datatype, [*shape])
            assert not output.HasField("contents")
            assert [*answer.raw_output_contents] == [raw(key)], layout
            assert (answer.model_name, answer.model_version, answer.id) == ("m", "1", question.id)


def test_every_datatype_in_one_message(make_model: Any, make_resolve: Any) -> None:
    view = make_model("m", {n: (n, None) for n in DTYPES}, {n: (n, None) for n in DTYPES})
    for count, shape in SHAPED:
        for turn in (0, 1):
            keys = {name: Key(name, count, "bits", turn) for name in DTYPES}
            said = Request(model_name="m", inputs=[{"name": n, "shape": shape, "datatype": n} for n in DTYPES])
            said.raw_input_contents.extend([raw(key) for key in keys.values()])
            asked = MODEL_INFER.decode(Call(said.SerializeToString(), "POST", "", {}, "grpc"), make_resolve(view))
            for name, key in keys.items():
                assert_same(asked.inputs[name], key, shape)
            answer = MODEL_INFER.encode(InferResponse({n: shaped(key, shape) for n, key in keys.items()}), asked)
            told = Response.FromString(joined(answer))
            assert [output.datatype for output in told.outputs] == [*DTYPES]
            assert [*told.raw_output_contents] == [raw(key) for key in keys.values()]


# -------------------------------------------------------------------------------------------------------- client sides


def asks(client: Any, model: Model, array: Any, **more: Any) -> Any:
    inputs = {"pixel_values_of_images": array}
    return client.encode(inputs, (), InferRequest(model.view, inputs, **more), model.described, stream=False)


@ways_out
@every_datatype
def test_clients_ask(way: str, datatype: str, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], Model]) -> None:
    take(way, monkeypatch)
    model = make(datatype)
    http, grpc = V2HttpClient(UpstreamModel("m")), V2GrpcClient(UpstreamModel("m"))
    for count, shape in cases(way):
        key = Key(datatype, count, "bits")
        for _, array in few_layouts(shaped(key, shape), way):
            ask = asks(http, model, array)
            whole, size = joined(ask), int(ask.headers[LENGTH])
            (item,) = json.loads(whole[:size])["inputs"]
            assert (item["name"], item["datatype"], item["shape"]) == ("pixel_values_of_images", datatype, [*shape])
            assert item["parameters"] == {"binary_data_size": len(raw(key))}
            assert whole[size:] == raw(key)
            said = Request.FromString(joined(asks(grpc, model, array)))
            (tensor,) = said.inputs
            assert (tensor.name, tensor.datatype, [*tensor.shape]) == ("pixel_values_of_images", datatype, [*shape])
            assert [*said.raw_input_contents] == [raw(key)]


@every_way
@every_datatype
def test_clients_are_answered(
    way: str, datatype: str, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], Model]
) -> None:
    take(way, monkeypatch)
    model = make(datatype)
    http, grpc = V2HttpClient(UpstreamModel("m")), V2GrpcClient(UpstreamModel("m"))
    for count, shape in cases(way):
        for key in turns(datatype, count, "bits"):
            output: dict[str, Any] = {"name": "y", "shape": shape, "datatype": datatype}
            told = Response(
                model_name="a model of another server",
                model_version="1",
                outputs=[output],
                raw_output_contents=[raw(key)],
            )
            assert_same(grpc.decode(received(told.SerializeToString()), model.described).outputs["y"], key, shape)
            head = json.dumps({"outputs": [{**output, "parameters": {"binary_data_size": len(raw(key))}}]}).encode()
            reply = received(head + raw(key), inference_header_content_length=str(len(head)))
            assert_same(http.decode(reply, model.described).outputs["y"], key, shape)


@every_datatype
def test_clients_of_servers_without_raw_data_are_answered(datatype: str, make: Callable[[str], Model]) -> None:
    model = make(datatype)
    http, grpc = V2HttpClient(UpstreamModel("m")), V2GrpcClient(UpstreamModel("m"))
    for count, shape in SHAPED:
        key = Key(datatype, count)
        output: dict[str, Any] = {"name": "y", "shape": shape, "datatype": datatype}
        for data in {json_text(key), json_text(key, shape or (-1,))}:
            said = f'{{"outputs": [{json.dumps(output)[:-1]}, "data": {data}}}]}}'.encode()
            assert_same(http.decode(received(said), model.described).outputs["y"], key, shape)
        if datatype in FIELDS:
            told = Response(outputs=[{**output, "contents": {FIELDS[datatype]: leaves(key)}}])
            told.outputs[0].contents.SetInParent()
            assert_same(grpc.decode(received(told.SerializeToString()), model.described).outputs["y"], key, shape)


@pytest.mark.parametrize("datatype", ["FP32", "FP64"])
def test_clients_read_what_is_no_number(datatype: str, make: Callable[[str], Model]) -> None:
    model = make(datatype)
    key = Key(datatype, 150, "odd")
    output: dict[str, Any] = {"name": "y", "shape": [150], "datatype": datatype, "data": leaves(key)}
    said = json.dumps({"outputs": [output]}).encode()
    assert b"NaN" in said
    assert_same(
        V2HttpClient(UpstreamModel("m")).decode(received(said), model.described).outputs["y"], key, (150,), exact=False
    )


@pytest.mark.parametrize("datatype", ["BOOL", *INTEGERS])
def test_clients_refuse_answers_that_do_not_fit(datatype: str, make: Callable[[str], Model]) -> None:
    model = make(datatype)
    limits = np.iinfo("u1" if datatype == "BOOL" else DTYPES[datatype])
    for wrong in (int(limits.min) - 1, int(limits.max) + 1, 1.5, "1", None, datatype != "BOOL" or 0):
        output = {"name": "y", "shape": [2], "datatype": datatype, "data": [datatype == "BOOL" or 1, wrong]}
        with pytest.raises(ModelFailed):
            V2HttpClient(UpstreamModel("m")).decode(
                received(json.dumps({"outputs": [output]}).encode()), model.described
            )


# ------------------------------------------------------------------------------------------- generate, classification


@every_way
@every_datatype
def test_generate(way: str, datatype: str, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], Model]) -> None:
    """Values without shapes: a bare one for one element."""
    take(way, monkeypatch)
    model = make(datatype)
    for count in (0, 1, 1023, 1024, 20_000):
        key = Key(datatype, count)
        text = json_text(key, ()) if count == 1 else json_text(key)
        call = Call(
            f'{{"pixel_values_of_images": {text}}}'.encode(), "POST", "", {}, "http", {"model": "m"}, in_thread=True
        )
        answer = InferResponse({"y": flat(key)})
        if datatype in BINARY_ONLY:
            with pytest.raises(InvalidArgument, match=f"^receiving {datatype} data via JSON is not supported. Please"):
                GENERATE.decode(call, model.resolve)
            with pytest.raises(EncodingFailed, match=f"^sending {datatype} data via JSON is not supported. Please"):
                GENERATE.encode(answer, InferRequest(model.view, {}))
            continue
        asked = GENERATE.decode(call, model.resolve)
        assert_same(asked.inputs["pixel_values_of_images"], key, (count,))
        said = json.loads(joined(GENERATE.encode(answer, asked)))
        assert_json(said["y"], key, () if count == 1 else (-1,))
        inputs = {"pixel_values_of_images": flat(key)}
        ask = V2HttpClient(UpstreamModel("m")).encode(
            inputs, (), InferRequest(model.view, inputs), model.described, stream=True
        )
        assert_json(json.loads(joined(ask))["pixel_values_of_images"], key, () if count == 1 else (-1,))
        event = f'{{"model_name": "m", "model_version": "1", "y": {text}}}'.encode()
        told = V2HttpClient(UpstreamModel("m")).decode_part(received(event), model.described)
        assert_same(told.outputs["y"], key, (count,))


@pytest.mark.parametrize("datatype", [*INTEGERS, "FP32", "FP64"])
@pytest.mark.parametrize("endpoint", [INFER, MODEL_INFER], ids=["http", "grpc"])
def test_best_classes(datatype: str, endpoint: Any, make: Callable[[str], Model]) -> None:
    """VALUE:INDEX, integers as they are and floating numbers as C's %f writes their doubles."""
    model = make(datatype)
    for count in (1, 255, 4097):
        key = Key(datatype, count, "odd")
        best = TopK(flat(key).reshape(1, -1), np.arange(count).reshape(1, -1))
        reply = endpoint.encode(InferResponse({}, classes={"y": best}), InferRequest(model.view, {}))
        form = "%f:%d" if datatype in FLOATS else "%d:%d"
        want = [form % (value, index) for index, value in enumerate(leaves(key))]
        if endpoint is INFER:
            (output,) = json.loads(joined(reply))["outputs"]
            assert (output["datatype"], output["shape"], output["data"]) == ("BYTES", [1, count], want)
        else:
            told = Response.FromString(joined(reply))
            assert (told.outputs[0].datatype, [*told.outputs[0].shape]) == ("BYTES", [1, count])
            assert told.raw_output_contents[0] == b"".join([struct.pack("<I", len(t)) + t.encode() for t in want])
