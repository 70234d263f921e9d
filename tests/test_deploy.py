"""deploy/ keeps what it promises: files exist, ports and limits agree, every series that is asked for is there."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from deployment import CONFIG, DASHBOARDS, DEPLOY, burst, documents, on_free_ports, panels, rules, series, shipped
from packaging.requirements import Requirement
from serving import HOST, ROOT, Gateway, Series, running, started
from waiting import wait_until

from tensorgate import __version__
from tensorgate.gateway.cli.main import main

IMAGES = ("Dockerfile", "Dockerfile.cuda")
KUBERNETES = DEPLOY / "kubernetes"
CONFIGURATIONS = (CONFIG, CONFIG.with_name("compare.yaml"), KUBERNETES / "gateway.yaml")
NEEDS_A_GPU = {"nv_gpu_memory_used_bytes", "nv_gpu_memory_total_bytes"}
OF_PROMETHEUS = {"up"}
LOCKS = {"cpu": ["cpu"], "cuda12": ["cuda12", "images-cuda12"], "cuda13": ["cuda13", "images-cuda13"]}
"""File -> the extras that it locks."""


def listeners(file: Path = CONFIG) -> dict[int, str]:
    """Port -> what is spoken there: a transport and a dialect, or metrics."""
    listen = yaml.safe_load(file.read_text())["listen"]
    told = {port(listen["metrics"]): "metrics"}
    for transport in ("http", "grpc"):
        for each in listen[transport]:
            told[port(each)] = " ".join((transport, *each.get("dialects", ())))
    return told


def port(listener: Mapping[str, str]) -> int:
    return int(listener["bind"].rpartition(":")[2])


def readable() -> list[Path]:
    files = (path for path in DEPLOY.rglob("*") if path.suffix in (".yaml", ".yml", ".json"))
    return sorted(path for path in files if path.parent.name != "templates")  # those of the chart are drawn by helm


@pytest.mark.parametrize("file", readable(), ids=lambda file: str(file.relative_to(DEPLOY)))
def test_every_file_can_be_read(file: Path) -> None:
    assert all(documents(file))


@pytest.mark.parametrize("file", CONFIGURATIONS, ids=lambda file: file.parent.name)
def test_the_shipped_configurations_are_accepted(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(file)]) == 0, capsys.readouterr().err


def test_the_shipped_configuration_has_the_ports_of_the_old_servers() -> None:
    assert listeners() == {
        8000: "http open_inference",
        8001: "grpc open_inference",
        8002: "metrics",
        8500: "grpc tf_serving",
        8501: "http tf_serving",
        7080: "http grps",
        9000: "http openai",
        7081: "grpc grps",
    }


ADD_SUB = [{"name": name, "datatype": "INT32", "shape": [1, 16], "data": [7] * 16} for name in ("INPUT0", "INPUT1")]


def test_what_compares_is_ready_once_there_is_something_to_compare(tmp_path: Path) -> None:
    """Not before the old server answers; then the first call is compared, and when that server ends callers still get
    their answers.
    """
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
    compare, old = tmp_path / "compare.yaml", tmp_path / "old.yaml"
    text = on_free_ports(file=CONFIG.with_name("compare.yaml"))
    text = text.replace("old-triton:8001", f"{HOST}:{port}").replace("/tmp/diffs", f"{tmp_path}/diffs")  # noqa: S108  (the container's own)
    compare.write_text(text)
    old.write_text(
        yaml.safe_dump(
            {
                "listen": {"http": [{"bind": f"{HOST}:0"}], "grpc": [{"bind": f"{HOST}:{port}"}]},
                "models": {"add_sub": yaml.safe_load(text)["models"]["add_sub_new"]},
            }
        )
    )

    def asked(gateway: Gateway) -> Any:
        return gateway.post("/v2/models/add_sub/infer", {"inputs": ADD_SUB}).json["outputs"][0]["data"]

    def until(done: Callable[[], bool]) -> None:
        wait_until(done, lambda: gateway.said)

    with started(tmp_path / "compare.log", str(compare)) as gateway:
        gateway.wait_until_said("loaded add_sub_new")
        until(lambda: gateway.get("/healthz").status == 200)
        assert gateway.get("/readyz").status == 503
        with running(old) as server:
            until(lambda: gateway.get("/readyz").status == 200)
            assert asked(gateway) == [14] * 16
            until(lambda: gateway.metrics().total("tensorgate_shadow_requests_total", result="equal") == 1)
            assert server.stop() == 0, server.said
        until(lambda: gateway.get("/readyz").status == 503)
        assert asked(gateway) == [14] * 16
        assert gateway.metrics().total("tensorgate_shadow_requests_total") == 1
        assert gateway.stop() == 0, gateway.said


# -------------------------------------------------------------------------------------------------------------- images


class Dockerfile:
    """Its instructions, in order: [(NAME, rest)]."""

    def __init__(self, name: str) -> None:
        text = (DEPLOY / name).read_text(encoding="utf-8")
        lines = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)).splitlines()
        self.all = [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in lines if line.strip()]

    def of(self, name: str) -> list[str]:
        return [rest for each, rest in self.all if each == name]

    def last_stage(self, name: str) -> list[str]:
        start = max(number for number, (each, _) in enumerate(self.all) if each == "FROM")
        return [rest for each, rest in self.all[start:] if each == name]


@pytest.mark.parametrize("name", IMAGES)
def test_everything_that_an_image_copies_exists_and_reaches_the_builder(name: str) -> None:
    let_in = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [shlex.split(rest)[:-1] for rest in Dockerfile(name).of("COPY") if not rest.startswith("--from=")]
    assert copied
    for source in (source for sources in copied for source in sources):
        assert (ROOT / source).exists(), source
        assert any(source == each or source.startswith(each + "/") for each in let_in), f"{source}: see .dockerignore"


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_runs_as_nobody_in_particular_from_a_pinned_base(name: str) -> None:
    image = Dockerfile(name)
    (python,) = (rest.partition("=")[2] for rest in image.of("ARG") if rest.startswith("PYTHON="))
    assert re.fullmatch(r"3\.\d+\.\d+-slim-[a-z]+", python)
    assert {rest.split()[0] for rest in image.of("FROM")} == {"python:${PYTHON}"}
    assert image.last_stage("USER") == ["10001:10001"]
    assert {int(number) for rest in image.last_stage("EXPOSE") for number in rest.split()} == set(listeners())
    assert f'org.opencontainers.image.version="{__version__}"' in " ".join(image.last_stage("LABEL"))


@pytest.mark.parametrize("name", IMAGES)
def test_no_process_of_an_image_has_onnx_runtime_call_anybody(name: str) -> None:
    assert "ORT_DISABLE_TELEMETRY=1" in " ".join(Dockerfile(name).last_stage("ENV")).split()


@pytest.mark.parametrize("name", IMAGES)
def test_the_command_of_an_image_serves_a_file_that_it_has(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    image = Dockerfile(name)
    entry, command = json.loads(image.last_stage("ENTRYPOINT")[0]), json.loads(image.last_stage("CMD")[0])
    assert entry == ["tensorgate"]  # the shell is not process 1: SIGTERM reaches us
    verb, file = command
    assert verb == "serve"
    assert main(["check", str(ROOT / file)]) == 0, capsys.readouterr().err
    (asks,) = image.last_stage("HEALTHCHECK")
    health = json.loads(asks.partition("CMD ")[2])
    assert health[:3] == ["tensorgate", "health", "--url"]
    assert listeners()[int(health[3].rpartition(":")[2])] == "http open_inference"


def test_the_two_images_differ_only_in_what_the_gpu_wants() -> None:
    def common(name: str) -> set[tuple[str, str]]:
        unlike = ("LABEL", "HEALTHCHECK")
        return {
            (each, rest)
            for each, rest in Dockerfile(name).all
            if each not in unlike and "CUDA}" not in rest and rest != "CUDA=12"
        }

    only_cpu, only_gpu = common(IMAGES[0]) - common(IMAGES[1]), common(IMAGES[1]) - common(IMAGES[0])
    assert {each for each, _ in only_cpu} == {"ARG", "RUN"}
    assert all("EXTRAS" in rest for _, rest in only_cpu)
    assert {each for each, _ in only_gpu} == {"ENV", "RUN", "VOLUME"}
    assert all(re.search("cuda|cupy|nvidia", rest, re.IGNORECASE) for _, rest in only_gpu), only_gpu


def test_what_the_gpus_image_compiles_is_kept_where_it_may_write() -> None:
    """The folder is its user's, a volume, and the same in compose."""
    image = Dockerfile("Dockerfile.cuda")
    told = dict(each.split("=", 1) for line in image.last_stage("ENV") for each in line.split())
    (volume,) = image.last_stage("VOLUME")
    assert told["CUPY_CACHE_DIR"] == volume
    assert told["CUDA_CACHE_PATH"].startswith(volume + "/")
    assert f"install --directory --owner=10001 --group=10001 {volume}" in image.last_stage("RUN")
    mounted = {plain(mapping).split(":")[1]: plain(mapping) for mapping in SERVICES["tensorgate-gpu"]["volumes"]}
    assert mounted[volume] == f"kernels:{volume}"
    shared = {plain(mapping) for mapping in SERVICES["tensorgate"]["volumes"]}
    assert shared < set(mounted.values()), "the rest is as without a GPU"


