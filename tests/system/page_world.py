"""A gateway with faults and traffic, for what the operator's page shows of them: in the browser's tests, and in the
documentation's pictures.
"""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from serving import Gateway, demo_config, running

_CLASSES = """
import time

class Slow:
    def __init__(self, context):
        self.go = context.path / "go"

    def infer(self, inputs, request):
        while not self.go.exists():
            time.sleep(0.01)
        return {"y": inputs["x"]}

class NotLoaded(Slow):
    def __init__(self, context):
        raise RuntimeError("the weights are not there")

class Raises(Slow):
    def infer(self, inputs, request):
        raise ZeroDivisionError("the variance is 0")
"""
BODY = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}
FAULTS = {
    "a model that raises": "raising raises errors",
    "an upstream that is gone": "away version 1 is not ready: the server behind it does not answer",
    "a load that failed": "broken version 1 is not served: RuntimeError: the weights are not there",
    "a full queue": "busy version 1 refuses calls: all 1 places of its queue are taken",
    "grps offline": "offline for grps' health probes",
    "a caller beyond its rate": "a rate limit refuses calls of half_plus_three",
}
"""Each fault -> what the page says of it."""


@contextmanager
def faulty(folder: Path) -> Iterator[Gateway]:
    """A gateway with all FAULTS, and callers who keep the queue full until the end."""
    (folder / "faults.py").write_text(_CLASSES)
    tensors = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1]}]}
    tensors["outputs"] = [{**tensors["inputs"][0], "name": "y"}]
    gone = {"dialect": "open_inference", "transport": "http", "address": "127.0.0.1:9"}

    def python(name: str) -> dict[str, object]:
        return {"backend": "python", "path": f"{folder / 'faults.py'}:{name}", **tensors}

    models = {
        "raising": python("Raises"),
        "away": {"backend": "remote", "upstream": gone, **tensors},
        "broken": python("NotLoaded"),
        "busy": {**python("Slow"), "max_queue_size": 1, "process": "own"},
    }
    limits = [{"names": ["half_plus_three"], "requests_per_second": 0.01, "burst": 1}]
    file = folder / "gateway.yaml"
    file.write_text(demo_config(models, readiness="lenient", rate_limits=limits, metrics={"usage": True}))
    with running(file) as gateway:
        callers = [threading.Thread(target=_ask, args=(gateway,)) for _ in range(6)]
        for caller in callers:
            caller.start()
        gateway.post("/grps/v1/health/offline", {})
        try:
            yield gateway
        finally:
            (folder / "go").touch()
            for caller in callers:
                caller.join()


def _ask(gateway: Gateway) -> None:
    with suppress(OSError, http.client.HTTPException):  # nobody answers before the gateway ends
        gateway.post("/v2/models/busy/infer", BODY)


def make_errors(gateway: Gateway) -> None:
    """Calls that fail, for what the page tells only while it happens."""
    gateway.post("/v2/models/raising/infer", BODY)
    for _ in range(3):
        gateway.post("/v1/models/half_plus_three:predict", {"instances": [1.0]})


def make_traffic(gateway: Gateway, turns: int) -> None:
    """Calls of every dialect, some of them wrong."""
    models = {model["name"]: model for model in gateway.get("/models.json").json}
    kinds = ("infer", "predict", "generate")
    samples = [each for model in models.values() for each in model.get("samples", ()) if each["kind"] in kinds]
    for turn in range(turns):
        for number, sample in enumerate(samples):
            if (turn + number) % 3 and "raising" not in sample["path"] and "busy" not in sample["path"]:
                headers = {"Content-Type": sample["content_type"] or "application/json"}
                gateway.request("POST", sample["path"], sample["body"].encode(), headers)
        if turn % 5 == 0:
            gateway.post("/v1/models/half_plus_two:predict", {"instances": "no list"})
