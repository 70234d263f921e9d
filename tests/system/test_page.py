"""The operator's page over HTTP: what it asks for, and the switch that turns it off."""

import hashlib
from collections.abc import Callable

from serving import Gateway, demo_config
from waiting import wait_until

Serve = Callable[[str], Gateway]


def test_the_page_and_what_it_reads(demo: Gateway) -> None:
    html = demo.get("/")
    assert (html.status, html.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert demo.get("/grps/v1/monitor/metrics").body == html.body
    assert demo.post("/", {}).status == 405
    models = {model["name"]: model for model in demo.get("/models.json").json}
    assert [version["version"] for version in models["digits"]["versions"]] == [1, 2]
    for sample in models["digits"]["samples"]:
        answer = demo.request("POST", sample["path"], sample["body"].encode(), {"Content-Type": sample["content_type"]})
        assert answer.status == 200, answer.body

    def dialects() -> set[str]:
        return {call["dialect"] for call in demo.get("/overview.json").json["calls"] if call["model"] == "digits"}

    wait_until(lambda: len(dialects()) == 3)
    overview = demo.get("/overview.json").json
    assert overview["state"] == "ready"
    assert {model["name"] for model in overview["models"]} == models.keys()
    series = demo.get("/grps/v1/monitor/series?name=*qps").json
    assert (series["label"], len(series["data"])) == ("trend", 174)


def test_the_page_is_for_everybody_and_what_it_shows_for_administrators(serve: Serve) -> None:
    digests = {name: {"sha256": hashlib.sha256(name.encode()).hexdigest()} for name in ("root", "alice")}
    gateway = serve(demo_config(auth={"keys": digests, "admins": ["root"]}))
    assert gateway.get("/").status == gateway.get("/grps/v1/monitor/metrics").status == 200
    for path in ("/overview.json", "/models.json"):
        told = {
            name: gateway.request("GET", path, headers={"Authorization": f"Bearer {name}"} if name else {})
            for name in ("", "nobody", "alice", "root")
        }
        assert [answer.status for answer in told.values()] == [401, 401, 403, 200]
        assert told[""].json == {"error": "Credentials are required"}


def test_without_a_page(serve: Serve) -> None:
    gateway = serve(demo_config(page=False))
    for path in ("/", "/overview.json", "/models.json"):
        assert gateway.get(path).status == 404
    assert gateway.get("/healthz").status == 200
