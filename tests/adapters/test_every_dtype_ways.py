"""The ways that tensors take: that each is taken where it should be, and where it ends."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from compiled_helpers import needs
from dtype_cases import (
    DTYPES,
    FLOATS,
    PLAIN,
    WAYS,
    Key,
    assert_same,
    edges,
    json_leaves,
    json_text,
    leaves,
    raw,
    shaped,
    take,
)

from tensorgate.adapters import grps, open_inference, tf_serving
from tensorgate.adapters.grps import message as grps_messages
from tensorgate.adapters.grps import proto_message as grps_proto
from tensorgate.adapters.grps import request as grps_request
from tensorgate.adapters.json import cuts as json_cuts
from tensorgate.adapters.open_inference import document as v2_document
from tensorgate.adapters.open_inference import proto_request as v2_proto_request
from tensorgate.adapters.open_inference import request as v2_request
from tensorgate.adapters.open_inference.raw import V2ReplyForm
from tensorgate.adapters.protobuf.messages import message
from tensorgate.adapters.tf_serving import predict_request as tf_request
from tensorgate.gateway.contract.call import Call, MustOffload
from tensorgate.gateway.contract.canonical import (
    INLINE_ENCODE_MAX_NUMBERS,
    INLINE_ENCODE_MAX_TEXTS,
    InferRequest,
    InferResponse,
    ModelView,
)
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.errors import GatewayError, InvalidArgument
from tensorgate.gateway.contract.shortcuts import SHORTCUTS
from tensorgate.gateway.contract.tensor import bytes_of

MakeModel = Callable[..., ModelView]
V2, TFS, GRPS = (kind.KIND.make(kind.KIND.options()) for kind in (open_inference, tf_serving, grps))
HTTP = {
    "v2": V2.match("POST", "/v2/models/m/infer").endpoint,
    "tf_serving": TFS.match("POST", "/v1/models/m:predict").endpoint,
    "grps": GRPS.match("POST", "/grps/v1/infer/predict").endpoint,
}
GRPC = {
    "v2": V2.grpc["/inference.GRPCInferenceService/ModelInfer"],
    "tf_serving": TFS.grpc["/tensorflow.serving.PredictionService/Predict"],
    "grps": GRPS.grpc["/grps.protos.v1.GrpsService/Predict"],
}
ModelInfer, Predict, GrpsMessage = map(
    message, ("inference.ModelInferRequest", "tensorflow.serving.PredictRequest", "grps.protos.v1.GrpsMessage")
)
NO_JSON = {"v2": ("FP16", "BF16"), "tf_serving": ("FP16", "BF16", "UINT16")}
FLAT = {"UINT8": 1, "INT8": 2, "INT16": 3, "INT32": 4, "INT64": 5, "FP16": 6, "FP32": 7, "FP64": 8, "BYTES": 9}
NAMES = {"FP16": "FLOAT16", "FP32": "FLOAT32", "FP64": "FLOAT64", "BYTES": "STRING"}
every_datatype = pytest.mark.parametrize("datatype", DTYPES)


class Model:
    def __init__(self, make_model: MakeModel, make_resolve: Callable[..., Resolve], datatype: str) -> None:
        self.view = make_model("m", {"pixel_values_of_images": (datatype, None)}, {"y": (datatype, None)})
        self.resolve = make_resolve(self.view)

    def decode(self, endpoint: Any, body: bytes, in_thread: bool = True, **more: Any) -> Any:
        headers = {"content-type": "application/json", **more.pop("headers", {})}
        transport = "http" if endpoint in HTTP.values() else "grpc"
        call = Call(body, "POST", "", headers, transport, {"model": "m"}, in_thread=in_thread, **more)  # type: ignore[arg-type]
        if endpoint is HTTP["grps"]:
            call.args = {"model": "m-1"}
        return endpoint.decode(call, self.resolve)


@pytest.fixture
def make(make_model: MakeModel, make_resolve: Callable[..., Resolve]) -> Callable[[str], Model]:
    return lambda datatype: Model(make_model, make_resolve, datatype)


def test_every_shortcut_of_the_dialects_can_be_switched_off_here() -> None:
    assert PLAIN.keys() == {name for name, row in SHORTCUTS.items() if row.where.startswith("adapters.")}


# ------------------------------------------------------------------------------------------------- which way is taken


def v2_json(key: Key) -> bytes:
    shape = f'"shape":[{key.elements}],"datatype":"{key.datatype}"'
    return f'{{"inputs":[{{"name":"pixel_values_of_images",{shape},"data":{json_text(key)}}}]}}'.encode()


def v2_binary(key: Key) -> tuple[bytes, dict[str, str]]:
    item = {"name": "pixel_values_of_images", "shape": [key.elements], "datatype": key.datatype}
    head = json.dumps({"inputs": [{**item, "parameters": {"binary_data_size": len(raw(key))}}]}).encode()
    return head + raw(key), {"inference-header-content-length": str(len(head))}


def v2_message(key: Key) -> bytes:
    item = {"name": "pixel_values_of_images", "shape": [key.elements], "datatype": key.datatype}
    return bytes(ModelInfer(model_name="m", inputs=[item], raw_input_contents=[raw(key)]).SerializeToString())


class Count:
    """How often a function is called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.calls = 0
        original = getattr(owner, name)

        def counted(*args: Any, **options: Any) -> Any:
            self.calls += 1
            return original(*args, **options)

        monkeypatch.setattr(owner, name, counted)


