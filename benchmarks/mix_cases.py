"""What `benchmarks.mix` sends: small requests, and large ones of every dialect and form."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import pybase64

from benchmarks.grpc_wires import INFER, PREDICT, infer_request, predict_request
from benchmarks.wires import GRPS, TF_SERVING, V2, grps_ndarray_request
from tensorgate.adapters.protobuf.messages import message

REGRESS = "/tensorflow.serving.PredictionService/Regress"
IMAGE = 150_528
"""An image of 3 x 224 x 224."""
_EXAMPLES = message("tensorflow.serving.RegressionRequest")
_TEXTS = message("inference.ModelInferRequest")
_JSON = "Content-Type: application/json\r\n"


@dataclass(frozen=True, slots=True)
class Ask:
    """A request: an HTTP target with the header lines that it needs, or a gRPC method; `answer` is the status that it
    must get.
    """

    target: str
    body: Callable[[], bytes]
    transport: Literal["http", "grpc"] = "http"
    headers: str = _JSON
    answer: str = "200"

    def message(self) -> bytes:
        """All that has to be sent: a whole HTTP request, or a message."""
        body = self.body()
        if self.transport == "grpc":
            return body
        head = f"POST {self.target} HTTP/1.1\r\nHost: a\r\n{self.headers}Content-Length: {len(body)}\r\n\r\n"
        return head.encode() + body


def _grpc(method: str, body: Callable[[], bytes], answer: str = "OK") -> Ask:
    return Ask(method, body, "grpc", "", answer)


def _row(size: int) -> Any:
    return np.random.default_rng(1).standard_normal((1, size), np.float32)


def _binary(size: int, *, json_out: bool = False, classes: int = 0) -> Ask:
    """V2 with raw bytes behind the JSON; so is the answer, but for `json_out` or `classes`."""
    tensor = {"name": "x", "shape": [1, size], "datatype": "FP32", "parameters": {"binary_data_size": size * 4}}
    document: dict[str, Any] = {"inputs": [tensor]}
    if classes:
        document["outputs"] = [{"name": "y", "parameters": {"classification": classes}}]
    elif not json_out:
        document["parameters"] = {"binary_data_output": True}
    head = json.dumps(document).encode()
    headers = f"Inference-Header-Content-Length: {len(head)}\r\n"
    return Ask(V2.path, lambda: head + _row(size).tobytes(), headers=headers)


def _strings(count: int) -> list[str]:
    return [f"a short text, the {number}th" for number in range(count)]


def _v2_strings(count: int) -> bytes:
    tensor = {"name": "x", "shape": [count], "datatype": "BYTES", "data": _strings(count)}
    return json.dumps({"inputs": [tensor]}).encode()


def _grpc_strings(count: int) -> bytes:
    texts = b"".join(len(text).to_bytes(4, "little") + text.encode() for text in _strings(count))
    tensor = {"name": "x", "shape": [count], "datatype": "BYTES"}
    request = _TEXTS(model_name="texts", inputs=[tensor], raw_input_contents=[texts])
    serialized: bytes = request.SerializeToString()
    return serialized


def _tfs_strings(count: int) -> bytes:
    return json.dumps({"instances": _strings(count)}).encode()


def _tfs_base64(count: int, size: int) -> bytes:
    value = {"b64": pybase64.b64encode_as_string(bytes(range(256)) * (size // 256))}
    return json.dumps({"instances": [value] * count}).encode()


def _tfs_image() -> bytes:
    return json.dumps({"instances": _row(IMAGE).reshape(1, 224, 224, 3).tolist()}).encode()


def _examples(count: int) -> bytes:
    example = message("tensorflow.Example")()
    example.features.feature["f"].float_list.value.extend(range(8))
    request = _EXAMPLES(model_spec={"name": "rows"})
    request.input.example_list.examples.extend([example] * count)
    serialized: bytes = request.SerializeToString()
    return serialized


def _two_inputs(size: int) -> bytes:
    """A large input, and a small one behind it."""
    document = json.loads(V2.request(_row(size)))
    document["id"] = "42"
    document["inputs"].append({"name": "z", "shape": [1, 1], "datatype": "FP32", "data": [1]})
    return json.dumps(document).encode()


def _wrong_at_the_end(size: int) -> bytes:
    """So many bytes of good JSON, and then none."""
    head, tail = b'{"inputs":[{"name":"x","shape":[1,1],"datatype":"FP32","data":[', b"1]}],}"
    return head + b"0.123456789012345," * ((size - len(head) - len(tail)) // 18) + tail


def _objects(size: int) -> bytes:
    """Nothing that is asked for: many small objects under a name that no request has."""
    return b'{"other":[' + b'{"a":1,"b":[2]},' * (size // 16) + b'0],"inputs":[]}'


def _deep(size: int) -> bytes:
    return b"[" * (size // 2) + b"]" * (size // 2)


SMALL = {
    "v2": Ask(V2.path, partial(V2.request, _row(16))),
    "tf_serving": Ask(TF_SERVING.path, partial(TF_SERVING.request, _row(16))),
    "grps": Ask(GRPS.path, partial(GRPS.request, _row(16))),
    "grpc": _grpc(INFER, partial(infer_request, _row(16))),
}

_NDARRAY = GRPS.path + "&return-ndarray=true"
_TEXTS_TARGET = "/v2/models/texts/infer"

LARGE = {
    # requests and answers of 3 MB of digits
    "v2 json": Ask(V2.path, partial(V2.request, _row(IMAGE))),
    "tf_serving json": Ask(TF_SERVING.path, partial(TF_SERVING.request, _row(IMAGE))),
    "grps gtensors": Ask(GRPS.path, partial(GRPS.request, _row(IMAGE))),
    "grps ndarray": Ask(_NDARRAY, partial(grps_ndarray_request, _row(IMAGE))),
    "v2 json 20 MB": Ask(V2.path, partial(V2.request, _row(IMAGE * 7))),
    # one way only
    "v2 json out": _binary(IMAGE, json_out=True),
    "v2 two inputs": Ask("/v2/models/pairs/infer", partial(_two_inputs, IMAGE)),
    "tf_serving nhwc": Ask(TF_SERVING.path, _tfs_image, answer="400"),
    "v2 classes": _binary(IMAGE, classes=IMAGE),
    # bytes
    "v2 binary 600 KB": _binary(IMAGE),
    "v2 binary 6 MB": _binary(IMAGE * 10),
    "v2 binary 64 MB": _binary(16 << 20),
    "tf_serving b64": Ask("/v1/models/texts:predict", partial(_tfs_base64, 4, 600_000)),
    # gRPC
    "grpc raw 600 KB": _grpc(INFER, partial(infer_request, _row(IMAGE))),
    "grpc raw 6 MB": _grpc(INFER, partial(infer_request, _row(IMAGE * 10))),
    "grpc raw 64 MB": _grpc(INFER, partial(infer_request, _row(16 << 20))),
    "grpc float_val": _grpc(PREDICT, partial(predict_request, _row(IMAGE * 5), content=False)),
    "grpc examples": _grpc(REGRESS, partial(_examples, 90_000)),
    "grpc texts": _grpc(INFER, partial(_grpc_strings, 100_000)),
    # strings
    "v2 texts": Ask(_TEXTS_TARGET, partial(_v2_strings, 100_000)),
    "tf_serving texts": Ask("/v1/models/texts:predict", partial(_tfs_strings, 100_000)),
    # what is sent to do harm
    "64 MB refused": Ask(V2.path, partial(_wrong_at_the_end, 64_000_000), answer="400"),
    "20 MB of objects": Ask(V2.path, partial(_objects, 20_000_000), answer="400"),
    "10 MB deep": Ask(V2.path, partial(_deep, 10_000_000), answer="400"),
    "10 MB deep tfs": Ask(TF_SERVING.path, partial(_deep, 10_000_000), answer="400"),
    "10 MB deep grps": Ask(GRPS.path, partial(_deep, 10_000_000), answer="500"),
}