def test_the_gpus_image_has_what_its_operators_want() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (installed,) = [rest for rest in Dockerfile("Dockerfile.cuda").of("RUN") if "[cuda${CUDA}" in rest]
    extras = re.findall(r"\[([^]]*\$\{CUDA\}[^]]*)\]", installed)[0].split(",")
    assert extras == ["cuda${CUDA}", "images-cuda${CUDA}", "text"]
    assert all(each.replace("${CUDA}", release) in project for each in extras for release in ("12", "13"))


def test_compose_names_the_gpus_that_it_takes() -> None:
    """By id, so that two services may have one each, or parts of one."""
    (device,) = SERVICES["tensorgate-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert [plain(each) for each in device["device_ids"]] == ["0"]
    assert device["capabilities"] == ["gpu"]
    assert "count" not in device, "Compose takes one of the two"


def test_a_stop_is_heard_before_anything_listens(tmp_path: Path) -> None:
    """Process 1 of a container would not hear it without a handler of its own, and wait for the kill."""
    file = tmp_path / "gateway.yaml"
    os.mkfifo(file)
    process = subprocess.Popen([sys.executable, "-m", "tensorgate", "serve", file], cwd=ROOT)
    with file.open("w"):  # it has opened the other end, and reads
        process.terminate()
        assert process.wait(30) == 0


# ------------------------------------------------------------------------------------------------------------- compose


COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, Any] = COMPOSE["services"]
OLD_SERVERS = {name for name, service in SERVICES.items() if service["profiles"] == ["migrate"]}
INSTEAD_OF = {"tensorgate-gpu": "tensorgate", "haproxy": "nginx"}


