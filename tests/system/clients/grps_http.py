"""What the HTTP clients that grps hands out call, with requests as they do: health, payloads, streams, metadata."""

from __future__ import annotations

import base64
import json
import threading
from typing import Any

import checks
import requests

SUCCESS = {"code": 200, "msg": "OK", "status": "SUCCESS"}
STREAMED = 10_000
SIX = {"dtype": "DT_FLOAT32", "shape": [2, 3], "flat_float32": [1, 2, 3, 4, 5, 6]}


def get(address: str, path: str) -> Any:
    return requests.get(f"http://{address}/grps/v1/{path}", timeout=10)


def predict(address: str, body: Any, **query: str) -> Any:
    """-> the reply without its envelope, which has to tell success."""
    answer = requests.post(f"http://{address}/grps/v1/infer/predict", params=query, json=body, timeout=10)
    assert answer.status_code == 200, answer.text
    reply = answer.json()
    assert reply.pop("status") == SUCCESS
    return reply


def refusal(address: str, body: Any, **query: str) -> tuple[int, str]:
    """-> HTTP status, last line of the message, which are all a failed reply tells."""
    answer = requests.post(f"http://{address}/grps/v1/infer/predict", params=query, json=body, timeout=10)
    (status,) = answer.json().values()
    assert (status["code"], status["status"]) == (answer.status_code, "FAILURE")
    return answer.status_code, status["msg"].splitlines()[-1]


# -------------------------------------------------------------------------------------------------------------- health


def check_health(address: str) -> None:
    unavailable = {"status": {"code": 503, "msg": "Service Unavailable", "status": "FAILURE"}}
    steps = (("live", 200), ("offline", 200), ("live", 200), ("ready", 503), ("online", 200), ("ready", 200))
    for step, code in steps:
        answer = get(address, f"health/{step}")
        assert answer.status_code == code, step
        assert answer.json() == ({"status": SUCCESS} if code == 200 else unavailable)


def check_predictions_go_on_while_offline(address: str) -> None:
    get(address, "health/offline")
    try:
        assert predict(address, {"ndarray": [2, 4], "model": "half_plus_two-1"})
    finally:
        get(address, "health/online")


# ------------------------------------------------------------------------------------------------------------ payloads


def check_text(address: str) -> None:
    for text, shout in (("hello grps.", "HELLO GRPS."), ("straße", "STRASSE"), ("", "")):
        assert predict(address, {"str_data": text, "model": "upper-1"}) == {"str_data": shout}
        assert predict(address, {"str_data": text}, model="upper-1") == {"str_data": shout}


def check_tensors_by_name(address: str) -> None:
    (output,) = predict(address, {"gtensors": {"tensors": [{"name": "x"} | SIX]}, "model": "half_plus_two-1"})[
        "gtensors"
    ]["tensors"]
    assert output == {
        "name": "y",
        "dtype": "DT_FLOAT32",
        "shape": [2, 3],
        "flat_float32": [2.5, 3.0, 3.5, 4.0, 4.5, 5.0],
    }


def check_tensors_without_names_go_by_position(address: str) -> None:
    def numbers(values: list[int]) -> dict[str, Any]:
        return {"name": "", "dtype": "DT_INT32", "shape": [1, 16], "flat_int32": values}

    tensors = [numbers(list(range(16))), numbers([3] * 16)]
    answer = predict(address, {"gtensors": {"tensors": tensors}}, model="add_sub-1")
    total, difference = answer["gtensors"]["tensors"]
    assert total["flat_int32"] == [value + 3 for value in range(16)]
    assert difference["flat_int32"] == [value - 3 for value in range(16)]
    assert total["shape"] == difference["shape"] == [1, 16]


def check_a_map(address: str) -> None:
    """s_t, which clients send, is in no schema: it is passed over."""
    gmap = {
        "s_s": {"key": "value"},
        "s_b": {"key": base64.b64encode(b"hello grps.").decode()},
        "s_i32": {"key": 1},
        "s_i64": {"key": 2**53 + 1},
        "s_f": {"key": 1.5},
        "s_d": {"key": 0.1},
        "s_t": {"key": SIX},
    }
    tensors = predict(address, {"gmap": gmap, "model": "echo_map-1"})["gtensors"]["tensors"]
    assert {tensor["name"]: next(tensor[key] for key in tensor if key.startswith("flat_")) for tensor in tensors} == {
        "s_s": ["value"],
        "s_b": ["hello grps."],
        "s_i32": [1],
        "s_i64": [str(2**53 + 1)],
        "s_f": [1.5],
        "s_d": [0.1],
    }


def check_nested_lists_in_and_out(address: str) -> None:
    query = {"return-ndarray": "true", "model": "half_plus_three-123"}
    assert predict(address, {"ndarray": [[1, 2, 3], [4, 5, 6]]}, **query) == {
        "ndarray": [[3.5, 4.0, 4.5], [5.0, 5.5, 6.0]]
    }


