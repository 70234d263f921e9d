"""grps answers -> bytes: every layout to the byte, and properties against Python's own printer."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from tensorgate.adapters.grps import number_text
from tensorgate.adapters.grps.printing import nested, success
from tensorgate.adapters.grps.proto_message import GrpsMessage, maps_message
from tensorgate.adapters.grps.response import (
    ReplyForm,
    encode_predict,
    encode_ready,
    encode_success,
    encode_text,
    filled,
)
from tensorgate.gateway.contract.call import Reply
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse
from tensorgate.gateway.contract.errors import EncodingFailed
from tensorgate.gateway.contract.tensor import DTYPES

OK = b'{\n "status": {\n  "code": 200,\n  "msg": "OK",\n  "status": "SUCCESS"\n }'
GTENSORS = ReplyForm("gtensors")


def encode(outputs: Mapping[str, Any], form: ReplyForm = GTENSORS) -> Reply:
    return encode_predict(InferResponse(outputs), InferRequest(None, {}, wire=form))  # type: ignore[arg-type]


def text(reply: Reply) -> bytes:
    return bytes(reply.body) if isinstance(reply.body, (bytes, bytearray, memoryview)) else b"".join(reply.body)


def array(values: Any, datatype: str) -> np.ndarray[Any, Any]:
    return np.array(values, DTYPES[datatype])


def test_gtensors_to_the_byte() -> None:
    reply = encode({"scores": array([[1, 0.1]], "FP32"), "n\u00e9": array([3], "INT64")})
    assert text(reply) == OK + (
        b',\n "gtensors": {\n  "tensors": [\n'
        b'   {\n    "name": "scores",\n    "dtype": "DT_FLOAT32",\n'
        b'    "shape": [\n     1,\n     2\n    ],\n    "flat_float32": [\n     1.0,\n     0.1\n    ]\n   },\n'
        b'   {\n    "name": "n\\u00e9",\n    "dtype": "DT_INT64",\n'
        b'    "shape": [\n     1\n    ],\n    "flat_int64": [\n     "3"\n    ]\n   }\n'
        b"  ]\n }\n}"
    )
    assert (reply.http_status, dict(reply.headers)) == (200, {"Content-Type": "application/json;charset=utf-8"})
    assert not reply.streamed


FLAT: list[tuple[str, Any, str, str, Any]] = [
    ("UINT8", [0, 255], "DT_UINT8", "flat_uint8", [0, 255]),
    ("INT8", [-128, 127], "DT_INT8", "flat_int8", [-128, 127]),
    ("INT16", [-32768], "DT_INT16", "flat_int16", [-32768]),
    ("INT32", [2**31 - 1], "DT_INT32", "flat_int32", [2**31 - 1]),
    ("INT64", [-(2**63), 0], "DT_INT64", "flat_int64", ["-9223372036854775808", "0"]),
    ("FP16", [0.1, 65504, np.nan], "DT_FLOAT16", "flat_float16", [0.099975586, 65504.0, "NaN"]),
    ("FP32", [3.4028235e38, np.inf, -np.inf], "DT_FLOAT32", "flat_float32", [3.4028235e38, "Infinity", "-Infinity"]),
    ("FP64", [0.1, 1e300, -0.0], "DT_FLOAT64", "flat_float64", [0.1, 1e300, -0.0]),
    ("BYTES", [b"a,b", "\u00e9".encode(), b'"]\n'], "DT_STRING", "flat_string", ["a,b", "\u00e9", '"]\n']),
]


@pytest.mark.parametrize("indent", [1, 2])
@pytest.mark.parametrize(("datatype", "values", "dtype", "field", "want"), FLAT, ids=[row[0] for row in FLAT])
def test_every_dtype_as_pythons_printer_lays_it_out(
    datatype: str, values: Any, dtype: str, field: str, want: Any, indent: int
) -> None:
    reply = encode({"y": array(values, datatype)}, ReplyForm("gtensors", stream=indent == 2))
    tensor = {"name": "y", "dtype": dtype, "shape": [len(values)], field: want}
    status = {"code": 200, "msg": "OK", "status": "SUCCESS"}
    expected = {"status": status, "gtensors": {"tensors": [tensor]}}
    assert json.loads(text(reply)) == expected
    assert text(reply) == json.dumps(expected, indent=indent).encode()


def test_defaults_are_left_out() -> None:
    assert json.loads(text(encode({"": array(5, "INT32")})))["gtensors"] == {
        "tensors": [{"dtype": "DT_INT32", "flat_int32": [5]}]
    }
    assert json.loads(text(encode({"y": np.empty((0, 3), np.float32)})))["gtensors"] == {
        "tensors": [{"name": "y", "dtype": "DT_FLOAT32", "shape": [0, 3]}]
    }
    assert text(encode({})) == OK + b',\n "gtensors": {}\n}'


@pytest.mark.parametrize("datatype", ["BOOL", "UINT16", "UINT32", "UINT64", "BF16"])
def test_what_grps_cannot_carry(datatype: str) -> None:
    with pytest.raises(EncodingFailed) as caught:
        encode({"y": array([1], datatype)})
    assert caught.value.text == f"Output y is {datatype}, for which grps has no dtype."
    with pytest.raises(EncodingFailed):
        encode({"y": array([1], "FP32"), "z": array([b"\xff"], "BYTES")})


# ------------------------------------------------------------------------------------------------------------- ndarray

NDARRAYS: list[tuple[Any, bytes]] = [
    ([[0.1, 1], [2, 3]], b"[\n  [\n   0.10000000149011612,\n   1.0\n  ],\n  [\n   2.0,\n   3.0\n  ]\n ]"),
    (0.5, b"0.5"),
    ([np.nan, np.inf, -np.inf], b'[\n  "NaN",\n  "Infinity",\n  "-Infinity"\n ]'),
    ([], b"[]"),
    ([[], []], b"[\n  [],\n  []\n ]"),
]


@pytest.mark.parametrize(("values", "want"), NDARRAYS, ids=[str(values) for values, _ in NDARRAYS])
def test_return_ndarray_to_the_byte(values: Any, want: bytes) -> None:
    reply = encode({"y": array(values, "FP32")}, ReplyForm("ndarray", "y"))
    assert text(reply) == OK + b',\n "ndarray": ' + want + b"\n}"


@given(
    st_numpy.arrays(
        st.just(np.float32),
        st_numpy.array_shapes(min_dims=0, max_dims=6, min_side=0, max_side=4),
        elements=st.integers(-4000, 4000).map(lambda n: n / 8) | st.sampled_from([np.nan, np.inf, -np.inf]),
    ),
    st.sampled_from([1, 2]),
)
def test_nested_lists_are_laid_out_as_pythons_printer_does(values: np.ndarray[Any, Any], indent: int) -> None:
    got = b"".join(success("ndarray", nested(values, 1, indent), indent)).decode()
    status = {"code": 200, "msg": "OK", "status": "SUCCESS"}
    want = json.dumps({"status": status, "ndarray": values.tolist()}, indent=indent)
    for name in ("NaN", "-Infinity"):
        want = want.replace(name, f'"{name}"')
    want = want.replace(" Infinity", ' "Infinity"').replace("\nInfinity", '\n"Infinity"')
    assert got == want


@given(st_numpy.arrays(np.float32, st_numpy.array_shapes(max_dims=3), elements={"allow_subnormal": True}))
def test_ndarrays_and_gtensors_read_back_bit_equal(values: np.ndarray[Any, Any]) -> None:
    lists = json.loads(text(encode({"y": values}, ReplyForm("ndarray", "y"))))["ndarray"]
    np.testing.assert_array_equal(np.array(lists, np.float32), values)
    tensor = json.loads(text(encode({"y": values})))["gtensors"]["tensors"][0]
    np.testing.assert_array_equal(np.array(tensor["flat_float32"], np.float32).reshape(tensor["shape"]), values)


@pytest.mark.parametrize("shape", [(3, 40, 50), (1, 30, 30, 3), (70, 1, 9), (1, 5000)])
def test_large_ndarrays(shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).random(shape, np.float32)
    status = {"code": 200, "msg": "OK", "status": "SUCCESS"}
    body = text(encode({"y": values}, ReplyForm("ndarray", "y")))
    assert body == json.dumps({"status": status, "ndarray": values.tolist()}, indent=1).encode()


ODD = [1e-5, 1.5e-5, 9.999e-5, 1e-4, 1e-6, -1.25e-7, 1e-10, 1e-38, 1e12, 1e13, 1.25e14, 9.9e15, 1e16, -1e17, 1e22, 0.0]


def odd_reply(datatype: str, times: int) -> tuple[bytes, bytes]:
    """A reply with such numbers, and Python's own print of it."""
    want = [*ODD, "NaN", "-Infinity"] * times
    tensor = {"name": "y", "dtype": f"DT_FLOAT{datatype[2:]}", "shape": [len(want)], f"flat_float{datatype[2:]}": want}
    status = {"code": 200, "msg": "OK", "status": "SUCCESS"}
    expected = json.dumps({"status": status, "gtensors": {"tensors": [tensor]}}, indent=1).encode()
    return text(encode({"y": array([*ODD, np.nan, -np.inf] * times, datatype)})), expected