def plain(text: str) -> str:
    """With the default of every ${VARIABLE:-default}."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def test_compose_starts_one_gateway_unless_told_otherwise() -> None:
    (profiles,) = re.findall(r"^COMPOSE_PROFILES=(.*)$", (DEPLOY / ".env").read_text(), re.MULTILINE)
    assert [name for name, service in SERVICES.items() if profiles in service["profiles"]] == ["tensorgate"]
    assert {profile for service in SERVICES.values() for profile in service["profiles"]} == {
        "cpu", "gpu", "observability", "migrate", "tls", "tls-haproxy",
    }  # fmt: skip


def test_no_two_services_want_the_same_port() -> None:
    taken: dict[str, set[str]] = {}
    for name, service in SERVICES.items():
        for mapping in service["ports"]:
            host, outside, inside = plain(mapping).rsplit(":", 2)
            assert host in ("0.0.0.0", "127.0.0.1")
            assert inside.isdigit()
            taken.setdefault(outside, set()).add(INSTEAD_OF.get(name, name))
    assert {port: names for port, names in taken.items() if len(names) > 1} == {}


@pytest.mark.parametrize("name", ["tensorgate", "tensorgate-gpu"])
def test_the_gateway_is_published_where_it_listens(name: str) -> None:
    service = SERVICES[name]
    published = {tuple(map(int, plain(mapping).split(":")[1:])) for mapping in service["ports"]}
    assert published == {(number, number) for number in listeners()}
    assert service["command"] == json.loads(Dockerfile("Dockerfile").last_stage("CMD")[0])
    assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    assert plain(service["image"]).startswith(f"tensorgate:{__version__}")
    drain = yaml.safe_load(CONFIG.read_text())["drain_seconds"]
    assert drain < int(service["stop_grace_period"].removesuffix("s")) <= drain + 10


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_sealed_pinned_bounded_and_watched(name: str) -> None:
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service.get("read_only", False) or name in OLD_SERVERS
    assert service["healthcheck"]["test"][0] == "CMD"
    assert {"cpus", "memory"} <= set(service["deploy"]["resources"]["limits"])
    assert re.search(r":v?\d", plain(service["image"])), service["image"]


def test_every_file_that_is_mounted_exists() -> None:
    for name, service in SERVICES.items():
        for mapping in service.get("volumes", ()):
            source, target, *mode = plain(mapping).split(":")
            assert target.startswith("/"), name
            if source.startswith("."):
                assert (DEPLOY / source).exists(), source
                assert mode == ["ro"], mapping
            else:
                assert source in COMPOSE["volumes"], source
        assert set(service.get("depends_on", ())) <= set(SERVICES)


@pytest.mark.parametrize("file", ["nginx.conf", "haproxy.cfg"])
def test_proxies_lead_to_every_port_with_a_dialect(file: str) -> None:
    text = (DEPLOY / "proxy" / file).read_text(encoding="utf-8")
    block = r"(?:upstream|^backend) (\w+)_(http|grpc)[^:]*?tensorgate:(\d+)"
    found = {
        int(number): f"{transport} {dialect}" for dialect, transport, number in re.findall(block, text, re.MULTILINE)
    }
    assert found == {number: told for number, told in listeners().items() if told != "metrics"}


def test_prometheus_asks_the_port_for_metrics() -> None:
    (config,) = documents(DEPLOY / "prometheus/prometheus.yml")
    targets = {job["job_name"]: job["static_configs"][0]["targets"] for job in config["scrape_configs"]}
    assert listeners()[int(targets["tensorgate"][0].removeprefix("tensorgate:"))] == "metrics"
    assert targets["tensorgate-tf-serving"] == targets["tensorgate"]
    assert all((DEPLOY / "prometheus" / file).is_file() for file in config["rule_files"])
    (source,) = documents(DEPLOY / "grafana/provisioning/datasources/prometheus.yml")[0]["datasources"]
    assert source["url"].removeprefix("http://").split(":")[0] in SERVICES


# ------------------------------------------------------------------------------------------------ rules and dashboards


def test_every_alert_is_tested_with_what_raises_it_and_what_does_not() -> None:
    (tested,) = documents(DEPLOY / "prometheus/alerts.test.yml")
    cases = [case for test in tested["tests"] for case in test["alert_rule_test"]]
    alerts = {name for name, _, is_recorded in rules() if not is_recorded}
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == alerts
    assert {case["alertname"] for case in cases if not case["exp_alerts"]} == alerts


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, set[str]]]:
    """The shipped configuration, running, and the names that Prometheus has found there."""
    with shipped(tmp_path_factory.mktemp("deploy")) as (gateway, ports):
        burst(gateway, ports)
        text = ""
        for job in documents(DEPLOY / "prometheus/prometheus.yml")[0]["scrape_configs"][:2]:
            path = job.get("metrics_path", "/metrics")
            text += gateway.request("GET", path, port=ports[8002]).body.decode()
        names = set(re.findall(r"^([a-zA-Z_:][\w:]*)", text, re.MULTILINE))
        yield gateway, names


def test_names_are_found_in_expressions() -> None:
    assert series('sum by (le, a) (rate(x_bucket{b="c"}[5m])) / (sum(y:z) > 0) or vector(0)') == {"x_bucket", "y:z"}
    assert series("time() - offset_x unless on (job) w offset 5m") == {"offset_x", "w"}


def test_every_series_of_rules_and_dashboards_exists(watched: tuple[Gateway, set[str]]) -> None:
    _, names = watched
    recorded = {name for name, _, is_recorded in rules() if is_recorded}
    asked = {name: series(text) for name, text, _ in rules()} | {name: series(text) for name, text in panels()}
    assert all(asked.values()), "an expression without a series"
    missing = {where: gone for where, of in asked.items() if (gone := of - names - recorded - OF_PROMETHEUS)}
    assert {name for gone in missing.values() for name in gone} == NEEDS_A_GPU, missing


def test_variables_of_dashboards_are_those_that_their_panels_use() -> None:
    for file in DASHBOARDS:
        (board,) = documents(file)
        declared = {each["name"] for each in board["templating"]["list"]} | {"__rate_interval"}
        used = set(re.findall(r"\$\{?(\w+)", json.dumps(board["panels"])))
        assert used <= declared, file.name
        assert declared - used == set(), file.name
    boards = [documents(file)[0] for file in DASHBOARDS]
    assert len({board["uid"] for board in boards}) == len(boards)


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_panels_lie_side_by_side(file: Path) -> None:
    (board,) = documents(file)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in board["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24


# ---------------------------------------------------------------------------------------------------------- kubernetes


def kinds() -> dict[str, Any]:
    found = [each for file in KUBERNETES.rglob("*.yaml") for each in documents(file) if "kind" in each]
    return {each["kind"]: each for each in found if each["kind"] != "Kustomization"}


def test_kustomizations_name_files_that_exist_and_no_file_is_left_out() -> None:
    named = set()
    for file in KUBERNETES.rglob("kustomization.yaml"):
        (told,) = documents(file)
        generated = [each for generator in told.get("configMapGenerator", ()) for each in generator["files"]]
        named |= {file.parent / each for each in (*told["resources"], *generated)}
        assert all(image["newTag"] == __version__ for image in told.get("images", ()))
    there = {file for file in KUBERNETES.rglob("*.yaml") if file.name != "kustomization.yaml"}
    assert there - named == {KUBERNETES / "autoscaling/prometheus-adapter-values.yaml"}
    assert named <= there


def test_kubernetes_probes_and_ports_are_answered(watched: tuple[Gateway, set[str]]) -> None:
    gateway, _ = watched
    deployment, service = kinds()["Deployment"], kinds()["Service"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert set(ports.values()) == set(listeners(KUBERNETES / "gateway.yaml"))
    assert {each["targetPort"] for each in service["spec"]["ports"]} == set(ports)
    assert {each["port"] for each in service["spec"]["ports"]} == set(listeners())
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked = container[probe]["httpGet"]
        assert asked["port"] == "metrics"
        assert gateway.request("GET", asked["path"], port=gateway.metrics_port).status == 200
    assert service["spec"]["selector"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()


def test_kubernetes_mounts_the_configuration_where_its_paths_lead_to_the_models() -> None:
    pod = kinds()["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    _, file = container["args"]
    (root,) = Dockerfile("Dockerfile").last_stage("WORKDIR")
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert f"{root}/{file}" == f"{mounts['config']}/gateway.yaml"
    assert ROOT / file == KUBERNETES / "gateway.yaml"
    assert set(mounts) == {volume["name"] for volume in pod["volumes"]}
    config = yaml.safe_load((KUBERNETES / "gateway.yaml").read_text())
    assert "lifecycle" not in container  # the gateway itself waits until it is left out
    assert config["unready_seconds"] >= 5
    assert pod["terminationGracePeriodSeconds"] >= config["unready_seconds"] + config["drain_seconds"] + 5


def test_kubernetes_scales_by_a_series_that_exists(watched: tuple[Gateway, set[str]]) -> None:
    _, names = watched
    (metric,) = kinds()["HorizontalPodAutoscaler"]["spec"]["metrics"]
    (adapter,) = documents(KUBERNETES / "autoscaling/prometheus-adapter-values.yaml")
    (rule,) = adapter["rules"]["custom"]
    assert metric["pods"]["metric"]["name"] == rule["name"]["as"]
    assert series(rule["seriesQuery"]) <= names


def test_kserve_starts_the_gateway_with_arguments_that_it_knows(tmp_path: Path) -> None:
    (container,) = kinds()["ClusterServingRuntime"]["spec"]["containers"]
    (exposed,) = container["ports"]
    assert f"--http-port={exposed['containerPort']}" in container["args"]
    with pytest.raises(SystemExit) as refused:
        main([*container["args"], "--help"])  # argparse reads what stands before it
    assert refused.value.code == 0
    assert {probe["httpGet"]["port"] for probe in (container["readinessProbe"], container["livenessProbe"])} == {8080}


def test_series_are_read_as_the_tests_of_the_system_read_them(watched: tuple[Gateway, set[str]]) -> None:
    """A burst has left errors of every side, in every dialect."""
    gateway, _ = watched
    counted: Series = gateway.metrics()
    assert counted.values("dialect") == {"open_inference", "tf_serving", "grps", "openai"}
    assert {"OK", "NOT_FOUND", "INVALID_ARGUMENT", "INTERNAL"} <= counted.values("code")


@pytest.mark.parametrize(("lock", "extras"), LOCKS.items())
def test_what_images_bring_is_locked(lock: str, extras: Sequence[str]) -> None:
    """Every requirement is met by the version in the file, and every line has hashes."""
    text = (DEPLOY / f"locks/{lock}.txt").read_text(encoding="utf-8")
    locked = dict(re.findall(r"^([\w.-]+)==([\w.]+)(?: ;.*)? \\\n    --hash=sha256:", text, re.MULTILINE))
    assert len(locked) == len(re.findall(r"^[\w.-]+==", text, re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *(each for extra in extras for each in project["optional-dependencies"][extra])]
    for requirement in map(Requirement, wanted):
        assert requirement.specifier.contains(locked[requirement.name.replace("_", "-")]), requirement
    assert not re.search(r"(?:file|https?)://", text)


def test_the_chart_has_the_number() -> None:
    chart = yaml.safe_load((DEPLOY / "helm/Chart.yaml").read_text(encoding="utf-8"))
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
    values = yaml.safe_load((DEPLOY / "helm/values.yaml").read_text(encoding="utf-8"))
    assert (
        values.keys() | {"global"} == json.loads((DEPLOY / "helm/values.schema.json").read_text())["properties"].keys()
    )