def check_the_default_model_reads_digits(address: str) -> None:
    rows = predict(address, {"ndarray": checks.images()}, **{"return-ndarray": "true"})["ndarray"]
    assert tuple(row.index(max(row)) for row in rows) == checks.SHOWN


def check_bytes_in_and_out(address: str) -> None:
    answer = requests.post(
        f"http://{address}/grps/v1/infer/predict?model=upper-1",
        data=r"hello grps.",
        headers={"content-type": "application/octet-stream"},
        timeout=10,
    )
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.content == b"HELLO GRPS."


# ------------------------------------------------------------------------------------------------------------- streams


def chunks(address: str, body: Any, model: str) -> list[bytes]:
    with requests.post(
        f"http://{address}/grps/v1/infer/predict",
        params={"streaming": "true", "model": model},
        json=body,
        stream=True,
        timeout=10,
    ) as answer:
        assert answer.status_code == 200
        assert answer.headers["Transfer-Encoding"] == "chunked"
        return list(answer.iter_content(chunk_size=None))


def check_a_stream_of_one(address: str) -> None:
    (document,) = chunks(address, {"str_data": "hello grps."}, "upper-1")
    assert json.loads(document) == {"status": SUCCESS, "str_data": "HELLO GRPS."}


def check_a_stream_of_many_has_a_document_per_chunk(address: str) -> None:
    start = {"name": "start", "dtype": "DT_INT32", "shape": [1], "flat_int32": [3]}
    documents = [json.loads(each) for each in chunks(address, {"gtensors": {"tensors": [start]}}, "countdown-1")]
    assert [document["status"] for document in documents] == [SUCCESS] * 4
    assert [document["gtensors"]["tensors"][0].get("flat_int32") for document in documents] == [[3], [2], [1], [0]]


def check_ten_thousand_messages_come_in_order(address: str) -> None:
    """While others ask for other things."""
    wrong: list[Any] = []
    done = threading.Event()

    def others() -> None:
        while not done.is_set():
            reply = predict(address, {"str_data": "x"}, model="upper-1")
            if reply != {"str_data": "X"}:
                wrong.append(reply)

    thread = threading.Thread(target=others)
    thread.start()
    try:
        start = {"name": "start", "dtype": "DT_INT32", "shape": [1], "flat_int32": [STREAMED - 1]}
        text = b"".join(chunks(address, {"gtensors": {"tensors": [start]}}, "fast_countdown-1")).decode()
    finally:
        done.set()
        thread.join()
    decoder = json.JSONDecoder()
    at, counts = 0, []
    while at < len(text):
        document, at = decoder.raw_decode(text, at)
        assert document["status"] == SUCCESS
        counts += document["gtensors"]["tensors"][0]["flat_int32"]
    assert counts == list(range(STREAMED - 1, -1, -1))
    assert not wrong, wrong


def check_a_stream_that_fails_says_so(address: str) -> None:
    (document,) = chunks(address, {"str_data": "hello grps."}, "absent-1")
    assert json.loads(document) == {
        "status": {"code": 500, "msg": "Model absent-1 not found.", "status": "FAILURE"},
    }


# ----------------------------------------------------------------------------------------------- metadata and refusals


def check_metadata(address: str) -> None:
    server = get(address, "metadata/server").json()
    assert server["status"] == SUCCESS
    assert "name: half_plus_two" in server["str_data"]
    model = requests.post(f"http://{address}/grps/v1/metadata/model", json={"str_data": "digits"}, timeout=10).json()
    assert model["status"] == SUCCESS
    assert "name: digits" in model["str_data"]
    absent = requests.post(f"http://{address}/grps/v1/metadata/model", json={"str_data": "your_model"}, timeout=10)
    assert (absent.status_code, absent.json()["status"]["msg"]) == (404, "Model not found.")


def check_refusals(address: str) -> None:
    assert refusal(address, {"str_data": "x"}, model="upper") == (500, "Model upper not found.")
    assert refusal(address, {"nothing": "x"}, model="upper-1") == (500, "No legal field in json.")
    status, message = refusal(address, {"bin_data": "eA=="}, model="upper-1")
    assert (status, message) == (500, "bin_data should use application/octet-stream format.")
    short = {"name": "x"} | SIX | {"shape": [2, 2]}
    status, message = refusal(address, {"gtensors": {"tensors": [short]}}, model="half_plus_two-1")
    assert status == 500
    assert "expected size: 4, actual size: 6" in message
    form = requests.post(f"http://{address}/grps/v1/infer/predict", {"str_data": "x"}, timeout=10)
    assert (form.status_code, form.json()["status"]["msg"]) == (400, "Unsupported content type.")


if __name__ == "__main__":
    checks.main(globals())
