"""What a careless or hostile caller sends, to every dialect: each gets the answer of its own contract at once, and
those who send good requests meanwhile do not notice.
"""

import socket
import zlib
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import pytest
from attacks import (
    GRPS,
    INFER,
    LIMIT_BYTES,
    PREDICT,
    SECRETS,
    WITHIN_S,
    Body,
    Bystanders,
    attacked,
    check_refusal,
    closing_connection,
    read_answer,
)
from serving import HOST, JSON, Answer, Gateway, demo_config
from waiting import wait_until

pytestmark = pytest.mark.usefixtures("undisturbed")
TARGETS = {"open_inference": INFER, "tf_serving": PREDICT, "grps": GRPS}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """The demo with a small limit of body size."""
    with attacked(tmp_path_factory, demo_config(limits={"max_body_bytes": LIMIT_BYTES})) as gateway:
        yield gateway


class Attack(NamedTuple):
    """A request that is refused: its dialect's status, and words of its text."""

    dialect: str
    name: str
    body: Body
    status: int
    text: str
    target: str = ""
    method: str = "POST"
    headers: Mapping[str, str] = JSON

    def __str__(self) -> str:
        return f"{self.dialect}-{self.name}"


def everywhere(
    name: str, body: Body, open_inference: tuple[int, str], tf_serving: tuple[int, str], grps: tuple[int, str]
) -> list[Attack]:
    """The same bytes to all dialects."""
    answers = {"open_inference": open_inference, "tf_serving": tf_serving, "grps": grps}
    return [Attack(dialect, name, body, *answer) for dialect, answer in answers.items()]


def each(
    name: str,
    open_inference: tuple[Body, int, str],
    tf_serving: tuple[Body, int, str],
    grps: tuple[Body, int, str],
) -> list[Attack]:
    """The same idea in the words of every dialect."""
    attacks = {"open_inference": open_inference, "tf_serving": tf_serving, "grps": grps}
    return [Attack(dialect, name, *attack) for dialect, attack in attacks.items()]


def v2(data: bytes, shape: bytes = b"[1]", name: bytes = b"x", datatype: bytes = b"FP32") -> bytes:
    return b'{"inputs":[{"name":"%b","datatype":"%b","shape":%b,"data":%b}]}' % (name, datatype, shape, data)


def gtensor(flat: bytes, shape: bytes = b"[1]", dtype: bytes = b"DT_FLOAT32", field: bytes = b"flat_float32") -> bytes:
    return b'{"gtensors":{"tensors":[{"dtype":"%b","shape":%b,"%b":%b}]}}' % (dtype, shape, field, flat)


def at(target: str, attack: Attack) -> Attack:
    return attack._replace(target=target)


# ----------------------------------------------------------------------------------------------------- what is no JSON

NO_V2 = (400, "failed to parse the request JSON buffer: ")
DEEP_V2 = (400, "JSON nesting depth exceeds maximum allowed limit (100)")
NO_TFS = (400, "JSON Parse error: ")
NO_GRPS = (500, "Parse json failed. ")
EMPTY_TFS = (400, "Missing 'inputs' or 'instances' key")
FLAT_TFS = (400, "Is not object")
"""TensorFlow Serving reads documents of any depth, and bytes in strings as they come."""

