"""The operator's page over HTTP: what it asks for, and the switch that turns it off."""

import gzip
import hashlib
import http.client
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from serving import Answer, Gateway, demo_config
from waiting import wait_until

Serve = Callable[[str], Gateway]


def test_the_page_and_what_it_reads(demo: Gateway) -> None:
    html = demo.get("/")
    assert (html.status, html.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    below = demo.get("/grps/v1/monitor/metrics").body
    assert below == html.body.replace(b'"./', b'"../../../'), "below a proxy's prefix, too, each finds its files"
    assert demo.post("/", {}).status == 405
    models = {model["name"]: model for model in demo.get("/models.json").json}
    assert [version["version"] for version in models["digits"]["versions"]] == [1, 2]
    for sample in models["digits"]["samples"]:
        assert call(demo, sample).status == 200

    def dialects() -> set[str]:
        return {call["dialect"] for call in demo.get("/overview.json").json["calls"] if call["model"] == "digits"}

    wait_until(lambda: len(dialects()) == 3)
    overview = demo.get("/overview.json").json
    assert overview["state"] == "ready"
    assert overview["stamp"] == demo.get("/overview.json").json["stamp"]  # nothing is read again
    assert "digits" in {model["name"] for model in overview["models"]} <= models.keys()
    assert {level for level, _ in overview["problems"]} <= {"note"}
    series = demo.get("/grps/v1/monitor/series?name=*qps").json
    assert (series["label"], len(series["data"])) == ("trend", 174)


def test_a_model_of_texts_tells_what_they_cost(demo: Gateway) -> None:
    body = {"model": "writer", "prompt": "In the beginning", "max_tokens": 5, "temperature": 0, "stream": True}
    assert demo.post("/openai/v1/completions", body).body.endswith(b"data: [DONE]\n\n")

    def writer() -> dict[str, Any]:
        models: list[dict[str, Any]] = demo.get("/overview.json?models=writer").json["models"]
        return models[0] if models else {}

    wait_until(lambda: sum(writer().get("tokens", ())) >= 11)
    assert writer()["first_answer"] > writer()["next_answer"] > 0


def test_the_page_is_for_everybody_and_what_it_shows_for_administrators(serve: Serve) -> None:
    digests = {name: {"sha256": hashlib.sha256(name.encode()).hexdigest()} for name in ("root", "alice")}
    gateway = serve(demo_config(auth={"keys": digests, "admins": ["root"]}))
    assert gateway.get("/").status == gateway.get("/grps/v1/monitor/metrics").status == 200
    for path in ("/overview.json", "/models.json", "/overview.json?rows=1", "/models.json?brief=1"):
        told = {
            name: gateway.request("GET", path, headers={"Authorization": f"Bearer {name}"} if name else {})
            for name in ("", "nobody", "alice", "root")
        }
        assert [answer.status for answer in told.values()] == [401, 401, 403, 200]
        assert told[""].json == {"error": "Credentials are required"}


def call(gateway: Gateway, sample: dict[str, Any]) -> Answer:
    return gateway.request("POST", sample["path"], sample["body"].encode(), {"Content-Type": sample["content_type"]})


KINDS = {
    "digits": {"infer", "generate", "generate_stream", "predict"},
    "half_plus_two": {"infer", "generate", "generate_stream", "predict"},
    "half_plus_three": {"infer", "generate", "generate_stream", "predict", "classify", "regress"},
    "add_sub": {"infer", "generate", "generate_stream", "predict"},
    "upper": {"infer", "generate", "generate_stream", "predict"},
    "countdown": {"generate_stream", "streaming"},
    "writer": {"generate", "generate_stream", "streaming"},
    "running_sum": {"infer"},
}


def test_every_kind_of_call_to_every_model_works_at_once(demo: Gateway) -> None:
    models = {model["name"]: model for model in demo.get("/models.json").json}
    assert models.keys() >= KINDS.keys()
    for name, kinds in KINDS.items():
        samples = models[name]["samples"]
        assert {sample["kind"] for sample in samples} >= kinds, name
        for sample in samples:
            answer = call(demo, sample)
            assert answer.status == 200, (name, sample, answer.body)
            assert b"error" not in answer.body, (name, sample, answer.body)


def test_files_of_the_page_are_read_once(demo: Gateway) -> None:
    for path, kind in (("/page/page.js", "text/javascript"), ("/page/style.css", "text/css")):
        first = demo.request("GET", path, headers={"Accept-Encoding": "gzip"})
        assert first.headers["Content-Type"].startswith(kind)
        assert gzip.decompress(first.body) == demo.get(path).body
        again = demo.request("GET", path, headers={"If-None-Match": first.headers["ETag"]})
        assert (again.status, again.body) == (304, b"")


def test_what_cannot_be_asked_is_told(demo: Gateway) -> None:
    for query, word in (
        ("rows=x", "rows"),
        ("rows=501", "500"),
        ("sort=colour", "sort"),
        ("span=year", "month"),
        ("a=1", "a"),
    ):
        answer = demo.get(f"/overview.json?{query}")
        assert (answer.status, word in answer.json["error"]) == (400, True), query


FAULTS = """
import time

class Slow:
    def __init__(self, context):
        self.go = context.path / "go"

    def infer(self, inputs, request):
        while not self.go.exists():
            time.sleep(0.01)
        return {"y": inputs["x"]}

class Broken(Slow):
    def __init__(self, context):
        raise RuntimeError("the weights are not there")
"""


def test_what_is_wrong_is_told_in_words(serve: Serve, tmp_path: Path) -> None:
    """A load that failed, a server that has gone, a full queue: each is on the page, and why."""
    (tmp_path / "faults.py").write_text(FAULTS)
    tensors = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1]}]}
    tensors["outputs"] = [{**tensors["inputs"][0], "name": "y"}]
    python = {"backend": "python", **tensors}
    gone = {"dialect": "open_inference", "transport": "http", "address": "127.0.0.1:9"}
    models = {
        "broken": {**python, "path": str(tmp_path / "faults.py:Broken")},
        "busy": {**python, "path": str(tmp_path / "faults.py:Slow"), "max_queue_size": 1, "process": "own"},
        "away": {"backend": "remote", "upstream": gone, **tensors},
    }
    gateway = serve(demo_config(models, readiness="lenient"))
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}

    def ask() -> None:
        with suppress(OSError, http.client.HTTPException):  # nobody answers before the gateway ends
            gateway.post("/v2/models/busy/infer", body)

    callers = [threading.Thread(target=ask) for _ in range(6)]
    for caller in callers:
        caller.start()
    words = (
        "broken version 1 is not served: RuntimeError: the weights are not there",
        "busy version 1 refuses calls: all 1 places of its queue are taken",
        "away version 1 is not ready: the server behind it does not answer",
    )

    def told() -> set[str]:
        return {text for level, text in gateway.get("/overview.json").json["problems"] if level == "bad"}

    wait_until(lambda: all(any(text.startswith(each) for text in told()) for each in words), lambda: str(told()))
    (away,) = [model for model in gateway.get("/models.json").json if model["name"] == "away"]
    assert [version["state"] for version in away["versions"]] == ["UNAVAILABLE"]
    (tmp_path / "go").touch()
    for caller in callers:
        caller.join()


def test_without_a_page(serve: Serve) -> None:
    gateway = serve(demo_config(page=False))
    for path in ("/", "/overview.json", "/models.json"):
        assert gateway.get(path).status == 404
    assert gateway.get("/healthz").status == 200
