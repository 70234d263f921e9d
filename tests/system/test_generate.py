"""Text as it is written, watched with curl, and a watcher who leaves."""

import json
import shutil
import subprocess

import pytest
from serving import Gateway
from waiting import wait_until

CURL = shutil.which("curl")
pytestmark = pytest.mark.skipif(CURL is None, reason="there is no curl")


def watch(demo: Gateway, model: str, body: str) -> subprocess.Popen[bytes]:
    url = f"{demo.url}/v2/models/{model}/generate_stream"
    return subprocess.Popen(["curl", "-sN", "--noproxy", "*", url, "-d", body], stdout=subprocess.PIPE)


def test_curl_shows_events_as_they_come_and_leaving_ends_them(demo: Gateway) -> None:
    """The countdown would take a hundred seconds; all copies of it are free again at once."""
    for _ in range(2):
        with watch(demo, "countdown", '{"start": 1000}') as curl:
            assert curl.stdout is not None
            lines = [curl.stdout.readline() for _ in range(4)]
            curl.kill()
        assert [json.loads(line.removeprefix(b"data: "))["count"] for line in lines[::2]] == [1000, 999]
        assert lines[1::2] == [b"\n", b"\n"]
    assert demo.post("/v2/models/countdown/generate", {"start": 0}).json["count"] == 0
    left = {"method": "generate_stream", "model": "countdown", "code": "CANCELLED"}
    wait_until(lambda: demo.metrics().total("tensorgate_requests_total", **left) >= 2)


def test_the_writer_writes_into_a_terminal(demo: Gateway) -> None:
    body = {"text_input": "And it came to pass", "max_tokens": 200, "stream": True, "seed": 7}
    with watch(demo, "writer", json.dumps(body)) as curl:
        told, _ = curl.communicate(timeout=30)
    events = told.decode().split("\n\n")
    assert (len(events), events.pop()) == (201, "")
    text = "".join(json.loads(event.removeprefix("data: "))["text_output"] for event in events)
    assert len(text.split()) > 80