NO_JSON = [
    *everywhere("truncated", b'{"inputs": [{"name": "x", "sha', NO_V2, NO_TFS, NO_GRPS),
    *everywhere("text", b"hello", NO_V2, NO_TFS, NO_GRPS),
    *everywhere("nul-bytes", bytes(1000), NO_V2, NO_TFS, NO_GRPS),
    *everywhere("nul-inside", b'{"inputs":\0[]}', NO_V2, NO_TFS, NO_GRPS),
    *everywhere("nul-in-string", b'{"a\0b": 1}', NO_V2, NO_TFS, NO_GRPS),
    *everywhere("not-utf-8", b'{"model": "\xff\xfe"}', NO_V2, EMPTY_TFS, NO_GRPS),
    *everywhere("cut-utf-8", b'{"model": "\xe2\x82"}', NO_V2, EMPTY_TFS, NO_GRPS),
    *everywhere("surrogate", b'{"model": "\\ud800"}', NO_V2, NO_TFS, NO_GRPS),
    *everywhere("1e400", b'{"model": 1e400}', NO_V2, NO_TFS, NO_GRPS),
    *everywhere("utf-16", '{"model": ""}'.encode("utf-16"), NO_V2, NO_TFS, (500, "No legal field in json.")),
    *everywhere("2000-levels", b"[" * 2000 + b"]" * 2000, DEEP_V2, FLAT_TFS, NO_GRPS),
    *everywhere("2000-objects", b'{"a":' * 2000 + b"1" + b"}" * 2000, DEEP_V2, EMPTY_TFS, NO_GRPS),
    *everywhere("4-mb-of-brackets", lambda: b"[" * (4 << 20), DEEP_V2, NO_TFS, NO_GRPS),
    *everywhere("4-mb-of-levels", lambda: b"[" * (2 << 20) + b"]" * (2 << 20), DEEP_V2, FLAT_TFS, NO_GRPS),
    *everywhere("4-mb-of-braces", lambda: b"{" * (4 << 20), NO_V2, NO_TFS, NO_GRPS),
    *everywhere("4-mb-of-quotes", lambda: b'"' * (4 << 20), NO_V2, (400, "Is not object"), NO_GRPS),
    *everywhere("4-mb-of-backslashes", lambda: b'["' + b"\\" * (4 << 20), NO_V2, NO_TFS, NO_GRPS),
    *everywhere("4-mb-of-objects", lambda: b'{"a":' * 800_000, DEEP_V2, NO_TFS, NO_GRPS),
    *everywhere(
        "deep-with-strings", lambda: b'["' + b'[","' * 500_000 + b'",' + b"[" * 500_000, DEEP_V2, NO_TFS, NO_GRPS
    ),
    *everywhere("whitespace", lambda: b" " * (4 << 20), NO_V2, NO_TFS, NO_GRPS),
    *everywhere(
        "empty", b"", NO_V2, (400, "JSON Parse error: The document is empty"), (400, "The http body is empty.")
    ),
    *(
        attack
        for top in (b"[]", b'"x"', b"17", b"null", b"true", b"[[1.0]]")
        for attack in everywhere(
            f"top-level-{top.decode()}", top, (400, ""), (400, "Is not object"), (500, "not an object")
        )
    ),
]

# --------------------------------------------------------------------------------------------------- what does not fit

INT_NAN = b"[" + b"1," * 15 + b"NaN]"
INT_FLOAT = b"[" + b"1," * 15 + b"1.5]"
DIGITS = b"1" * 5000
CLAIM = b"[" + b"[" * 3 + b",".join([b"0"] * 2000) + (b"]" + b",0" * 1999) * 3 + b"]"
"""By its first elements 2000 x 2000 x 2000 x 2000; in truth four lists of 2000."""