@pytest.mark.parametrize("way", ["as it runs", "plain"])
@every_datatype
def test_messages_of_one_form_are_read_by_what_the_first_has_taught(
    way: str, datatype: str, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], Model]
) -> None:
    """Where any numbers would be right: not texts, whose lengths are data, and BOOL only behind JSON, which is all that
    is compared. BF16 is no kind of NumPy's.
    """
    take(way, monkeypatch)
    model = make(datatype)
    learns = way == "as it runs"
    documents = Count(monkeypatch, v2_request, "infer_request")
    messages = Count(monkeypatch, v2_proto_request, "infer_request")
    numeric = datatype not in ("BOOL", "BYTES", "BF16")
    for count in (1, 1023, 1024):
        keys = [Key(datatype, count, "small", turn) for turn in (0, 1)]
        if datatype not in NO_JSON["v2"]:
            documents.calls = 0
            for key in keys:
                assert_same(model.decode(HTTP["v2"], v2_json(key)).inputs["pixel_values_of_images"], key, (count,))
            assert documents.calls == (1 if learns and numeric else 2)
        documents.calls = messages.calls = 0
        for key in keys:
            body, headers = v2_binary(key)
            assert_same(model.decode(HTTP["v2"], body, headers=headers).inputs["pixel_values_of_images"], key, (count,))
            got = model.decode(GRPC["v2"], v2_message(key)).inputs["pixel_values_of_images"]
            assert_same(got, key, (count,))
        assert documents.calls == (1 if learns and datatype != "BYTES" else 2)
        assert messages.calls == (1 if learns and numeric else 2)


@pytest.mark.parametrize("way", ["as it runs", "plain"])
@every_datatype
def test_lone_arrays_are_read_where_they_stand(
    way: str, datatype: str, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], Model]
) -> None:
    take(way, monkeypatch)
    model = make(datatype)
    documents = Count(monkeypatch, tf_request, "_document")
    of_grps = Count(monkeypatch, grps_request, "_decode_document")
    for count in (1, 1023, 1024):
        key = Key(datatype, count)
        if datatype not in NO_JSON["tf_serving"]:
            for member in ("instances", "inputs"):
                body = f'{{"{member}": {json_text(key)}}}'.encode()
                assert_same(model.decode(HTTP["tf_serving"], body).inputs["pixel_values_of_images"], key, (count,))
        if datatype == "FP32":
            body = f'{{"ndarray": {json_text(key)}}}'.encode()
            assert_same(model.decode(HTTP["grps"], body).inputs["pixel_values_of_images"], key, (count,))
    as_they_are = datatype in ("INT32", "INT64", "UINT32", "UINT64", "FP32", "FP64", "BYTES")
    plain = way == "plain" or not as_they_are
    assert documents.calls == (6 if plain and datatype not in NO_JSON["tf_serving"] else 0)
    assert of_grps.calls == (3 if way == "plain" and datatype == "FP32" else 0)


