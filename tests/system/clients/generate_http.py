"""What a program does that generates text over HTTP, with requests: whole answers, and server-sent events by lines."""

from __future__ import annotations

import json
from typing import Any

import checks
import requests

PROMPT = {"text_input": "In the beginning", "max_tokens": 12, "temperature": 0}


def post(address: str, path: str, body: Any, **options: Any) -> Any:
    return requests.post(f"http://{address}/v2/models/{path}", json=body, timeout=10, **options)


def events(answer: Any) -> list[Any]:
    """Each event is a line `data: JSON` and an empty one."""
    lines = list(answer.iter_lines(chunk_size=1))
    assert all(line.startswith(b"data: ") for line in lines[::2])
    assert not any(lines[1::2])
    return [json.loads(line.removeprefix(b"data: ")) for line in lines[::2]]


def check_generate(address: str) -> None:
    answer = post(address, "writer/generate", {"id": "42"} | PROMPT)
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "application/json")
    told = answer.json()
    assert told.pop("text_output").startswith(" ")
    assert told == {"id": "42", "model_name": "writer", "model_version": "1"}


def check_events_add_up_to_the_whole(address: str) -> None:
    whole = post(address, "writer/generate", PROMPT).json()["text_output"]
    body = {"text_input": PROMPT["text_input"], "parameters": {"max_tokens": 12, "temperature": 0, "stream": True}}
    with post(address, "writer/versions/1/generate_stream", body, stream=True) as answer:
        assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert answer.headers["Transfer-Encoding"] == "chunked"
        pieces = [event["text_output"] for event in events(answer)]
    assert len(pieces) == 12
    assert "".join(pieces) == whole


def check_an_ordinary_model_generates_too(address: str) -> None:
    assert post(address, "upper/generate", {"text": "straße"}).json()["shout"] == "STRASSE"
    assert post(address, "upper/generate", {"text": ["a", "b"]}).json()["shout"] == ["A", "B"]
    with post(address, "upper/generate_stream", {"text": []}, stream=True) as answer:
        assert events(answer) == [{"model_name": "upper", "model_version": "1", "shout": []}]


def check_none_and_many(address: str) -> None:
    with post(address, "countdown/generate_stream", {"start": 2}, stream=True) as answer:
        assert [event["count"] for event in events(answer)] == [2, 1, 0]
    nothing = post(address, "countdown/generate_stream", {"start": -1})
    assert (nothing.status_code, nothing.content) == (200, b"")
    for start in (-1, 100):
        refused = post(address, "countdown/generate", {"start": start})
        assert refused.status_code == 400
        assert refused.json()["error"].startswith("generate expects model to produce exactly 1 response")


def check_refusals(address: str) -> None:
    unknown = post(address, "nobody/generate_stream", {})
    assert (unknown.status_code, list(unknown.json())) == (404, ["error"])
    refused = post(address, "writer/generate_stream", {"text_input": "à"})
    assert (refused.status_code, refused.headers["Content-Type"]) == (400, "text/event-stream; charset=utf-8")
    [event] = events(refused)
    assert event["error"].startswith("text_input has the character 'à'")


def check_a_connection_is_used_again(address: str) -> None:
    with requests.Session() as session:
        for _ in range(3):
            url = f"http://{address}/v2/models/countdown/generate_stream"
            with session.post(url, json={"start": 0}, timeout=10, stream=True) as answer:
                assert [event["count"] for event in events(answer)] == [0]
            assert session.get(f"http://{address}/v2/health/live", timeout=10).json() == {"live": True}


if __name__ == "__main__":
    checks.main(globals())