MISFITS = [
    *each(
        "wrong-dtype",
        (v2(b'["a"]'), 400, "Unable to parse 'data': attempt to access JSON non-number as double"),
        (b'{"instances":["a"]}', 400, "is not of expected type: float"),
        (gtensor(b'["a"]'), 500, "gtensors.tensors[0].flat_float32"),
    ),
    *each(
        "other-dtype",
        (v2(b"[1]", datatype=b"INT32"), 400, "data-type is 'INT32', but model 'half_plus_two' expects 'FP32'"),
        (b'{"instances":[true]}', 400, "Type: True is not of expected type: float"),
        (gtensor(b"[1]", dtype=b"DT_INT32", field=b"flat_int32"), 500, "dtype not match"),
    ),
    *each(
        "unknown-dtype",
        (v2(b"[1]", datatype=b"fp32"), 400, "invalid datatype for input x"),
        (b'{"instances":[{"b64":"AAAA"}]}', 400, "is not of expected type: float"),
        (gtensor(b"[1]", dtype=b"FP32"), 500, "gtensors.tensors[0].dtype"),
    ),
    *each(
        "too-few",
        (v2(b"[1, 2]", b"[3]"), 400, "Unable to parse 'data': Shape does not match true shape of 'data' field"),
        (b'{"instances":[]}', 400, "No values in 'instances' array"),
        (gtensor(b"[1, 2]", b"[3]"), 500, "expected size: 3, actual size: 2"),
    ),
    *each(
        "too-many",
        (v2(b"[1, 2, 3]", b"[2]"), 400, "Shape does not match true shape of 'data' field"),
        (b'{"instances":[{"x": 1, "z": 1}]}', 400, "does not have named input: z"),
        (gtensor(b"[1, 2, 3]", b"[2]"), 500, "expected size: 2, actual size: 3"),
    ),
    *each(
        "ragged",
        (v2(b"[[1, 2], [3]]", b"[2, 2]"), 400, "Shape does not match true shape"),
        (b'{"inputs":[[1, 2], [3]]}', 400, "Encountered list at unexpected size: 1 at level: 1 expected size: 2"),
        (b'{"ndarray":[[1, 2], [3]]}', 500, "some array size not match"),
    ),
    *each(
        "10^12-elements-claimed",
        (v2(b"[1]", b"[1000000,1000000]"), 400, "exceeds the maximum allowed value"),
        (b'{"inputs":' + CLAIM + b"}", 400, "found at incorrect level"),
        (gtensor(b"[1]", b"[1000000,1000000]"), 500, "expected size: 1000000000000, actual size: 1"),
    ),
    *each(
        "2^64-elements-claimed",
        (v2(b"[1]", b"[4294967296,4294967296]"), 400, "exceed maximum size of 9223372036854775807"),
        (b'{"instances":[' + CLAIM + b"]}", 400, "Failed to process element: 0 of 'instances' list."),
        (gtensor(b"[1]", b"[4294967295,4294967295,4294967295]"), 500, "not match"),
    ),
    *each(
        "1000-dimensions",
        (v2(b"[1]", b"[" + b",".join([b"1"] * 1000) + b"]"), 400, "at most 64"),
        (b'{"inputs":' + b"[" * 900 + b"1" + b"]" * 900 + b"}", 400, "tensor parsing error: x"),
        (gtensor(b"[1]", b"[" + b",".join([b"1"] * 1000) + b"]"), 500, "gtensors.tensors[0].shape"),
    ),
    *each(
        "claim-by-nesting",
        (v2(CLAIM, b"[2000,2000,2000,2000]"), 400, "exceeds the maximum allowed value"),
        (b'{"inputs":{"x":' + CLAIM + b"}}", 400, "found at incorrect level"),
        (b'{"ndarray":' + CLAIM + b"}", 500, "some array size not match"),
    ),
    *each(
        "negative-shape",
        (v2(b"[1]", b"[-1]"), 400, "Unable to parse 'shape'"),
        (b'{"inputs": {}}', 400, "Missing named input: x"),
        (gtensor(b"[1]", b"[-1]"), 500, "out of range"),
    ),
    *each(
        "5000-digits",
        (v2(b"[%b]" % DIGITS), 400, "Number too big"),
        (b'{"instances":[%b]}' % DIGITS, 400, "Number too big"),
        (gtensor(b"[%b]" % DIGITS), 500, "Number too big"),
    ),
    *each(
        "5000-digits-of-shape",
        (v2(b"[1]", b"[%b]" % DIGITS), 400, "Number too big"),
        (b'{"signature_name":%b,"instances":[1]}' % DIGITS, 400, "Number too big"),
        (gtensor(b"[1]", b"[%b]" % DIGITS), 500, "Number too big"),
    ),
    *each(
        "number-too-big",
        (v2(b"[1e400]"), 400, "Number too big to be stored in double."),
        (b'{"instances":[1e400]}', 400, "Number too big to be stored in double."),
        (gtensor(b"[1e400]"), 500, "Number too big to be stored in double."),
    ),
    at(
        "/v2/models/add_sub/infer",
        Attack("open_inference", "nan-for-int", v2(INT_NAN, b"[1,16]", b"INPUT0", b"INT32"), 400, "non-signed-integer"),
    ),
    at(
        "/v2/models/add_sub/infer",
        Attack(
            "open_inference", "float-for-int", v2(INT_FLOAT, b"[1,16]", b"INPUT0", b"INT32"), 400, "non-signed-integer"
        ),
    ),
    at(
        "/v1/models/add_sub:predict",
        Attack(
            "tf_serving",
            "nan-for-int",
            b'{"inputs":{"INPUT0":[%b],"INPUT1":[%b]}}' % (INT_NAN, INT_NAN),
            400,
            "is not of expected type: int32",
        ),
    ),
    at(
        "/grps/v1/infer/predict?model=add_sub-1",
        Attack(
            "grps",
            "nan-for-int",
            gtensor(INT_NAN, b"[1,16]", b"DT_INT32", b"flat_int32"),
            500,
            "gtensors.tensors[0].flat_int32",
        ),
    ),
    *each(
        "nothing-of-use",
        (b"{}", 400, "attempt to access non-existing object member 'inputs'"),
        (b"{}", 400, "Missing 'inputs' or 'instances' key"),
        (b"{}", 500, "No legal field in json."),
    ),
    *each(
        "null",
        (b'{"inputs":null}', 400, "Unable to parse 'inputs': attempt to access JSON non-array as array"),
        (b'{"instances":null}', 400, "Expecting 'instances' to be an list/array"),
        (b'{"ndarray":null}', 500, "No legal field in json."),
    ),
    *each(
        "objects-for-numbers",
        (v2(b"[{}]"), 400, "attempt to access JSON non-number as double"),
        (b'{"inputs":[{}]}', 400, "Type: Object is not of expected type: float"),
        (b'{"ndarray":[{}]}', 500, "is not a number or array"),
    ),
    *each(
        "too-many-rows",
        (v2(b"[%b]" % b",".join([b"1"] * 64), b"[1,8,8]", b"image"), 400, "unexpected inference input 'image'"),
        (b'{"signature_name":"nobody","instances":[1]}', 400, 'Serving signature name: "nobody" not found'),
        (b'{"str_data":"x"}', 500, "takes no str_data"),
    ),
]

