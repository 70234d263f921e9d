"""TensorFlow Serving: every datatype in every encoding, in both directions, on both sides, whichever way it takes.

The judges are json, struct, NumPy and protobuf's runtime; the text of replies is laid out here once more, from the
contract's tables.
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
    SHAPED,
    WAYS,
    WAYS_OUT,
    Key,
    Shape,
    assert_json,
    assert_same,
    cases,
    few_layouts,
    flat,
    joined,
    json_leaves,
    json_text,
    leaves,
    nested,
    raw,
    received,
    shaped,
    take,
    turns,
)

from tensorgate.adapters.protobuf.messages import message
from tensorgate.adapters.tf_serving import KIND
from tensorgate.adapters.tf_serving.client import TfsHttpClient
from tensorgate.adapters.tf_serving.options import TfServingOptions
from tensorgate.adapters.tf_serving.proto_client import TfsGrpcClient
from tensorgate.gateway.contract.call import Call
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelView
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.errors import EncodingFailed, InvalidArgument, Unsupported
from tensorgate.gateway.contract.upstream import Description, UpstreamModel

TYPED, CONTENT = (KIND.make(TfServingOptions(tensor_content=content)) for content in (False, True))
REST = TYPED.match("POST", "/v1/models/m:predict").endpoint
ADDRESS = "/tensorflow.serving.PredictionService/Predict"
Request, Response = message("tensorflow.serving.PredictRequest"), message("tensorflow.serving.PredictResponse")
NO_JSON = {"FP16": "half", "BF16": "bfloat16", "UINT16": "uint16"}
TABLE = {
    "FP32": (1, "float_val"),
    "FP64": (2, "double_val"),
    "INT32": (3, "int_val"),
    "UINT8": (4, "int_val"),
    "INT16": (5, "int_val"),
    "INT8": (6, "int_val"),
    "BYTES": (7, "string_val"),
    "INT64": (9, "int64_val"),
    "BOOL": (10, "bool_val"),
    "BF16": (14, "half_val"),
    "UINT16": (17, "int_val"),
    "FP16": (19, "half_val"),
    "UINT32": (22, "uint32_val"),
    "UINT64": (23, "uint64_val"),
}
"""Datatype -> its DataType, and the field of TensorProto that has its elements."""
every_way = pytest.mark.parametrize("way", WAYS)
ways_out = pytest.mark.parametrize("way", WAYS_OUT)
every_datatype = pytest.mark.parametrize("datatype", DTYPES)


class Model:
    """One input x and one output y of a datatype, of any shape; the second output is for answers of several."""

    def __init__(
        self, make_model: Callable[..., ModelView], make_resolve: Callable[..., Resolve], datatype: str
    ) -> None:
        outputs = {"y": (datatype, None), "z": (datatype, None), "y_bytes": (datatype, None)}
        signatures = {"serving_default": ({"x": "x"}, {"y": "y"}), "both": ({"x": "x"}, {"y": "y", "z": "z"})}
        signatures["suffix"] = ({"x": "x"}, {"y_bytes": "y_bytes"})
        self.view = make_model("m", {"x": (datatype, None)}, outputs, signatures=signatures)
        self.resolve = make_resolve(self.view)
        self.described = Description(tuple(self.view.inputs.values()), (self.view.outputs["y"],))

    def over_rest(self, body: str) -> InferRequest:
        call = Call(body.encode(), "POST", "", {}, "http", {"model": "m"}, in_thread=True)
        asked = REST.decode(call, self.resolve)
        assert isinstance(asked, InferRequest)
        return asked

    def over_grpc(self, tensor: Any, **spec: str) -> InferRequest:
        body = Request(model_spec={"name": "m", **spec}, inputs={"x": tensor}).SerializeToString()
        call = Call(body, "POST", ADDRESS, {}, "grpc", in_thread=True)
        asked = TYPED.grpc[ADDRESS].decode(call, self.resolve)
        assert isinstance(asked, InferRequest)
        return asked


@pytest.fixture
def make(make_model: Callable[..., ModelView], make_resolve: Callable[..., Resolve]) -> Callable[[str], Model]:
    return lambda datatype: Model(make_model, make_resolve, datatype)


# ------------------------------------------------------------------------------------------------------- REST requests


@every_way
@every_datatype
@pytest.mark.parametrize("form", ["inputs", "named inputs", "instances", "named instances"])
def test_rest_requests(
    way: str, datatype: str, form: str, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], Model]
) -> None:
    take(way, monkeypatch)
    model = make(datatype)
    odd = [(150, (150,)), (1023, (33, 31))] if datatype in ("FP32", "FP64") else []
    for count, shape in cases(way) + odd:
        if form == "named instances" and count > 2000 and shape != (100, 200):
            continue
        for key in turns(datatype, count, "odd" if (count, shape) in odd else "text")[: 3 if form == "inputs" else 1]:
            if not _is_told(form, shape):
                continue
            body = rest_body(form, key, shape)
            if datatype in NO_JSON and count:
                words = f"to type: {NO_JSON[datatype]}"
                with pytest.raises(Unsupported if "inputs" in form else InvalidArgument, match=words):
                    model.over_rest(body)
                continue
            assert_same(model.over_rest(body).inputs["x"], key, shape, exact=key.family != "odd")


def _is_told(form: str, shape: Shape) -> bool:
    """Whether nested lists tell this shape: those of no elements end with the first that is empty, rows are there."""
    if 0 in shape:
        return shape.index(0) == len(shape) - 1 and (shape[0] > 0 or "inputs" in form)
    return bool(shape) or "inputs" in form


@cache
def rest_body(form: str, key: Key, shape: Shape) -> str:
    text = json_text(key, shape)
    if form == "named instances":
        rows = nested(json_leaves(key), shape)
        return json.dumps({"signature_name": "serving_default", "instances": [{"x": row} for row in rows]})
    if form == "named inputs":
        return f'{{"inputs": {{"x": {text}}}}}'
    return f'{{"{form}": {text}}}' if key.turn < 2 else f' {{"signature_name":"serving_default" , "{form}" :{text} }} '


@every_way
def test_rest_texts_in_base64(way: str, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], Model]) -> None:
    take(way, monkeypatch)
    model = make("BYTES")
    for count, shape in cases(way):
        if count > 1024:
            continue
        key = Key("BYTES", count, "bits")
        coded = [{"b64": base64.b64encode(each).decode()} for each in leaves(key)]
        for form in ("inputs", "instances"):
            if _is_told(form, shape):
                assert_same(model.over_rest(json.dumps({form: nested(coded, shape)})).inputs["x"], key, shape)


@every_way
@pytest.mark.parametrize("datatype", INTEGERS)
def test_rest_integers_that_do_not_fit(
    way: str, datatype: str, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], Model]
) -> None:
    """Narrow ones are cut to their width, as literals of INT32; UINT16 has none."""
    if datatype == "UINT16":
        return
    take(way, monkeypatch)
    model = make(datatype)
    literal = np.iinfo("i4" if datatype in ("INT8", "UINT8", "INT16") else DTYPES[datatype])
    own = np.iinfo(DTYPES[datatype])
    for value in (own.min - 1, own.max + 1, literal.min, literal.max, literal.min - 1, literal.max + 1, 300):
        for count in (1, 1023):
            for form in ("inputs", "instances"):
                body = json.dumps({form: [1] * (count - 1) + [int(value)]})
                if literal.min <= value <= literal.max:
                    want = np.array([1] * (count - 1) + [int(value)], object)
                    cut = [int(v) & (2**own.bits - 1) for v in want]
                    cut = [v - 2**own.bits if v > own.max else v for v in cut]
                    got = model.over_rest(body).inputs["x"]
                    assert got.dtype == DTYPES[datatype]
                    assert got.tolist() == cut
                else:
                    with pytest.raises(InvalidArgument, match="is not of expected type: "):
                        model.over_rest(body)


@every_way
@every_datatype
def test_rest_has_no_coercion(
    way: str, datatype: str, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], Model]
) -> None:
    take(way, monkeypatch)
    model = make(datatype)
    fits = {"b": ["true", "false"], "i": ["1"], "u": ["1"], "f": ["1.0", "1e2", "1", "0.5"], "O": ['"1"']}
    allowed = [] if datatype in NO_JSON else fits[DTYPES[datatype].kind]
    for leaf in ("1.0", "1e2", "0.5", "1", "true", "false", "null", '"1"', '{"b64": 5}'):
        for form in ("inputs", "instances"):
            body = f'{{"{form}": [{leaf}]}}'
            if leaf in allowed:
                got, want = model.over_rest(body).inputs["x"], json.loads(leaf)
                assert got.tolist() == [want.encode() if isinstance(want, str) else want]
                assert got.dtype == DTYPES[datatype]
            else:
                with pytest.raises((InvalidArgument, Unsupported)):
                    model.over_rest(body)


# -------------------------------------------------------------------------------------------------------- REST replies


@cache
def texts_of(key: Key) -> list[str]:
    """Each element as the contract writes it; bytes that are no text as surrogates."""
    array = flat(key)
    if key.datatype == "BYTES":
        return [quoted(each) for each in array]
    if key.datatype == "BOOL":
        return ["true" if each else "false" for each in array]
    if key.datatype not in FLOATS:
        return [str(each) for each in array.tolist()]
    return [number(each, array.dtype) for each in array]


def number(value: Any, dtype: np.dtype[Any]) -> str:
    if not np.isfinite(value):
        return "NaN" if np.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    text = f"{value:g}"
    with np.errstate(over="ignore"):
        if dtype.type(text) != value:
            text = f"{value:.9g}" if dtype.itemsize == 4 else f"{value:.17g}"
    return text if "." in text or "e" in text else text + ".0"


SHORT = {8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r", 34: '\\"', 92: "\\\\"}


def quoted(value: bytes) -> str:
    text = value.decode("utf-8", "surrogateescape")
    return '"' + "".join([SHORT.get(ord(c)) or (f"\\u{ord(c):04X}" if ord(c) < 32 else c) for c in text]) + '"'


def inline(texts: list[str], shape: Shape) -> list[str]:
    """The rows, arrays on one line."""
    for size in reversed(shape[1:]):
        count = int(np.prod(shape[:1])) if not texts else len(texts) // size
        texts = ["[" + ", ".join(texts[at * size : at * size + size]) + "]" for at in range(count)]
    return texts


def expanded(texts: list[str], shape: Shape, level: int) -> str:
    """Everything on a line of its own."""
    if not shape:
        return texts[0]
    if not shape[0]:
        return "[]"
    step, line = len(texts) // shape[0], "\n" + "    " * (level + 1)
    items = [expanded(texts[at * step : at * step + step], shape[1:], level + 1) for at in range(shape[0])]
    return "[" + line + f",{line}".join(items) + "\n" + "    " * level + "]"


@cache
def expected(key: Key, shape: Shape, form: str) -> bytes:
    return laid_out(key, shape, form).encode("utf-8", "surrogateescape")


def laid_out(key: Key, shape: Shape, form: str) -> str:
    if form == "inputs":
        return '{\n    "outputs": ' + expanded(texts_of(key), shape, 1) + "\n}"
    if not shape[0]:
        return '{\n    "predictions": []\n}'
    rows = ["[]" if shape[1:] == (0,) else "[[], []]"] * shape[0] if 0 in shape[1:] else inline(texts_of(key), shape)
    return '{\n    "predictions": [' + ", ".join(rows) + "\n    ]\n}"


@ways_out
@every_datatype
@pytest.mark.parametrize("form", ["inputs", "instances"])
def test_rest_replies(
    way: str, datatype: str, form: str, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], Model]
) -> None:
    take(way, monkeypatch)
    model = make(datatype)
    asked = None if datatype in NO_JSON else model.over_rest(rest_body(form, Key(datatype, 1), (1,)))
    for count, shape in cases(way):
        key = Key(datatype, count, "bits")
        if shape == (1, 0, 2):
            continue
        for layout, array in few_layouts(shaped(key, shape), way):
            answer = InferResponse({"y": array})
            if datatype in NO_JSON:
                asked = model.over_rest(f'{{"{form}": [[]]}}')
                if count and (shape or form == "inputs"):
                    words = f"^Failed to write JSON value for tensor type: {NO_JSON[datatype]}"
                    with pytest.raises(EncodingFailed, match=words):
                        REST.encode(answer, asked)
                    continue
            assert asked is not None
            if not shape and form == "instances":
                with pytest.raises(EncodingFailed, match=r"^Tensor name: y has no shape information"):
                    REST.encode(answer, asked)
                continue
            got = joined(REST.encode(answer, asked))
            assert got == expected(key, shape, form), (shape, layout)


@ways_out
@every_datatype
@pytest.mark.parametrize("form", ["inputs", "instances"])
def test_rest_replies_of_several_outputs(
    way: str, datatype: str, form: str, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], Model]
) -> None:
    take(way, monkeypatch)
    if datatype in NO_JSON:
        return
    model = make(datatype)
    asked = model.over_rest(rest_body(form, Key(datatype, 1), (1,))[:-1] + ', "signature_name": "both"}')
    for count, shape in ((1, (1, 1)), (1023, (33, 31)), (1024, (1024,)), (20_000, (100, 200))):
        keys = {"y": Key(datatype, count, "odd", 0), "z": Key(datatype, count, "odd", 1)}
        every = [dict(few_layouts(shaped(key, shape), "")) for key in keys.values()]
        for layout in every[0] if count < 2000 else ("read-only",):
            outputs = {name: arrays[layout] for name, arrays in zip(keys, every, strict=True)}
            said = json.loads(joined(REST.encode(InferResponse(outputs), asked)))
            for name, key in keys.items():
                columns = said["outputs"][name] if form == "inputs" else [row[name] for row in said["predictions"]]
                assert_json(columns, key, shape)


@ways_out
@every_datatype
def test_outputs_whose_name_ends_in_bytes(
    way: str, datatype: str, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], Model]
) -> None:
    """Texts are Base64 then, and nothing else is."""
    take(way, monkeypatch)
    if datatype in NO_JSON:
        return
    model = make(datatype)
    for form, key in (("inputs", "outputs"), ("instances", "predictions")):
        asked = model.over_rest(rest_body(form, Key(datatype, 1), (1,))[:-1] + ', "signature_name": "suffix"}')
        for count, shape in ((1, (1,)), (1023, (33, 31)), (1024, (1024,))):
            which = Key(datatype, count, "bits" if datatype == "BYTES" else "odd")
            said = json.loads(joined(REST.encode(InferResponse({"y_bytes": shaped(which, shape)}), asked)))[key]
            if datatype == "BYTES":
                assert said == nested([{"b64": base64.b64encode(each).decode()} for each in leaves(which)], shape)
            else:
                assert_json(said, which, shape)


# ---------------------------------------------------------------------------------------------------------------- gRPC


def typed(key: Key, shape: Shape, values: Any = None) -> dict[str, Any]:
    """A TensorProto whose elements are in their typed field."""
    number, field = TABLE[key.datatype]
    if values is None:
        values = flat(key).view(np.uint16).tolist() if field == "half_val" else leaves(key)
    return {"dtype": number, "tensor_shape": {"dim": [{"size": size} for size in shape]}, field: values}


def content_of(key: Key) -> bytes:
    """Elements as bytes: of texts all lengths, as varints, and then the texts."""
    if key.datatype != "BYTES":
        return raw(key)
    return b"".join([varint(len(each)) for each in leaves(key)]) + b"".join(leaves(key))


def varint(value: int) -> bytes:
    digits = []
    while value > 127:
        digits.append(value & 127 | 128)
        value >>= 7
    return bytes([*digits, value])


def family_of(datatype: str) -> Any:
    """Python's own floats, through which protobuf's runtime takes numbers, make NaN quiet."""
    return "odd" if datatype in ("FP32", "FP64") else "bits"


@every_way
@every_datatype
def test_typed_fields(way: str, datatype: str, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], Model]) -> None:
    take(way, monkeypatch)
    model = make(datatype)
    for count, shape in cases(way):
        keys = turns(datatype, count, family_of(datatype))[:2]
        for key in [*keys, Key(datatype, count, "small")]:
            assert_same(model.over_grpc(typed(key, shape)).inputs["x"], key, shape)


@every_way
@every_datatype
def test_tensor_content(way: str, datatype: str, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], Model]) -> None:
    take(way, monkeypatch)
    model = make(datatype)
    number, _ = TABLE[datatype]
    for count, shape in cases(way):
        for key in turns(datatype, count, "bits")[:2]:
            dims = {"dim": [{"size": size} for size in shape]}
            tensor = {"dtype": number, "tensor_shape": dims, "tensor_content": content_of(key)}
            assert_same(model.over_grpc(tensor).inputs["x"], key, shape)


@every_datatype
def test_tensor_content_of_another_size_is_refused(datatype: str, make: Callable[[str], Model]) -> None:
    model = make(datatype)
    for count in (1, 1023, 1024):
        content = content_of(Key(datatype, count, "bits"))
        for wrong in (content[:-1], content + b"\0"):
            if wrong:
                dims = {"dim": [{"size": count}]}
                tensor = {"dtype": TABLE[datatype][0], "tensor_shape": dims, "tensor_content": wrong}
                with pytest.raises(InvalidArgument, match=r"^tensor parsing error: x"):
                    model.over_grpc(tensor)


@every_way
@every_datatype
def test_typed_fields_of_another_number(
    way: str, datatype: str, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], Model]
) -> None:
    """For missing values the last one stands, surplus ones are dropped; without any, elements are 0 or empty."""
    take(way, monkeypatch)
    model = make(datatype)
    key = Key(datatype, 7, family_of(datatype))
    values = typed(key, ())[TABLE[datatype][1]]
    for count in (1, 6, 8, 1023, 1024):
        got = model.over_grpc(typed(key, (count,))).inputs["x"]
        want = np.concatenate((flat(key)[:count], np.repeat(flat(key)[-1:], max(0, count - 7))))
        assert got.dtype == DTYPES[datatype]
        assert got.tolist() == want.tolist() if datatype == "BYTES" else got.tobytes() == want.tobytes()
        alone = model.over_grpc(typed(key, (count,), values[:1])).inputs["x"]
        assert (alone == flat(key)[0]).all() or np.isnan(flat(key)[0])
        assert (alone.dtype, alone.shape) == (DTYPES[datatype], (count,))
        two = model.over_grpc(typed(key, (count,), values[:2])).inputs["x"]
        want = np.concatenate((flat(key)[:2][:count], np.repeat(flat(key)[1:2], max(0, count - 2))))
        assert two.tolist() == want.tolist() if datatype == "BYTES" else two.tobytes() == want.tobytes()
        nothing = model.over_grpc(typed(key, (count,), [])).inputs["x"]
        assert nothing.tolist() == [b"" if datatype == "BYTES" else 0] * count
        assert nothing.dtype == DTYPES[datatype]


@every_way
@pytest.mark.parametrize("datatype", ["INT8", "UINT8", "INT16", "UINT16", "FP16", "BF16"])
def test_typed_fields_are_cut_to_the_width(
    way: str, datatype: str, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], Model]
) -> None:
    take(way, monkeypatch)
    model = make(datatype)
    width = DTYPES[datatype].itemsize
    for values in ([300, -1, 70_000, 2**31 - 1, -(2**31)], [1, 2, 3, 4, 5] * 300 + [-300]):
        got = model.over_grpc(typed(Key(datatype, 1), (len(values),), values)).inputs["x"]
        assert got.tobytes() == b"".join([(v & (256**width - 1)).to_bytes(width, "little") for v in values])


def test_what_repeated_values_may_become(make: Callable[[str], Model]) -> None:
    """4 MiB of the 64 that a message may have; one value takes no memory, several count four times."""
    model = make("FP64")
    for count, values, fits in (
        (1 << 19, 1, True),
        ((1 << 19) + 1, 1, False),
        (1 << 17, 2, True),
        ((1 << 17) + 1, 2, False),
    ):
        tensor = typed(Key("FP64", 1), (count,), [1.5] * values)
        if fits:
            assert model.over_grpc(tensor).inputs["x"].size == count
        else:
            with pytest.raises(InvalidArgument, match=r"of which few were sent$"):
                model.over_grpc(tensor)


FOREIGN = {8: 8, 18: 16, 11: 1, 12: 1, 15: 2, 16: 2, 13: 4, 24: 1, 25: 1, 29: 1, 30: 1}
"""Dtypes that a tensor may have and no model takes -> bytes of an element."""


@pytest.mark.parametrize("number", FOREIGN)
def test_dtypes_that_no_model_takes(number: int, make: Callable[[str], Model]) -> None:
    model = make("FP32")
    for count in (1, 3):
        for size in (count * FOREIGN[number], count * FOREIGN[number] + 1):
            tensor = {"dtype": number, "tensor_shape": {"dim": [{"size": count}]}, "tensor_content": bytes(size)}
            words = r"^Expects arg\[0\] to be float" if size == count * FOREIGN[number] else "^tensor parsing error: x$"
            with pytest.raises(InvalidArgument, match=words):
                model.over_grpc(tensor)


@every_datatype
def test_a_tensor_of_another_dtype_is_refused(datatype: str, make: Callable[[str], Model]) -> None:
    model = make(datatype)
    for other, (number, _) in TABLE.items():
        tensor = {"dtype": number, "tensor_shape": {"dim": [{"size": 0}]}}
        if other == datatype:
            assert model.over_grpc(tensor).inputs["x"].dtype == DTYPES[datatype]
        else:
            with pytest.raises(InvalidArgument, match=r"^Expects arg\[0\] to be "):
                model.over_grpc(tensor)


@ways_out
@every_datatype
@pytest.mark.parametrize("content", [False, True], ids=["typed", "content"])
def test_grpc_replies(
    way: str, datatype: str, content: bool, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], Model]
) -> None:
    take(way, monkeypatch)
    model = make(datatype)
    endpoint = (CONTENT if content else TYPED).grpc[ADDRESS]
    number, field = TABLE[datatype]
    empty = {"dtype": number, "tensor_shape": {"dim": [{"size": 0}]}}
    asked, both = model.over_grpc(empty), model.over_grpc(empty, signature_name="both")
    for count, shape in cases(way):
        for family in (family_of(datatype), "small"):
            key = Key(datatype, count, family)
            values = typed(key, shape)[field]
            for layout, array in few_layouts(shaped(key, shape), way if family != "small" else ""):
                several = layout == "read-only"
                answer = InferResponse({"y": array, "z": array[..., :0] if array.ndim else array})
                told = Response.FromString(joined(endpoint.encode(answer, both if several else asked)))
                assert sorted(told.outputs) == ["y", "z"][: 1 + several]
                tensor = told.outputs["y"]
                assert (tensor.dtype, [dim.size for dim in tensor.tensor_shape.dim]) == (number, [*shape])
                assert tensor.HasField("tensor_shape")
                assert {name.name for name, _ in tensor.ListFields()} <= {
                    "dtype",
                    "tensor_shape",
                    "tensor_content" if content else field,
                }
                if content:
                    assert tensor.tensor_content == content_of(key)
                elif datatype in ("FP32", "FP64"):
                    got = np.array(getattr(tensor, field)[:], DTYPES[datatype])
                    assert_same(got, key, (count,), exact=False)
                else:
                    assert getattr(tensor, field)[:] == values
                assert (told.model_spec.name, told.model_spec.version.value) == ("m", 1)


# -------------------------------------------------------------------------------------------------------- client sides


def asks(client: Any, model: Model, array: Any) -> bytes:
    inputs = {"x": array}
    return joined(client.encode(inputs, (), InferRequest(model.view, inputs), model.described, stream=False))


@ways_out
@every_datatype
def test_clients_ask(way: str, datatype: str, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], Model]) -> None:
    take(way, monkeypatch)
    model = make(datatype)
    http, grpc = TfsHttpClient(UpstreamModel("m")), TfsGrpcClient(UpstreamModel("m"))
    for count, shape in cases(way):
        key = Key(datatype, count, "bits")
        odd = Key(datatype, count, "bits" if datatype == "BYTES" else "odd")
        for _, array in few_layouts(shaped(key, shape), ""):
            said = Request.FromString(asks(grpc, model, array))
            tensor = said.inputs["x"]
            assert (tensor.dtype, [dim.size for dim in tensor.tensor_shape.dim]) == (TABLE[datatype][0], [*shape])
            assert tensor.tensor_content == content_of(key)
        for _, array in few_layouts(shaped(odd, shape), "") if way == "as it runs" else ():
            if datatype in NO_JSON:
                with pytest.raises(EncodingFailed, match=f"^input x is {NO_JSON[datatype]}, which"):
                    asks(http, model, array)
                continue
            value = json.loads(asks(http, model, array))["inputs"]["x"]
            if datatype == "BYTES":
                assert value == nested([{"b64": base64.b64encode(each).decode()} for each in leaves(odd)], shape)
            else:
                assert_json(value, odd, shape)


@pytest.mark.parametrize("datatype", ["FP32", "FP64"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 0.0])
def test_clients_ask_with_one_value_alone(datatype: str, value: float, make: Callable[[str], Model]) -> None:
    array = np.full(3, value, DTYPES[datatype])
    said = json.loads(asks(TfsHttpClient(UpstreamModel("m")), make(datatype), array))["inputs"]["x"]
    np.testing.assert_array_equal(np.array(said), array)


@every_way
@every_datatype
def test_clients_are_answered(
    way: str, datatype: str, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], Model]
) -> None:
    take(way, monkeypatch)
    model = make(datatype)
    grpc = TfsGrpcClient(UpstreamModel("m"))
    for count, shape in cases(way):
        key = Key(datatype, count, family_of(datatype))
        both = Response(outputs={"y": typed(key, shape)}).SerializeToString()
        assert_same(grpc.decode(received(both), model.described).outputs["y"], key, shape)
        dims = {"dim": [{"size": size} for size in shape]}
        tensor = {"dtype": TABLE[datatype][0], "tensor_shape": dims, "tensor_content": content_of(key)}
        content = Response(outputs={"y": tensor}).SerializeToString()
        assert_same(grpc.decode(received(content), model.described).outputs["y"], key, shape)


@every_datatype
def test_rest_clients_are_answered(datatype: str, make: Callable[[str], Model]) -> None:
    if datatype in NO_JSON:
        return
    model = make(datatype)
    http = TfsHttpClient(UpstreamModel("m"))
    for count, shape in SHAPED:
        if not _is_told("inputs", shape):
            continue
        key = Key(datatype, count, "bits" if datatype == "BYTES" else "odd")
        body = expected(key, shape, "inputs")
        assert_same(http.decode(received(body), model.described).outputs["y"], key, shape, exact=datatype not in FLOATS)
        if datatype == "BYTES":
            coded = nested([{"b64": base64.b64encode(each).decode()} for each in leaves(key)], shape)
            body = json.dumps({"outputs": {"y": coded}}).encode()
            assert_same(http.decode(received(body), model.described).outputs["y"], key, shape)