@every_datatype
@pytest.mark.parametrize("count", [1, 1023, 1024, 20_000])
def test_large_numbers_are_views_of_the_message(datatype: str, count: int, make: Callable[[str], Model]) -> None:
    model = make(datatype)
    key = Key(datatype, count, "bits")
    viewed = datatype not in ("BOOL", "BYTES")
    body, headers = v2_binary(key)
    assert is_view(model.decode(HTTP["v2"], body, headers=headers).inputs["pixel_values_of_images"], body) == viewed
    body = v2_message(key)
    got = model.decode(GRPC["v2"], body).inputs["pixel_values_of_images"]
    assert len(body) < 4096 or is_view(got, body) == viewed
    if datatype in ("FP32", "FP64"):
        odd = Key(datatype, count, "odd")
        field = {"FP32": "float_val", "FP64": "double_val"}[datatype]
        tensor = {
            "dtype": {"FP32": 1, "FP64": 2}[datatype],
            "tensor_shape": {"dim": [{"size": count}]},
            field: leaves(odd),
        }
        body = Predict(model_spec={"name": "m"}, inputs={"pixel_values_of_images": tensor}).SerializeToString()
        got = model.decode(GRPC["tf_serving"], body).inputs["pixel_values_of_images"]
        assert len(body) < 1024 or is_view(got, body)
        flat_field = {"FP32": "flat_float32", "FP64": "flat_float64"}[datatype]
        item = {"name": "pixel_values_of_images", "dtype": FLAT[datatype], "shape": [count], flat_field: leaves(odd)}
        body = GrpsMessage(gtensors={"tensors": [item]}).SerializeToString()
        walked = grps_proto.walk(body)
        assert walked is not None
        assert is_view(walked["gtensors"][0].data[flat_field], body)


def is_view(array: Any, body: bytes) -> bool:
    return bool(np.shares_memory(array, np.frombuffer(body, np.uint8))) if array.dtype != object else False


@needs("_numbers")
@pytest.mark.parametrize("datatype", ["INT64", "UINT64", "FP32", "FP64", "BYTES"])
def test_long_arrays_are_cut_out_of_documents(
    datatype: str, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], Model]
) -> None:
    """Once: what is not as it seemed at first is read a second time, whole."""
    model = make(datatype)
    documents = Count(monkeypatch, v2_document, "_read_request")
    cuts = Count(monkeypatch, json_cuts.Cuts, "numbers")
    key = Key(datatype, 60_000, "usual" if datatype == "FP64" else "text")  # exponents of three digits are not cut
    body = v2_json(key)
    assert len(body) > 256 << 10
    assert_same(model.decode(HTTP["v2"], body).inputs["pixel_values_of_images"], key, (60_000,))
    assert (documents.calls, cuts.calls) == (1, 1)


@needs("_numbers")
@pytest.mark.parametrize("datatype", FLAT)
def test_long_arrays_are_cut_out_of_messages(
    datatype: str, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], Model]
) -> None:
    """From 4 KiB on; not texts, and not half floats, which travel as others."""
    model = make(datatype)
    name = NAMES.get(datatype, datatype)
    arrays = Count(monkeypatch, grps_messages, "flat_array")
    for count in (1, 2048):
        key = Key(datatype, count, "usual")
        data = f'"shape":[{count}],"flat_{name.lower()}":{json_text(key)}'
        body = f'{{"gtensors":{{"tensors":[{{"name":"pixel_values_of_images","dtype":"DT_{name}",{data}}}]}}}}'
        got = model.decode(HTTP["grps"], body.encode()).inputs["pixel_values_of_images"]
        assert_same(got, key, (count,))
    assert arrays.calls == (2 if datatype in ("FP16", "BYTES") else 1)


@pytest.mark.parametrize("way", WAYS)
def test_a_long_array_among_texts_is_refused(
    way: str, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], Model]
) -> None:
    """Where it is cut out, a text takes its place."""
    take(way, monkeypatch)
    model = make("BYTES")
    for numbers in ([1] * 50, [1.5] * 100_000):
        about = '"name":"pixel_values_of_images","shape":[2],"datatype":"BYTES"'
        body = f'{{"inputs":[{{{about},"data":["a",{json.dumps(numbers)}]}}]}}'
        with pytest.raises(InvalidArgument):
            model.decode(HTTP["v2"], body.encode())