# ----------------------------------------------------------------------------------------- addresses, methods, headers

NAMES = {
    "nobody": "nobody",
    "dots": "%2e%2e%2f%2e%2e%2fetc%2fpasswd",
    "nul": "%00",
    "not-utf-8": "%ff%fe",
    "newline": "a%0d%0ab",
    "quote": "%22%7b%7d%22",
    "script": "%3Cscript%3E",
    "long": "n" * 4000,
}
DIGITS_20 = "99999999999999999999"
FINE = b'{"instances":[1.0],"ndarray":[1.0],"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1.0]}]}'
FINE_TFS = b'{"instances":[1.0]}'

ADDRESSES = [
    *(
        at(target.format(name), Attack(dialect, f"model-{key}", body, status, "not found" + dot))
        for key, name in NAMES.items()
        for dialect, target, body, status, dot in (
            ("open_inference", "/v2/models/{}/infer", FINE, 404, ""),
            ("tf_serving", "/v1/models/{}:predict", FINE_TFS, 404, " for request: Latest("),
            ("grps", "/grps/v1/infer/predict?model={}", FINE, 500, "."),
        )
    ),
    at(
        "/v2/models/half_plus_two/versions/9/infer",
        Attack("open_inference", "version", FINE, 404, "'half_plus_two' version 9 is not found"),
    ),
    at(
        "/v1/models/half_plus_two/versions/9:predict",
        Attack("tf_serving", "version", FINE_TFS, 404, "Specific(half_plus_two, 9)"),
    ),
    at(
        "/grps/v1/infer/predict?model=half_plus_two-9",
        Attack("grps", "version", FINE, 500, "Model half_plus_two-9 not found."),
    ),
    at(
        f"/v2/models/half_plus_two/versions/{DIGITS_20}/infer",
        Attack("open_inference", "version-20-digits", FINE, 400, "failed to get model version"),
    ),
    at(
        f"/grps/v1/infer/predict?model=half_plus_two-{DIGITS_20}",
        Attack("grps", "version-20-digits", FINE, 500, "not found."),
    ),
    at(
        f"/v2/models/half_plus_two/versions/{'9' * 5000}/infer",
        Attack("open_inference", "version-5000-digits", FINE, 400, "failed to get model version"),
    ),
    at(
        "/v1/models/half_plus_two/labels/nobody:predict",
        Attack("tf_serving", "label", FINE_TFS, 400, "Unrecognized servable version label: nobody"),
    ),
    at("/v2/nothing", Attack("open_inference", "path", b"", 404, "Not Found")),
    at("/v1/nothing", Attack("tf_serving", "path", b"", 400, "Malformed request: POST /v1/nothing")),
    at("/grps/v1/nothing", Attack("grps", "path", b"", 404, "Not Found")),
    *(
        Attack(dialect, f"method-{method}", b"", status, text, method=method)
        for dialect, methods, status, text in (
            ("open_inference", ("GET", "PUT", "DELETE", "OPTIONS"), 405, "Method Not Allowed"),
            ("tf_serving", ("GET", "PUT", "DELETE", "PATCH"), 400, "Malformed request: "),
            ("grps", ("GET", "PUT", "DELETE", "OPTIONS"), 405, "Method Not Allowed"),
        )
        for method in methods
    ),
    *(
        Attack("open_inference", f"header-length-{text}", FINE, 400, words, headers={HEADER: text})
        for HEADER in ("Inference-Header-Content-Length",)
        for text, words in (
            ("-1", "should be in range"),
            ("9" * 30, "should be in range"),
            ("9" * 6, "should be in range"),
            ("x", "Unable to parse"),
            ("1e3", "Unable to parse"),
            ("5", "failed to parse the request JSON buffer"),
        )
    ),
    *(
        Attack(dialect, f"timeout-{text}", FINE, status, "x-request-timeout-ms", headers=JSON | {TIMEOUT: text})
        for TIMEOUT in ("x-request-timeout-ms",)
        for dialect, status in (("open_inference", 400), ("tf_serving", 400), ("grps", 500))
        for text in ("-1", "1e9", "9" * 40)
    ),
    Attack("grps", "no-content-type", FINE, 400, "No content type in headers.", headers={}),
    Attack("grps", "form", FINE, 400, "Unsupported content type.", headers={"Content-Type": "text/plain"}),
]

