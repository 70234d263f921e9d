"""What the clients of soak.py send, and what must come back: every request carries random markers."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import grpc
import numpy as np
import orjson
from serving import DEMO

from tensorgate.adapters.protobuf.messages import message

DIGITS = (0, 2, 3, 5, 7, 9)
IMAGES = {digit: json.loads((DEMO.parent / f"demo/images/{digit}.json").read_bytes()) for digit in DIGITS}
WORDS = ["abc", "ß", "é", "漢", "🙂", "tensor"]


@dataclass(frozen=True, slots=True)
class Case:
    """One request, and whether an answer to it is right. `status` is what it must be answered with."""

    dialect: str
    target: str
    body: bytes
    right: Callable[[Any], bool]
    status: int = 200


Make = Callable[[], Case]


# ------------------------------------------------------------------------------------------------------------ dialects


def open_inference(model: str, tensors: dict[str, tuple[str, Any]], outputs: dict[str, Any]) -> Case:
    """`tensors`: name -> (datatype, nested list); `outputs`: name -> the flat list that must come back."""
    mark = f"{random.getrandbits(64):x}"
    inputs = [
        {"name": name, "datatype": datatype, "shape": shape_of(data), "data": data}
        for name, (datatype, data) in tensors.items()
    ]

    def right(answer: Any) -> bool:
        return answer["id"] == mark and {each["name"]: each["data"] for each in answer["outputs"]} == outputs

    return Case("open_inference", f"/v2/models/{model}/infer", orjson.dumps({"id": mark, "inputs": inputs}), right)


def tf_serving(model: str, body: Any, answer: Any) -> Case:
    return Case("tf_serving", f"/v1/models/{model}:predict", orjson.dumps(body), lambda got: bool(got == answer))


def grps(model: str, body: Any, right: Callable[[Any], bool], query: str = "") -> Case:
    body = {"model": f"{model}-1", **body}
    return Case("grps", f"/grps/v1/infer/predict{query}", orjson.dumps(body), right)


def grps_tensor(model: str, dtype: str, flat_field: str, rows: Any, answer: list[Any]) -> Case:
    tensor = {"dtype": dtype, "shape": shape_of(rows), flat_field: flat(rows)}
    return grps(
        model,
        {"gtensors": {"tensors": [tensor]}},
        lambda got: bool(got["gtensors"]["tensors"][0][flat_field] == answer),
    )


def shape_of(value: Any) -> list[int]:
    return [len(value), *shape_of(value[0])] if isinstance(value, list) else []


def flat(value: Any) -> list[Any]:
    return list(chain.from_iterable(map(flat, value))) if isinstance(value, list) else [value]


# --------------------------------------------------------------------------------------------------------------- cases


def halves() -> tuple[list[float], list[float]]:
    """Numbers that float32 holds exactly, and what half_plus_two makes of them."""
    x = [float(random.randrange(1 << 20)) for _ in range(random.randint(1, 8))]
    return x, [value / 2 + 2 for value in x]


def rows() -> list[list[float]]:
    return [[random.gauss(0, 1) for _ in range(4)] for _ in range(random.randint(1, 3))]


def words() -> tuple[list[str], list[str]]:
    text = [f"{random.choice(WORDS)}{random.getrandbits(32):x}" for _ in range(random.randint(1, 4))]
    return text, [word.upper() for word in text]


def images() -> tuple[list[Any], list[int]]:
    shown = random.choices(DIGITS, k=random.randint(1, 3))
    return [IMAGES[digit] for digit in shown], shown


def best(scores: list[list[float]]) -> list[int]:
    return [row.index(max(row)) for row in scores]


def half_open_inference() -> Case:
    x, y = halves()
    return open_inference("half_plus_two", {"x": ("FP32", x)}, {"y": y})


def half_tf_serving() -> Case:
    x, y = halves()
    return tf_serving("half_plus_two", {"instances": x}, {"predictions": y})


def half_grps() -> Case:
    x, y = halves()
    return grps("half_plus_two", {"ndarray": x}, lambda got: bool(got["ndarray"] == y), "?return-ndarray=true")


def echo_open_inference() -> Case:
    x = rows()
    return open_inference("echo", {"x": ("FP64", x)}, {"y": flat(x)})


def echo_tf_serving() -> Case:
    x = rows()
    return tf_serving("echo", {"inputs": {"x": x}}, {"outputs": x})


def echo_grps() -> Case:
    x = rows()
    return grps_tensor("echo", "DT_FLOAT64", "flat_float64", x, flat(x))


def upper_open_inference() -> Case:
    text, shout = words()
    return open_inference("upper", {"text": ("BYTES", text)}, {"shout": shout})


def upper_tf_serving() -> Case:
    text, shout = words()
    return tf_serving("upper", {"instances": text}, {"predictions": shout})


def upper_grps() -> Case:
    text, shout = words()
    return grps("upper", {"str_data": text[0]}, lambda got: bool(got["str_data"] == shout[0]))


def digits_open_inference() -> Case:
    pixels, shown = images()
    body = {"inputs": [{"name": "image", "datatype": "FP32", "shape": [len(pixels), 8, 8], "data": pixels}]}

    def right(answer: Any) -> bool:
        scores = answer["outputs"][0]["data"]
        return best([scores[n : n + 10] for n in range(0, len(scores), 10)]) == shown

    return Case("open_inference", "/v2/models/digits/infer", orjson.dumps(body), right)


def digits_tf_serving() -> Case:
    pixels, shown = images()
    body = orjson.dumps({"instances": pixels})
    return Case("tf_serving", "/v1/models/digits:predict", body, lambda got: best(got["predictions"]) == shown)


def digits_grps() -> Case:
    pixels, shown = images()
    return grps("digits", {"ndarray": pixels}, lambda got: best(got["ndarray"]) == shown, "?return-ndarray=true")


def sum_open_inference() -> Case:
    a, b = ([[random.randrange(-(1 << 30), 1 << 30) for _ in range(16)]] for _ in range(2))
    total = [x + y for x, y in zip(a[0], b[0], strict=True)]
    difference = [x - y for x, y in zip(a[0], b[0], strict=True)]
    inputs = {"INPUT0": ("INT32", a), "INPUT1": ("INT32", b)}
    return open_inference("add_sub", inputs, {"OUTPUT0": total, "OUTPUT1": difference})


GOOD: tuple[Make, ...] = (
    *(half_open_inference, half_tf_serving, half_grps),
    *(echo_open_inference, echo_tf_serving, echo_grps),
    *(upper_open_inference, upper_tf_serving, upper_grps),
    *(digits_open_inference, digits_tf_serving, digits_grps),
    sum_open_inference,
)


def nonsense() -> Case:
    """What its dialect refuses, by the status of its contract."""
    dialect, target, body, status = random.choice(
        (
            ("open_inference", "/v2/models/half_plus_two/infer", b'{"inputs": [', 400),
            ("open_inference", f"/v2/models/m{random.getrandbits(64):x}/infer", b"{}", 404),
            ("tf_serving", "/v1/models/half_plus_two:predict", b'{"instances": ["x"]}', 400),
            ("tf_serving", f"/v1/models/m{random.getrandbits(64):x}:predict", b"{}", 404),
            ("grps", "/grps/v1/infer/predict?model=half_plus_two-1", b'{"ndarray": [[1], [2, 3]]}', 500),
            ("grps", f"/grps/v1/infer/predict?model=m{random.getrandbits(64):x}-1", b'{"ndarray": [1]}', 500),
        )
    )
    return Case(dialect, target, body, lambda got: "error" in got or got["status"]["status"] == "FAILURE", status)


# --------------------------------------------------------------------------------------------------- cases over gRPC

PREDICT = "/tensorflow.serving.PredictionService/Predict"
FLOAT, DOUBLE, STRING = 1, 2, 7
"""DataType"""


def by_grpc(model: str, dtype: int, shape: list[int], values: dict[str, Any], right: Callable[[Any], bool]) -> Case:
    """`values`: the field of the only input's tensor -> its values."""
    request = message("tensorflow.serving.PredictRequest")()
    request.model_spec.name = model
    name = "text" if model == "upper" else "x"
    tensor = {"dtype": dtype, "tensor_shape": {"dim": [{"size": size} for size in shape]}, **values}
    request.inputs[name].CopyFrom(message("tensorflow.TensorProto")(**tensor))
    return Case("tf_serving", PREDICT, request.SerializeToString(), lambda got: right(got.outputs))