@pytest.mark.parametrize("datatype", ["FP32", "FP64"])
def test_digits_are_set_as_python_sets_them(datatype: str) -> None:
    for times in (1, 200):
        got, want = odd_reply(datatype, times)
        assert got == want


@pytest.mark.parametrize("datatype", ["FP32", "FP64"])
def test_very_many_such_digits(datatype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the compiled helper they are equal numbers, no more."""
    got, want = odd_reply(datatype, 2000)
    assert (got == want) is (number_text._format_nested is not None)
    monkeypatch.setattr(number_text, "_format_nested", None)
    got, want = odd_reply(datatype, 2000)
    assert got != want
    assert json.loads(got) == json.loads(want)


def test_digits_of_ndarrays_are_set_as_python_sets_them() -> None:
    values = array([ODD], "FP32")
    body = text(encode({"y": values}, ReplyForm("ndarray", "y")))
    assert (
        body.partition(b'"ndarray": ')[2].split()
        == (json.dumps(values.tolist(), indent=1) + "}").encode().replace(b"]}", b"] }").split()
    )


def test_a_transposed_output_is_read_in_its_own_order() -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3).T
    assert json.loads(text(encode({"y": values}, ReplyForm("ndarray", "y"))))["ndarray"] == [[0, 3], [1, 4], [2, 5]]
    assert json.loads(text(encode({"y": values})))["gtensors"]["tensors"][0]["flat_float32"] == [0, 3, 1, 4, 2, 5]


def test_only_float32_becomes_an_ndarray() -> None:
    with pytest.raises(EncodingFailed) as caught:
        encode({"y": array([1], "FP64")}, ReplyForm("ndarray", "y"))
    assert caught.value.text == "No float32 tensors in output. Cannot convert to ndarray."


# ------------------------------------------------------------------------------------------------------ text and bytes


def test_text_and_bytes() -> None:
    said = {"n": array([1], "FP32"), "said": array([["h\u00e9 \u4f60"]], "BYTES")}
    said["said"][0, 0] = "h\u00e9 \u4f60".encode()
    reply = encode(said, ReplyForm("str_data", "said", if_single=True))
    assert text(reply) == OK + b',\n "str_data": "h\\u00e9 \\u4f60"\n}'
    raw = encode(said, ReplyForm("bin_data", "said"))
    assert (text(raw), dict(raw.headers)) == ("h\u00e9 \u4f60".encode(), {"Content-Type": "application/octet-stream"})
    empty = encode({"said": array([b""], "BYTES")}, ReplyForm("bin_data", "said"))
    assert text(empty) == OK + b',\n "bin_data": ""\n}'
    assert text(encode({"said": array([b""], "BYTES")}, ReplyForm("str_data", "said"))) == OK + b',\n "str_data": ""\n}'


GMAP = {"s_s": {'k"\u00e9': "t"}, "s_b": {"k": "b"}, "s_i32": {"k": "i"}, "s_i64": {"k": "l"}, "s_f": {"k": "f"}}
MAPS = ReplyForm("gmap", entries=GMAP | {"s_d": {"k": "d", "z": "e"}})  # type: ignore[arg-type]
GIVEN = {
    "t": ["BYTES", "h\u00e9".encode()], "b": ["BYTES", b"\xff\xef"], "i": ["INT32", 0], "l": ["INT64", 2**53 + 1],
    "f": ["FP32", 0.1], "d": ["FP64", 1e-5], "e": ["FP64", np.nan],
}  # fmt: skip


def test_maps_are_printed_in_full() -> None:
    outputs = {name: array([value], datatype) for name, (datatype, value) in GIVEN.items()}
    outputs["t"], outputs["b"] = (np.array([each], np.object_) for each in ("h\u00e9".encode(), b"\xff\xef"))
    printed = {
        "s_s": {'k"\u00e9': "h\u00e9"}, "s_b": {"k": "/+8="}, "s_i32": {"k": 0}, "s_i64": {"k": "9007199254740993"},
        "s_f": {"k": 0.1}, "s_d": {"k": 1e-05, "z": "NaN"},
    }  # fmt: skip
    status = {"code": 200, "msg": "OK", "status": "SUCCESS"}
    assert text(encode(outputs, MAPS)) == json.dumps({"status": status, "gmap": printed}, indent=1).encode()
    assert text(encode({}, MAPS)) == OK + b',\n "gmap": {}\n}'
    [*_, by_grpc] = maps_message(filled(InferResponse(outputs), MAPS))
    told = GrpsMessage.FromString(by_grpc).gmap
    assert (told.s_s['k"\u00e9'], told.s_b["k"], told.s_i64["k"]) == ("h\u00e9", b"\xff\xef", 2**53 + 1)
    assert (told.s_i32["k"], told.s_d["k"], round(told.s_f["k"], 6)) == (0, 1e-5, 0.1)
    assert GrpsMessage.FromString(maps_message({})[1]).WhichOneof("data_oneof") == "gmap"


@pytest.mark.parametrize("wrong", [array([1, 2], "INT32"), array([1], "INT64"), array([b"a"], "BYTES")])
def test_what_is_no_entry_of_a_map(wrong: Any) -> None:
    with pytest.raises(EncodingFailed, match="s_i32 of gmap carries one INT32"):
        encode({"i": wrong}, MAPS)
    with pytest.raises(EncodingFailed, match="not UTF-8"):
        encode({"t": np.array([b"\xff"], np.object_)}, MAPS)


def test_more_than_one_element_is_gtensors_unless_the_mapping_wants_it() -> None:
    two = {"said": array([b"a", b"b"], "BYTES")}
    assert b"gtensors" in text(encode(two, ReplyForm("str_data", "said", if_single=True)))
    for form in (ReplyForm("str_data", "said"), ReplyForm("bin_data", "said")):
        with pytest.raises(EncodingFailed, match="has 2 elements"):
            encode(two, form)
    with pytest.raises(EncodingFailed, match="is FP32"):
        encode({"said": array([1], "FP32")}, ReplyForm("str_data", "said"))
    with pytest.raises(EncodingFailed, match="not UTF-8"):
        encode({"said": array([b"\xff"], "BYTES")}, ReplyForm("str_data", "said"))


def test_an_output_that_the_model_left_out() -> None:
    for form in (ReplyForm("str_data", "said"), ReplyForm("bin_data", "said"), ReplyForm("ndarray", "said")):
        with pytest.raises(EncodingFailed, match="The model gave no output said"):
            encode({}, form)
    assert text(encode({}, ReplyForm("str_data", "said", if_single=True))) == OK + b',\n "gtensors": {}\n}'


def test_a_stream_is_one_document_or_raw_chunk_per_answer() -> None:
    reply = encode({"said": array([b"a"], "BYTES")}, ReplyForm("str_data", "said", stream=True))
    assert reply.streamed
    assert dict(reply.headers) == {"Content-Type": "application/octet-stream"}
    assert text(reply) == (
        b'{\n  "status": {\n    "code": 200,\n    "msg": "OK",\n    "status": "SUCCESS"\n  },\n  "str_data": "a"\n}'
    )
    raw = encode({"said": array([b"\x00"], "BYTES")}, ReplyForm("bin_data", "said", stream=True))
    assert (text(raw), raw.streamed) == (b"\x00", True)


# -------------------------------------------------------------------------------------------------------------- health


def test_health_replies_to_the_byte() -> None:
    assert text(encode_success(None, None)) == OK + b"\n}"
    assert text(encode_ready(True, None)) == OK + b"\n}"
    down = b'{\n "status": {\n  "code": 503,\n  "msg": "Service Unavailable",\n  "status": "FAILURE"\n }\n}'
    for always_200, status in ((False, 503), (True, 200)):
        reply = encode_ready(False, None, always_200=always_200)
        assert (text(reply), reply.http_status) == (down, status)
    assert text(encode_text("a\n\u00e9")) == OK + b',\n "str_data": "a\\n\\u00e9"\n}'