# ----------------------------------------------------------------------------------------------------- what costs time


def members(count: int) -> bytes:
    return b",".join(b'"k%d":%d' % (n, n) for n in range(count))


def many_inputs() -> bytes:
    inputs = (b'{"name":"%d","datatype":"FP32","shape":[1],"data":[1]}' % n for n in range(100_000))
    return b'{"inputs":[' + b",".join(inputs) + b"]}"


def many_tensors() -> bytes:
    tensor = b'{"dtype":"DT_FLOAT32","shape":[1],"flat_float32":[1]}'
    return b'{"gtensors":{"tensors":[' + b",".join([tensor] * 100_000) + b"]}}"


NUMBERS = b"1," * 300_000
GZIPPED = {**JSON, "Content-Encoding": "gzip"}


@cache
def bomb() -> bytes:
    """256 MB of zeros in 256 KB."""
    press = zlib.compressobj(wbits=31)
    return b"".join(press.compress(bytes(1 << 20)) for _ in range(256)) + press.flush()


EXPENSIVE = [
    Attack("open_inference", "100000-inputs", many_inputs, 400, "Unable to parse 'inputs': more than 4096 elements"),
    Attack(
        "tf_serving", "200000-names", lambda: b'{"inputs":{' + members(200_000) + b"}}", 400, "Missing named input: x"
    ),
    Attack(
        "tf_serving",
        "200000-names-in-a-row",
        lambda: b'{"instances":[{' + members(200_000) + b"}]}",
        400,
        "does not have named input: k0",
    ),
    Attack(
        "tf_serving",
        "200000-rows-and-a-map",
        lambda: b'{"instances":[' + b"1," * 200_000 + b"{}]}",
        400,
        "Expecting value/list but got object at item 200000 of input list",
    ),
    Attack(
        "tf_serving",
        "100000-maps-and-a-value",
        lambda: b'{"instances":[' + b'{"x":1},' * 100_000 + b"1]}",
        400,
        "Expecting object but got list at item 100000 of input list",
    ),
    Attack("grps", "100000-tensors", many_tensors, 500, "more than 4096 elements"),
    Attack(
        "grps",
        "200000-entries",
        lambda: b'{"gmap":{"s_d":{' + members(200_000) + b"}}}",
        500,
        "Model half_plus_two takes no gmap.",
    ),
    Attack(
        "open_inference",
        "200000-outputs",
        lambda: FINE[:-1] + b',"outputs":[' + b",".join([b'{"name":"z"}'] * 200_000) + b"]}",
        400,
        "Unable to parse 'outputs': more than 4096 elements",
    ),
    Attack(
        "open_inference",
        "300000-lists-of-one",
        lambda: v2(b"[" + b",".join([b"[1]"] * 300_000) + b"]", b"[299999]"),
        400,
        "Shape does not match",
    ),
    Attack(
        "tf_serving",
        "300000-lists-and-a-value",
        lambda: b'{"inputs":[' + b"[1]," * 300_000 + b"1]}",
        400,
        "found at incorrect level",
    ),
    Attack(
        "grps",
        "300000-lists-and-a-value",
        lambda: b'{"ndarray":[' + b"[1]," * 300_000 + b"1]}",
        500,
        "some array size not match",
    ),
    *each(
        "300000-numbers-and-a-string",
        (lambda: v2(b'[%b"a"]' % NUMBERS, b"[300001]"), 400, "non-number as double"),
        (lambda: b'{"instances":[%b"a"]}' % NUMBERS, 400, "is not of expected type: float"),
        (lambda: b'{"ndarray":[%b"a"]}' % NUMBERS, 500, "is not a number or array"),
    ),
    Attack("open_inference", "inflates-to-256-mb", bomb, 400, "exceeds the maximum allowed value", headers=GZIPPED),
    Attack("tf_serving", "inflates-to-256-mb", bomb, 413, "larger than 8388608 bytes", headers=GZIPPED),
]