@pytest.mark.parametrize("way", ["as it runs", "plain"])
@every_datatype
def test_rows_of_names_are_stacked(
    way: str, datatype: str, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], Model]
) -> None:
    if datatype in NO_JSON["tf_serving"]:
        return
    take(way, monkeypatch)
    model = make(datatype)
    walks = Count(monkeypatch, tf_request, "_walk_rows")
    for count in (1, 8, 9, 1024):
        key = Key(datatype, count)
        rows = ",".join([f'{{"pixel_values_of_images":{json.dumps(leaf)}}}' for leaf in json_leaves(key)])
        got = model.decode(HTTP["tf_serving"], f'{{"instances":[{rows}]}}'.encode()).inputs["pixel_values_of_images"]
        assert_same(got, key, (count,))
    assert walks.calls == (4 if way == "plain" else 0)


@pytest.mark.parametrize("way", ["as it runs", "plain"])
@every_datatype
def test_the_most_dimensions(
    way: str, datatype: str, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], Model]
) -> None:
    """NumPy's 64; rows are one of them."""
    take(way, monkeypatch)
    model = make(datatype)
    key = Key(datatype, 1)
    for rank in (63, 64, 65):
        shape = (1,) * rank
        about = f'"name":"pixel_values_of_images","shape":{json.dumps(shape)},"datatype":"{datatype}"'
        nested = "[" * rank + json_text(key)[1:-1] + "]" * rank
        dims = {"dim": [{"size": 1}] * rank}
        item = {"name": "pixel_values_of_images", "shape": shape, "datatype": datatype}
        bodies: list[tuple[Any, bytes]] = [
            (GRPC["v2"], ModelInfer(model_name="m", inputs=[item], raw_input_contents=[raw(key)]).SerializeToString()),
        ]
        number = {"FP32": 1, "INT64": 9, "BYTES": 7}.get(datatype)
        if number is not None:
            content = (b"\0" if datatype == "BYTES" else b"") + raw(Key(datatype, 1))[4 * (datatype == "BYTES") :]
            tensor = {"dtype": number, "tensor_shape": dims, "tensor_content": content}
            said = Predict(model_spec={"name": "m"}, inputs={"pixel_values_of_images": tensor})
            bodies.append((GRPC["tf_serving"], said.SerializeToString()))
        if datatype not in NO_JSON["v2"]:
            bodies.append((HTTP["v2"], f'{{"inputs":[{{{about},"data":{nested}}}]}}'.encode()))
        if datatype not in NO_JSON["tf_serving"]:
            bodies += [(HTTP["tf_serving"], f'{{"{form}":{nested}}}'.encode()) for form in ("inputs", "instances")]
        if datatype == "FP32":
            bodies.append((HTTP["grps"], f'{{"ndarray":{nested}}}'.encode()))
        for endpoint, body in bodies:
            if rank > 64:
                with pytest.raises(GatewayError):
                    model.decode(endpoint, body)
                continue
            asked = model.decode(endpoint, body)
            assert_same(asked.inputs["pixel_values_of_images"], key, shape)
            answer = InferResponse({"y": shaped(key, shape)})
            assert not endpoint.is_long(answer, asked)
            assert bytes_of(answer.outputs) in (len(raw(key)), 64)
            if not (endpoint is HTTP["v2"] and datatype in NO_JSON["v2"]):
                endpoint.encode(answer, asked)


# ----------------------------------------------------------------------------------------------------- one by one