def half_grpc() -> Case:
    x, y = halves()
    return by_grpc("half_plus_two", FLOAT, [len(x)], {"float_val": x}, lambda outputs: [*outputs["y"].float_val] == y)


def echo_grpc() -> Case:
    x = np.array(rows())
    return by_grpc(
        "echo",
        DOUBLE,
        [*x.shape],
        {"tensor_content": x.tobytes()},
        lambda outputs: [*outputs["y"].double_val] == x.ravel().tolist(),
    )


def upper_grpc() -> Case:
    text, shout = ([word.encode() for word in half] for half in words())
    return by_grpc(
        "upper", STRING, [len(text)], {"string_val": text}, lambda outputs: [*outputs["shout"].string_val] == shout
    )


GOOD_GRPC: tuple[Make, ...] = (half_grpc, echo_grpc, upper_grpc)


def nonsense_grpc() -> Case:
    """What is refused, by the code of its contract; `right` gets the details."""
    model = f"m{random.getrandbits(64):x}"
    body, code, text = random.choice(
        (
            (b"\xff", grpc.StatusCode.INVALID_ARGUMENT, "failed to parse"),
            (b"\x0a\x00", grpc.StatusCode.INVALID_ARGUMENT, "ModelSpec has no name specified."),
            (b"\x0a%c\x0a%c%s" % (len(model) + 2, len(model), model.encode()), grpc.StatusCode.NOT_FOUND, model),
        )
    )
    return Case("tf_serving", PREDICT, body, lambda details: text in details, code.value[0])