@pytest.mark.parametrize("attack", [*NO_JSON, *MISFITS, *ADDRESSES, *EXPENSIVE], ids=str)
def test_refused(gateway: Gateway, attack: Attack) -> None:
    body = attack.body if isinstance(attack.body, bytes) else attack.body()
    used = gateway.cpu_s()
    answer = gateway.request(attack.method, attack.target or TARGETS[attack.dialect], body, attack.headers)
    assert gateway.cpu_s() - used < WITHIN_S
    check_refusal(attack.dialect, answer, attack.status, attack.text)


def test_a_body_that_takes_long_holds_up_nobody_else(gateway: Gateway, bystanders: Bystanders) -> None:
    """Seconds of work within the limit of size: the sender waits for it, the bystanders do not."""
    rounds = bystanders.rounds
    answer = gateway.post(PREDICT, b'{"instances":[' + b"1," * 3_500_000 + b'"a"]}')
    assert bystanders.rounds > rounds + 2
    check_refusal("tf_serving", answer, 400, "is not of expected type: float")


def test_tf_serving_leaves_some_refusals_empty(gateway: Gateway) -> None:
    """Quirks of the original: no body for a version beyond int64 and on OPTIONS."""
    answer = gateway.request("POST", f"/v1/models/half_plus_two/versions/{DIGITS_20}:predict", FINE_TFS)
    assert (answer.status, answer.body) == (400, b"")
    answer = gateway.request("OPTIONS", PREDICT)
    assert (answer.status, answer.body) == (400, b"")


# -------------------------------------------------------------------------------------- odd, and nevertheless answered

