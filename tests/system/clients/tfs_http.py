"""TensorFlow Serving's REST API as its users call it: with ovmsclient, a library, and with requests, as its
documentation does with curl.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Callable
from typing import Any

import checks
import numpy as np
import ovmsclient
import requests
from ovmsclient.tfs_compat.base.errors import InvalidInputError, ModelNotFoundError

FORM = "application/x-www-form-urlencoded"
"""What curl -d says of its data unless told otherwise."""


def get(address: str, path: str) -> Any:
    answer = requests.get(f"http://{address}/v1/models/{path}", timeout=10)
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"] == "application/json"
    return answer.json()


def post(address: str, path: str, body: str, **headers: str) -> requests.Response:
    return requests.post(
        f"http://{address}/v1/models/{path}", body, headers={"Content-Type": FORM} | headers, timeout=10
    )


def predict(address: str, path: str, body: Any) -> Any:
    answer = post(address, f"{path}:predict", json.dumps(body))
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"] == "application/json"
    return answer.json()


def refusal(address: str, path: str, body: str) -> tuple[int, str]:
    answer = post(address, path, body)
    assert answer.headers["Content-Type"] == "application/json"
    (error,) = answer.json().values()
    return answer.status_code, error


# -------------------------------------------------------------------------------------------- as documented, with curl


def check_half_plus_two(address: str) -> None:
    answer = post(address, "half_plus_two:predict", '{"instances": [1.0, 2.0, 5.0]}')
    assert answer.json() == {"predictions": [2.5, 3.0, 4.5]}


def check_half_plus_three(address: str) -> None:
    answer = post(address, "half_plus_three:predict", '{"instances": [1.0,2.0,5.0]}')
    assert answer.json() == {"predictions": [3.5, 4.0, 5.5]}


def check_columns_keep_their_shape(address: str) -> None:
    for value, expected in ((5.0, 4.5), ([1.0, 2], [2.5, 3.0]), ([[1.0], [2.0]], [[2.5], [3.0]])):
        assert predict(address, "half_plus_two", {"inputs": value}) == {"outputs": expected}
        assert predict(address, "half_plus_two", {"inputs": {"x": value}}) == {"outputs": expected}


def check_status(address: str) -> None:
    def available(version: str) -> dict[str, Any]:
        return {"version": version, "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}

    assert get(address, "half_plus_three") == {"model_version_status": [available("123")]}
    assert get(address, "digits") == {"model_version_status": [available("2"), available("1")]}
    assert get(address, "digits/versions/1") == {"model_version_status": [available("1")]}


def check_metadata(address: str) -> None:
    about = get(address, "digits/labels/stable/metadata")
    assert about["model_spec"] == {"name": "digits", "version": "1", "signature_name": ""}
    signature = about["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert signature["method_name"] == "tensorflow/serving/predict"
    assert signature["inputs"]["image"]["dtype"] == "DT_FLOAT"
    assert [size["size"] for size in signature["inputs"]["image"]["tensor_shape"]["dim"]] == ["-1", "8", "8"]


def check_versions_labels_and_signatures(address: str) -> None:
    rows = {"signature_name": "serving_default", "instances": checks.images()}
    for path in ("digits", "digits/versions/1", "digits/versions/2", "digits/labels/stable", "digits/labels/canary"):
        scores = predict(address, path, rows)["predictions"]
        assert tuple(np.argmax(scores, axis=1)) == checks.SHOWN, path


def check_several_inputs_and_outputs(address: str) -> None:
    first, second = list(range(16)), [3] * 16
    total, difference = [a + 3 for a in first], [a - 3 for a in first]
    row = {"INPUT0": first, "INPUT1": second}
    assert predict(address, "add_sub", {"instances": [row, row]}) == {
        "predictions": [{"OUTPUT0": total, "OUTPUT1": difference}] * 2
    }
    assert predict(address, "add_sub", {"inputs": {name: [value] for name, value in row.items()}}) == {
        "outputs": {"OUTPUT0": [total], "OUTPUT1": [difference]}
    }


def check_text_and_base64(address: str) -> None:
    encoded = {"b64": base64.b64encode("naïve".encode()).decode()}
    assert predict(address, "upper", {"instances": ["straße", encoded]}) == {"predictions": ["STRASSE", "NAÏVE"]}
    assert predict(address, "upper", {"inputs": {"text": [encoded]}}) == {"outputs": ["NAÏVE"]}


def check_numbers_that_json_lacks(address: str) -> None:
    answer = post(address, "half_plus_two:predict", '{"instances": [NaN, Infinity, -Infinity]}')
    not_a_number, *infinite = answer.json()["predictions"]
    assert math.isnan(not_a_number)
    assert infinite == [math.inf, -math.inf]


def check_compressed_requests(address: str) -> None:
    body = gzip.compress(b'{"instances": [1.0, 2.0, 5.0]}')
    answer = requests.post(
        f"http://{address}/v1/models/half_plus_two:predict", body, headers={"Content-Encoding": "gzip"}, timeout=10
    )
    assert answer.json() == {"predictions": [2.5, 3.0, 4.5]}


def check_a_session_and_a_body_in_chunks(address: str) -> None:
    url = f"http://{address}/v1/models/half_plus_two:predict"
    with requests.Session() as session:
        for _ in range(20):
            answer = session.post(url, (part for part in (b'{"instances": [1.0', b", 2.0, 5.0]}")), timeout=10)
            assert answer.json() == {"predictions": [2.5, 3.0, 4.5]}


def check_refusals(address: str) -> None:
    good = '{"instances": [1.0]}'
    assert refusal(address, "absent:predict", good) == (404, "Servable not found for request: Latest(absent)")
    assert refusal(address, "half_plus_two/versions/7:predict", good) == (
        404,
        "Servable not found for request: Specific(half_plus_two, 7)",
    )
    assert refusal(address, "digits/labels/nightly:predict", good) == (
        400,
        "Unrecognized servable version label: nightly",
    )
    assert refusal(address, "half_plus_two:predict", "{}") == (400, "Missing 'inputs' or 'instances' key")
    assert refusal(address, "half_plus_two:forecast", good) == (
        400,
        "Malformed request: POST /v1/models/half_plus_two:forecast",
    )
    status, message = refusal(address, "half_plus_two:predict", '{"instances": [1.0, "two"]}')
    assert status == 400
    assert "is not of expected type: float" in message
    status, message = refusal(address, "half_plus_two:predict", '{"instances": [1.0')
    assert status == 400
    assert message.startswith("JSON Parse error: ")


# ---------------------------------------------------------------------------------------------------------- ovmsclient


def check_ovmsclient_predicts(address: str) -> None:
    client = ovmsclient.make_http_client(address)
    pictures = np.array(checks.images(), np.float32)
    assert tuple(client.predict({"image": pictures}, "digits", 2).argmax(axis=1)) == checks.SHOWN
    assert client.predict({"x": [1.0, 2.0, 5.0]}, "half_plus_two", 1).tolist() == [2.5, 3.0, 4.5]
    assert client.predict({"x": np.float32(5.0)}, "half_plus_two", 1).tolist() == [4.5]


def check_ovmsclient_names_several_outputs(address: str) -> None:
    client = ovmsclient.make_http_client(address)
    rows = np.arange(32, dtype=np.int32).reshape(2, 16)
    outputs = client.predict({"INPUT0": rows, "INPUT1": rows}, "add_sub", 1)
    assert outputs["OUTPUT0"].tolist() == (rows + rows).tolist()
    assert outputs["OUTPUT1"].tolist() == (rows - rows).tolist()


def check_ovmsclient_sends_text_and_bytes(address: str) -> None:
    client = ovmsclient.make_http_client(address)
    assert client.predict({"text": ["straße", ""]}, "upper", 1).tolist() == ["STRASSE", ""]
    assert client.predict({"text": ["naïve".encode()]}, "upper", 1).tolist() == ["NAÏVE"]


def check_ovmsclient_reads_status_and_metadata(address: str) -> None:
    client = ovmsclient.make_http_client(address)
    assert client.get_model_status("digits", 2) == {2: {"state": "AVAILABLE", "error_code": 0, "error_message": ""}}
    about = client.get_model_metadata("add_sub", 1)
    assert about["model_spec"]["version"] == "1"
    outputs = about["metadata"]["signature_def"]["signature_def"]["serving_default"]["outputs"]
    assert {name: output["dtype"] for name, output in outputs.items()} == {"OUTPUT0": "DT_INT32", "OUTPUT1": "DT_INT32"}


def check_ovmsclient_raises_its_own_errors(address: str) -> None:
    client = ovmsclient.make_http_client(address)

    def raised(kind: type[Exception], call: Callable[[], object]) -> str:
        return str(checks.raised(kind, call))

    absent = "Servable not found for request: Specific(absent, 1)"
    assert absent in raised(ModelNotFoundError, lambda: client.predict({"x": [1.0]}, "absent", 1))
    assert absent in raised(ModelNotFoundError, lambda: client.get_model_metadata("absent", 1))
    raised(ModelNotFoundError, lambda: client.get_model_status("absent", 1))
    assert "Missing named input: x" in raised(
        InvalidInputError, lambda: client.predict({"y": [1.0]}, "half_plus_two", 1)
    )
    wrong = raised(InvalidInputError, lambda: client.predict({"x": ["one"]}, "half_plus_two", 1))
    assert "is not of expected type: float" in wrong


def check_ovmsclient_without_a_version_asks_for_version_0(address: str) -> None:
    """Which TensorFlow Serving takes at its word too."""
    client = ovmsclient.make_http_client(address)
    error = checks.raised(ModelNotFoundError, lambda: client.predict({"x": [1.0]}, "half_plus_two"))
    assert "Specific(half_plus_two, 0)" in str(error)


if __name__ == "__main__":
    checks.main(globals())