@pytest.mark.parametrize("way", WAYS)
@every_datatype
def test_every_edge_alone(
    way: str, datatype: str, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], Model]
) -> None:
    """As a scalar, and as the only element: what is one value is often read by other code."""
    take(way, monkeypatch)
    model = make(datatype)
    array = edges(datatype)
    values = array.astype(np.float64).tolist() if datatype in FLOATS else array.tolist()
    for index, value in enumerate(values):
        want = array[index : index + 1]
        leaf = json.dumps(value.decode() if datatype == "BYTES" else value)
        bodies: list[tuple[Any, str]] = []
        if datatype not in NO_JSON["v2"]:
            item = f'"name":"pixel_values_of_images","shape":[],"datatype":"{datatype}"'
            bodies.append((HTTP["v2"], f'{{"inputs":[{{{item},"data":[{leaf}]}}]}}'))
        if datatype not in NO_JSON["tf_serving"]:
            bodies += [
                (HTTP["tf_serving"], f'{{"inputs":{leaf}}}'),
                (HTTP["tf_serving"], f'{{"inputs":{{"pixel_values_of_images":{leaf}}}}}'),
                (HTTP["tf_serving"], f'{{"instances":[{leaf}]}}'),
                (HTTP["tf_serving"], f'{{"instances":[{{"pixel_values_of_images":{leaf}}}]}}'),
            ]
        if datatype in FLAT:
            name = NAMES.get(datatype, datatype)
            tensor = f'"name":"pixel_values_of_images","dtype":"DT_{name}","flat_{name.lower()}":[{leaf}]'
            bodies.append((HTTP["grps"], f'{{"gtensors":{{"tensors":[{{{tensor}}}]}}}}'))
        if datatype == "FP32":
            bodies.append((HTTP["grps"], f'{{"ndarray":{leaf}}}'))
        for endpoint, body in bodies:
            got = model.decode(endpoint, body.encode()).inputs["pixel_values_of_images"]
            assert got.dtype == want.dtype
            assert got.shape == ((1,) if "instances" in body else ())
            assert got.reshape(1).tolist() == want.tolist() if datatype == "BYTES" else got.tobytes() == want.tobytes()


@pytest.mark.parametrize("way", WAYS)
def test_more_texts_than_elements_are_refused(
    way: str, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], Model]
) -> None:
    """And fewer, and those whose lengths lie."""
    take(way, monkeypatch)
    model = make("BYTES")
    for count in (1, 1023, 4096, 4097):
        whole = raw(Key("BYTES", count))
        for data in (whole + b"\0\0\0\0", whole + b"\1\0\0\0a", whole[:-1], whole + b"\0\0\0", whole + b"\5\0\0\0a"):
            item = {"name": "pixel_values_of_images", "shape": [count], "datatype": "BYTES"}
            said = ModelInfer(model_name="m", inputs=[item], raw_input_contents=[data])
            with pytest.raises(InvalidArgument):
                model.decode(GRPC["v2"], said.SerializeToString())
        for rest, words in (
            (b"\5\0\0", "expecting 4 bytes but only 3 bytes available"),
            (b"\5\0\0\0", "expecting string of length 5 but only 0 bytes available"),
            (b"\5\0\0\0abcd", "expecting string of length 5 but only 4 bytes available"),
        ):
            item = {"name": "pixel_values_of_images", "shape": [count + 1], "datatype": "BYTES"}
            said = ModelInfer(model_name="m", inputs=[item], raw_input_contents=[whole + rest])
            with pytest.raises(InvalidArgument, match=words):
                model.decode(GRPC["v2"], said.SerializeToString())


# ------------------------------------------------------------------------------------------------------- shared memory


class Memory:
    """One region, which others may change."""

    def __init__(self, data: bytes) -> None:
        self.data = bytearray(data)

    def view(self, name: str, offset: int, byte_size: int, *, writable: bool = False) -> memoryview:
        return memoryview(self.data)[offset : offset + byte_size]


def in_memory(datatype: str, count: int, size: int) -> bytes:
    place = {"shared_memory_region": "r", "shared_memory_byte_size": size}
    item = {"name": "pixel_values_of_images", "shape": [count], "datatype": datatype, "parameters": place}
    return json.dumps({"inputs": [item]}).encode()


COPIED = ("BOOL", "UINT32", "UINT64", "INT32", "INT64", "BYTES")
"""What a model takes for counts and indices, and what is looked at more than once, must not change any more."""


@every_datatype
def test_what_must_not_change_is_copied_out_of_shared_memory(datatype: str, make: Callable[[str], Model]) -> None:
    model = make(datatype)
    for count in (1, 1023, 1024):
        key = Key(datatype, count, "small")
        memory = Memory(raw(key))
        got = model.decode(HTTP["v2"], in_memory(datatype, count, len(raw(key))), regions=memory).inputs[
            "pixel_values_of_images"
        ]
        assert_same(got, key, (count,))
        memory.data[:] = bytes([1]) * len(memory.data)
        if datatype in COPIED:
            assert_same(got, key, (count,))
        else:
            assert got.tobytes() == bytes(memory.data)