HALF = [{"name": "y", "datatype": "FP32", "shape": [1], "data": [2.5]}]
ODD = [
    ("open_inference", "duplicate-inputs", FINE[:-1] + b',"inputs":[]}', ("outputs",), HALF),
    ("open_inference", "duplicate-data", FINE.replace(b'"shape"', b'"name":"z","shape"'), ("outputs",), HALF),
    ("open_inference", "200000-keys", lambda: b"{" + members(200_000) + b"," + FINE[1:], ("outputs",), HALF),
    (
        "open_inference",
        "200000-keys-of-an-input",
        lambda: FINE[:-3] + b"," + members(200_000) + b"}]}",
        ("outputs",),
        HALF,
    ),
    (
        "open_inference",
        "200000-parameters",
        lambda: FINE[:-1] + b',"parameters":{' + members(200_000) + b"}}",
        ("outputs",),
        HALF,
    ),
    ("tf_serving", "duplicate-instances", FINE_TFS[:-1] + b',"instances":["x"]}', ("predictions",), [2.5]),
    ("tf_serving", "trailing-text", FINE_TFS + b"]]] and more", ("predictions",), [2.5]),
    ("tf_serving", "byte-order-mark", b"\xef\xbb\xbf" + FINE_TFS, ("predictions",), [2.5]),
    ("tf_serving", "200000-keys", lambda: b"{" + members(200_000) + b"," + FINE_TFS[1:], ("predictions",), [2.5]),
    (
        "tf_serving",
        "200000-ignored-inputs",
        lambda: b'{"inputs":{' + members(200_000) + b',"x":[1]}}',
        ("outputs",),
        [2.5],
    ),
    (
        "tf_serving",
        "900-ignored-levels",
        b'{"z":' + b"[" * 900 + b"]" * 900 + b"," + FINE_TFS[1:],
        ("predictions",),
        [2.5],
    ),
    ("grps", "duplicate-ndarray", b'{"ndarray":["x"],"ndarray":[1.0]}', ("status", "code"), 200),
    ("grps", "200000-keys", lambda: b"{" + members(200_000) + b',"ndarray":[1.0]}', ("status", "code"), 200),
    (
        "grps",
        "200000-keys-of-a-tensor",
        lambda: gtensor(b"[1]")[:-4] + b"," + members(200_000) + b"}]}}",
        ("status", "code"),
        200,
    ),
]


@pytest.mark.parametrize(
    ("dialect", "body", "way", "want"), [(d, *rest) for d, _, *rest in ODD], ids=[f"{d}-{n}" for d, n, *_ in ODD]
)
def test_answered(gateway: Gateway, dialect: str, body: Body, way: tuple[str, ...], want: Any) -> None:
    content = body if isinstance(body, bytes) else body()
    used = gateway.cpu_s()
    answer = gateway.post(TARGETS[dialect], content)
    assert gateway.cpu_s() - used < WITHIN_S
    assert answer.status == 200, answer.body[:300]
    found = answer.json
    for step in way:
        found = found[step]
    assert found == want


# -------------------------------------------------------------------------------------------------------- large bodies

TOO_LARGE = [
    ("open_inference", 400, f"exceeds the maximum allowed value of {LIMIT_BYTES} bytes"),
    ("tf_serving", 413, f"larger than {LIMIT_BYTES} bytes"),
    ("grps", 413, f"exceeds {LIMIT_BYTES} bytes"),
]
CHUNK = b"1," * (1 << 18)
CHUNKS = 40  # 20 MB


@pytest.mark.parametrize("chunked", [False, True], ids=["announced", "chunked"])
@pytest.mark.parametrize(("dialect", "status", "text"), TOO_LARGE, ids=[row[0] for row in TOO_LARGE])
def test_a_large_body_is_refused(gateway: Gateway, dialect: str, status: int, text: str, chunked: bool) -> None:
    """Sent to its end, or until the server closes: either way the refusal can be read."""
    with closing_connection(gateway) as sock:
        head = f"POST {TARGETS[dialect]} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
        length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {CHUNKS * len(CHUNK)}"
        sock.sendall(f"{head}{length}\r\n\r\n".encode())
        used = gateway.cpu_s()
        answer = read_while_sending(sock, b"%x\r\n%b\r\n" % (len(CHUNK), CHUNK) if chunked else CHUNK)
        assert gateway.cpu_s() - used < WITHIN_S
    check_refusal(dialect, answer, status, text)


