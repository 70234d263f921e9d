"""A real Prometheus scrapes a gateway, and every expression of rules and dashboards gives data after some traffic.

It wants the package prometheus of Debian.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from deployment import DEPLOY, burst, documents, installed, panels, rules, series, shipped
from serving import HOST

pytestmark = pytest.mark.heavy

NEED_A_GPU = ("nv_gpu_memory_used_bytes", "nv_gpu_memory_total_bytes")
WITHIN_S = 60.0


class Prometheus:
    """A running one."""

    def __init__(self, port: int) -> None:
        self.url = f"http://{HOST}:{port}"

    def get(self, path: str, **query: str) -> Any:
        with urllib.request.urlopen(f"{self.url}{path}?{urllib.parse.urlencode(query)}", timeout=10) as answer:  # noqa: S310
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[Any]:
        found: list[Any] = self.get("/api/v1/query", query=expression)["result"]
        return found

    def value(self, expression: str) -> float:
        """The sum of what it gives; 0 for nothing."""
        return sum(float(each["value"][1]) for each in self.query(expression))


def configuration(folder: Path, metrics: int, itself: int) -> Path:
    """The shipped one on other addresses and in more of a hurry, beside the shipped rules."""
    for name in ("rules.yml", "alerts.yml"):
        (config,) = documents(DEPLOY / "prometheus" / name)
        shutil.copy(DEPLOY / "prometheus" / name, folder / name)
        assert all("interval" not in group for group in config["groups"])
    text = (DEPLOY / "prometheus/prometheus.yml").read_text().replace("15s", "1s")
    text = text.replace("tensorgate:8002", f"{HOST}:{metrics}").replace("localhost:9090", f"{HOST}:{itself}")
    file = folder / "prometheus.yml"
    file.write_text(text)
    return file


def free_port() -> int:
    with socket.create_server((HOST, 0)) as taken:
        port: int = taken.getsockname()[1]
    return port


def wait(done: Any, what: str) -> None:
    give_up = time.monotonic() + WITHIN_S
    while True:
        try:
            if done():
                return
        except OSError:
            pass
        assert time.monotonic() < give_up, what
        time.sleep(0.3)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """One that has seen two bursts of traffic."""
    program = installed("prometheus", "prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    port = free_port()
    with shipped(folder) as (gateway, ports):
        burst(gateway, ports)  # series begin before Prometheus looks: a rate needs two different values
        file = configuration(folder, ports[8002], port)
        command = [program, f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}"]
        with (folder / "prometheus.log").open("wb") as log:
            process = subprocess.Popen(
                [*command, f"--web.listen-address={HOST}:{port}"], stdout=log, stderr=subprocess.STDOUT
            )
        try:
            asked = Prometheus(port)
            wait(lambda: asked.value('up{job=~"tensorgate.*"}') == 2, (folder / "prometheus.log").read_text())
            burst(gateway, ports)
            wait(lambda: asked.value("sum(increase(tensorgate_requests_total[1m]))") > 0, "no increase")
            wait(lambda: asked.query("model:tensorgate_server_errors:ratio_rate5m > 0"), "no recorded errors")
            yield asked
        finally:
            process.terminate()
            process.wait(30)


def test_every_target_is_scraped_without_complaint(prometheus: Prometheus) -> None:
    targets = prometheus.get("/api/v1/targets")["activeTargets"]
    assert {each["labels"]["job"]: each["lastError"] for each in targets} == {
        "tensorgate": "",
        "tensorgate-tf-serving": "",
        "prometheus": "",
    }


def test_every_rule_is_evaluated_without_complaint(prometheus: Prometheus) -> None:
    groups = prometheus.get("/api/v1/rules")["groups"]
    told = {rule["name"]: (rule["health"], rule.get("lastError", "")) for group in groups for rule in group["rules"]}
    assert set(told) == {name for name, _, _ in rules()}
    assert set(told.values()) == {("ok", "")}


@pytest.mark.parametrize(("name", "expression"), [each[:2] for each in rules()])
def test_a_rule_has_data(prometheus: Prometheus, name: str, expression: str) -> None:
    if any(each in expression for each in NEED_A_GPU):
        pytest.skip(f"{name} needs a GPU")
    assert prometheus.query(expression), expression


@pytest.mark.parametrize(("where", "expression"), list(panels()))
def test_a_panel_has_data(prometheus: Prometheus, where: str, expression: str) -> None:
    if series(expression) <= set(NEED_A_GPU):
        pytest.skip(f"{where} needs a GPU")
    found = prometheus.query(expression)
    assert found, expression
    assert any(each["value"][1] != "NaN" for each in found), f"{expression}: NaN alone"


def test_variables_of_dashboards_find_their_values(prometheus: Prometheus) -> None:
    for file in sorted((DEPLOY / "grafana/dashboards").glob("*.json")):
        for each in documents(file)[0]["templating"]["list"]:
            if each["type"] == "query":
                expression, label = each["definition"].removeprefix("label_values(").removesuffix(")").rsplit(", ", 1)
                assert prometheus.get(f"/api/v1/label/{label}/values", **{"match[]": expression}), each["name"]


def test_numbers_are_those_of_the_gateway(prometheus: Prometheus) -> None:
    """Two bursts of five calls, each of two rows; and errors counted as errors, but not those of callers."""
    wait(lambda: prometheus.value('tensorgate_requests_total{model="digits",dialect="tf_serving"}') == 10, "calls")
    assert prometheus.value('nv_inference_count{model="digits"}') == 30  # two rows each, and one each of grps
    assert prometheus.value(':tensorflow:serving:request_count{model_name="digits",status="OK"}') == 10
    ratio = "model:tensorgate_server_errors:ratio_rate5m"
    assert prometheus.value(f'{ratio}{{model="broken"}}') == 1
    assert [each["value"][1] for each in prometheus.query(f'{ratio}{{model="half_plus_two"}}')] == ["0"]


def test_the_adapter_s_query_gives_a_value_for_each_pod(prometheus: Prometheus) -> None:
    """With labels of this scrape in place of Kubernetes'."""
    (adapter,) = yaml.safe_load_all((DEPLOY / "kubernetes/autoscaling/prometheus-adapter-values.yaml").read_text())
    (rule,) = adapter["rules"]["custom"]
    query = rule["metricsQuery"].replace("<<.Series>>", "tensorgate_queued_requests")
    query = query.replace("<<.LabelMatchers>>", 'job="tensorgate"').replace("<<.GroupBy>>", "instance")
    assert [each["value"][1] for each in prometheus.query(query)] == ["0"]