@every_datatype
def test_much_is_copied_out_of_shared_memory_in_a_thread(datatype: str, make: Callable[[str], Model]) -> None:
    model = make(datatype)
    most = 1 << 20
    for size in (most, most + 8):
        if datatype == "BYTES":
            data, count = (size - 4).to_bytes(4, "little") + bytes(size - 4), 1
        else:
            data, count = bytes(size), size // DTYPES[datatype].itemsize
        body, memory = in_memory(datatype, count, size), Memory(data)
        if datatype in COPIED and size > most:
            with pytest.raises(MustOffload):
                model.decode(HTTP["v2"], body, in_thread=False, regions=memory)
        else:
            assert (
                model.decode(HTTP["v2"], body, in_thread=False, regions=memory).inputs["pixel_values_of_images"].size
                == count
            )
        assert model.decode(HTTP["v2"], body, regions=memory).inputs["pixel_values_of_images"].size == count


# ------------------------------------------------------------------------------------------------ event loop or thread


@every_datatype
@pytest.mark.parametrize("dialect", HTTP)
def test_long_replies(dialect: str, datatype: str, make: Callable[[str], Model]) -> None:
    """Over HTTP numbers are written one by one, over gRPC they stay what they are; texts are always many objects."""
    view = make(datatype).view
    most = INLINE_ENCODE_MAX_TEXTS if datatype == "BYTES" else INLINE_ENCODE_MAX_NUMBERS
    for count in (0, 1, most, most + 1):
        answer = InferResponse(
            {"y": np.zeros(count, DTYPES[datatype]) if most == INLINE_ENCODE_MAX_NUMBERS else texts(count)}
        )
        question = InferRequest(view, {})
        assert HTTP[dialect].is_long(answer, question) == (count > most)
        assert GRPC[dialect].is_long(answer, question) == (count > most and datatype == "BYTES")
        if dialect == "v2":
            binary = InferRequest(view, {}, wire=V2ReplyForm(frozenset({"y"}), ""))
            assert HTTP["v2"].is_long(answer, binary) == (count > most and datatype == "BYTES")
    if dialect == "v2" and datatype != "BYTES":
        for more in (0, 1):  # what is compressed is long sooner
            array = np.zeros(4096 // DTYPES[datatype].itemsize + more, DTYPES[datatype])
            packed = InferRequest(view, {}, wire=V2ReplyForm(frozenset({"y"}), "gzip"))
            assert HTTP["v2"].is_long(InferResponse({"y": array}), packed) == bool(more)


def texts(count: int) -> Any:
    array = np.empty(count, object)
    array[:] = b"a"
    return array


@pytest.mark.parametrize("dialect", HTTP)
def test_long_texts(dialect: str, make: Callable[[str], Model]) -> None:
    view = make("BYTES").view
    for size, long in ((1 << 14, False), ((1 << 14) + 1, True)):
        array = np.empty(2, object)
        array[:] = [b"a", b"b" * (size - 1)]
        for endpoint in (HTTP[dialect], GRPC[dialect]):
            assert endpoint.is_long(InferResponse({"y": array}), InferRequest(view, {})) == long


@pytest.mark.parametrize("dialect", HTTP)
@pytest.mark.parametrize("lone", [False, True], ids=["document", "array"])
def test_bodies_that_are_read_in_a_thread(dialect: str, lone: bool, make: Callable[[str], Model]) -> None:
    """To the byte: what is little but digits may be longer than a document of which nothing is known."""
    key = Key("FP32", 16)
    most = (128 if lone else 32) << 10
    member = {"tf_serving": '"instances":%s', "grps": '"ndarray":%s'}.get(dialect)
    if member is None:
        member = '"inputs":[{"name":"pixel_values_of_images","shape":[16],"datatype":"FP32","data":%s}]'
    text = "{" + ("" if lone else '"other":[{"a":0}],') + member + "}"
    empty = len((text % json_text(key)).encode())
    for size in (most, most + 1):
        body = (text % (json_text(key)[:-1] + " " * (size - empty) + "]")).encode()
        assert len(body) == size
        model = make("FP32")
        if lone and dialect == "v2":  # by a template
            model.decode(HTTP["v2"], v2_json(key))
        if size > most and (dialect != "grps" or lone):
            with pytest.raises(MustOffload):
                model.decode(HTTP[dialect], body, in_thread=False)
        elif dialect != "grps" or lone:
            assert_same(model.decode(HTTP[dialect], body, in_thread=False).inputs["pixel_values_of_images"], key, (16,))
        assert_same(model.decode(HTTP[dialect], body).inputs["pixel_values_of_images"], key, (16,))


def test_json_in_front_of_binary_data_that_is_read_in_a_thread(make: Callable[[str], Model]) -> None:
    most = 32 << 10
    for size in (most, most + 1):
        key = Key("FP32", 1024)
        body, headers = v2_binary(key)
        length = int(headers["inference-header-content-length"])
        body = body[:length] + b" " * (size - length) + body[length:]
        headers = {"inference-header-content-length": str(size)}
        model = make("FP32")
        if size > most:
            with pytest.raises(MustOffload):
                model.decode(HTTP["v2"], body, in_thread=False, headers=headers)
        got = model.decode(HTTP["v2"], body, in_thread=size > most, headers=headers)
        assert_same(got.inputs["pixel_values_of_images"], key, (1024,))


@pytest.mark.parametrize("way", WAYS)
def test_many_integers_in_typed_fields_are_read_in_a_thread(
    way: str, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], Model]
) -> None:
    if way == "plain":  # protobuf has them all at once
        return
    take(way, monkeypatch)
    model = make("INT64")
    for size, quick in (((1 << 18), True), ((1 << 18) + 1, False)):
        numbers = [1] * (size % 10) + [-1] * (size // 10)  # of one byte, and of ten
        tensor = {"dtype": 9, "tensor_shape": {"dim": [{"size": len(numbers)}]}, "int64_val": numbers}
        body = Predict(model_spec={"name": "m"}, inputs={"pixel_values_of_images": tensor}).SerializeToString()
        if not quick:
            with pytest.raises(MustOffload):
                model.decode(GRPC["tf_serving"], body, in_thread=False)
        assert (
            model.decode(GRPC["tf_serving"], body, in_thread=not quick).inputs["pixel_values_of_images"].tolist()
            == numbers
        )


def test_many_texts_in_content_are_read_in_a_thread(make: Callable[[str], Model]) -> None:
    model = make("BYTES")
    for count in (1 << 14, (1 << 14) + 1):
        content = bytes(count)
        tensor = {"dtype": 7, "tensor_shape": {"dim": [{"size": count}]}, "tensor_content": content}
        body = Predict(model_spec={"name": "m"}, inputs={"pixel_values_of_images": tensor}).SerializeToString()
        if count > 1 << 14:
            with pytest.raises(MustOffload):
                model.decode(GRPC["tf_serving"], body, in_thread=False)
        assert (
            model.decode(GRPC["tf_serving"], body, in_thread=count > 1 << 14).inputs["pixel_values_of_images"].tolist()
            == [b""] * count
        )


def test_nothing_that_is_refused_is_refused_otherwise_by_another_way(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[str], Model]
) -> None:
    """The words of every refusal are the plain way's."""
    bodies = [
        (dialect, f'{{"{member}":{data}}}')
        for dialect, member in (("tf_serving", "instances"), ("tf_serving", "inputs"), ("grps", "ndarray"))
        for data in (
            "[1,2,[3]]",
            "[[1],[2,3]]",
            "[1,true]",
            '["a",1]',
            "[1,]",
            "[1",
            "[[]",
            "[null]",
            "[{}]",
            "[1e999]",
        )
    ]
    told: dict[Any, Any] = {}
    for way in WAYS:
        with monkeypatch.context() as patched:
            take(way, patched)
            for datatype in ("FP32", "INT64", "BYTES"):
                model = make(datatype)
                for dialect, body in bodies:
                    try:
                        said: Any = model.decode(HTTP[dialect], body.encode()).inputs["pixel_values_of_images"].tolist()
                    except GatewayError as error:
                        said = (type(error), str(error))
                    assert told.setdefault((datatype, dialect, body), said) == said