def read_while_sending(sock: socket.socket, chunk: bytes) -> Answer:
    """Send the chunk many times over as a client that reads only afterwards, then the answer."""
    try:
        for _ in range(CHUNKS):
            sock.sendall(chunk)
        sock.sendall(b"0\r\n\r\n")
    except (BrokenPipeError, ConnectionResetError):
        pass
    return read_answer(sock)


@pytest.mark.parametrize(("dialect", "status", "text"), TOO_LARGE, ids=[row[0] for row in TOO_LARGE])
def test_a_large_body_is_refused_before_it_is_sent(gateway: Gateway, dialect: str, status: int, text: str) -> None:
    """With Expect: 100-continue the caller need not send it at all."""
    with closing_connection(gateway) as sock:
        sock.sendall(
            f"POST {TARGETS[dialect]} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
            f"Expect: 100-continue\r\nContent-Length: {200 << 20}\r\n\r\n".encode()
        )
        check_refusal(dialect, read_answer(sock), status, text)


# ----------------------------------------------------------------------------------------------------- bad connections


@pytest.mark.parametrize("dialect", TARGETS)
def test_a_slow_sender_is_answered_in_the_end(gateway: Gateway, bystanders: Bystanders, dialect: str) -> None:
    """One byte at a time, while the others go on."""
    body = {"open_inference": FINE, "tf_serving": FINE_TFS, "grps": FINE}[dialect]
    rounds = bystanders.rounds
    with closing_connection(gateway) as sock:
        head = f"POST {TARGETS[dialect]} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
        sock.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode())
        for byte in body:
            sock.sendall(bytes([byte]))
            bystanders.pause()
        assert read_answer(sock).status == 200
    assert bystanders.rounds > rounds


@pytest.mark.parametrize("dialect", TARGETS)
def test_clients_that_leave_cost_nobody_anything(gateway: Gateway, dialect: str) -> None:
    """In the middle of the head, of the body, and right after the whole request."""
    head = f"POST {TARGETS[dialect]} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(FINE)}\r\n\r\n".encode() + FINE
    for end in (10, len(head), len(request) - 20, len(request)) * 20:
        with closing_connection(gateway) as sock:
            sock.sendall(request[:end])
    wait_until(lambda: not gateway.metrics().total("tensorgate_queued_requests"))


NO_HTTP = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET / HTTP/9.9\r\n\r\n",
    b"POST /v2 HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    b"POST /v2 HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    b"POST /v2 HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /v2/models/upper/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST /v2 HTTP/1.1\r\nHost: x\r\nx: " + b"a" * 100_000 + b"\r\n\r\n",
    b"GET /v2 HTTP/1.1\r\n" + b"a: b\r\n" * 50_000 + b"\r\n",
    b"GET /v2/models/" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
    b"GET /v2\0 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /v2 HTTP/1.1\r\nHost: x\r\na\0b: c\r\n\r\n",
]


@pytest.mark.parametrize("garbage", NO_HTTP, ids=lambda garbage: repr(garbage[:40]))
def test_what_is_no_http_is_refused(gateway: Gateway, garbage: bytes) -> None:
    """Refused with a 4xx or as an unknown method, or the connection is closed; never with a look inside the server."""
    with closing_connection(gateway) as sock:
        answer = b""
        try:
            sock.sendall(garbage)
            sock.shutdown(socket.SHUT_WR)
            while chunk := sock.recv(1 << 16):
                answer += chunk
        except (BrokenPipeError, ConnectionResetError):
            pass
    assert not answer or answer[9:10] == b"4" or answer[9:12] == b"501", answer[:200]
    assert not [secret for secret in SECRETS if secret in answer]
