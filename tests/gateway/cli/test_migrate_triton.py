"""`tensorgate import triton --from-command-line`: what a server was told, and what becomes of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from import_outcome import Outcome
from onnx import TensorProto, helper

from tensorgate.adapters.importers.common import UsageError
from tensorgate.adapters.importers.triton_command_line import read_command_line
from tensorgate.adapters.importers.triton_command_line.flags import TRITON_FLAGS
from tensorgate.gateway.cli.main import main


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """Runs the command in a folder with a repository `models` of one model, m; the words are the old server's."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [x], [y])
    file = tmp_path / "models/m/1/model.onnx"
    file.parent.mkdir(parents=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), file)
    monkeypatch.chdir(tmp_path)

    def go(flags: str, *words: str) -> Outcome:
        line = f"/opt/tritonserver/bin/tritonserver --model-repository=models {flags}"
        status = main(["import", "triton", "--from-command-line", line, *words])
        told = capsys.readouterr()
        return Outcome(status, told.out, told.err.splitlines())

    return go


USUAL: dict[str, Any] = {
    "listen": {
        "http": [{"bind": "0.0.0.0:8000"}],
        "grpc": [{"bind": "0.0.0.0:8001"}],
        "metrics": {"bind": "0.0.0.0:8002"},
    },
    "server_name": "triton",
}


def listening(**ports: Any) -> dict[str, Any]:
    return {"listen": {key: value for key, value in {**USUAL["listen"], **ports}.items() if value is not None}}


TLS = "--grpc-server-cert c --grpc-server-key k --grpc-root-cert r"
SECTIONS: list[tuple[str, dict[str, Any]]] = [
    ("", {}),
    ("--http-port 9000", listening(http=[{"bind": "0.0.0.0:9000"}])),
    ("--http-port=9000 --http-port 9001", listening(http=[{"bind": "0.0.0.0:9001"}])),
    (
        "--http-address 127.0.0.1 --grpc-address ::1",
        listening(http=[{"bind": "127.0.0.1:8000"}], grpc=[{"bind": "[::1]:8001"}], metrics={"bind": "127.0.0.1:8002"}),
    ),
    ("--allow-http=false", listening(http=[])),
    ("--allow-grpc=0 --allow-metrics False", listening(grpc=[], metrics=None)),
    ("--metrics-port 1 --metrics-address 127.0.0.1", listening(metrics={"bind": "127.0.0.1:1"})),
    (
        f"--grpc-use-ssl=1 {TLS}",
        listening(grpc=[{"bind": "0.0.0.0:8001", "tls": {"certificate": "c", "key": "k"}}]),
    ),
    (
        f"--grpc-use-ssl-mutual=true {TLS.replace(' k', ' /k')}",
        listening(grpc=[{"bind": "0.0.0.0:8001", "tls": {"certificate": "c", "key": "/k", "client_ca": "r"}}]),
    ),
    (TLS, {}),
    ("--id gpu1", {"server_name": "gpu1"}),
    ("--strict-readiness false", {"readiness": "lenient"}),
    ("--strict-readiness 1", {}),
    ("--allow-client-shm=true", {"shared_memory": {"system": True, "cuda": True}}),
    (
        "--http-header-forward-pattern '^x-.*' --grpc-header-forward-pattern \"y: \"",
        {"open_inference": {"http_header_forward_pattern": "^x-.*", "grpc_header_forward_pattern": "y: "}},
    ),
    ("--http-max-input-size=1000", {"limits": {"max_body_bytes": 1000}}),
    ("--exit-timeout-secs=5", {"drain_seconds": 5}),
    ("--cache-config local,size=100", {"response_cache": {"max_bytes": 100}}),
    ("--response-cache-byte-size=100", {"response_cache": {"max_bytes": 100}}),
    ("--trace-file t.json --trace-rate 5", {"tracing": {"file": "t.json", "rate": 5}}),
    (
        "--trace-config triton,file=/t.json --trace-config level=TIMESTAMPS --trace-config count=7 "
        "--trace-config triton,log-frequency=3 --trace-config level=OFF",
        {"tracing": {"file": "/t.json", "level": ["TIMESTAMPS"], "count": 7, "log_frequency": 3}},
    ),
    (
        "--trace-config mode=opentelemetry --trace-config rate=4 "
        "--trace-config opentelemetry,url=http://c:4318/v1/traces",
        {"opentelemetry": {"endpoint": "http://c:4318", "ratio": 0.25}},
    ),
]


@pytest.mark.parametrize(("flags", "differs"), SECTIONS, ids=[flags for flags, _ in SECTIONS])
def test_flags(run: Callable[..., Outcome], flags: str, differs: dict[str, Any]) -> None:
    outcome = run(flags)
    assert outcome.status == 0, outcome.report
    config = outcome.config
    assert list(config.pop("models")) == ["m"]
    assert config == USUAL | differs


CONTROL: list[tuple[str, dict[str, Any]]] = [
    ("--model-control-mode=poll", {"mode": "poll", "poll_seconds": 15}),
    ("--model-control-mode POLL --repository-poll-secs=3", {"mode": "poll", "poll_seconds": 3}),
    ("--model-control-mode=explicit", {"mode": "explicit", "load": []}),
    ("--model-control-mode=explicit --load-model=m --load-model m", {"mode": "explicit", "load": ["m"]}),
    ("--model-control-mode=explicit --load-model=*", {"mode": "explicit", "load": ["*"]}),
]


@pytest.mark.parametrize(("flags", "control"), CONTROL, ids=[flags for flags, _ in CONTROL])
def test_a_repository_whose_models_come_and_go_is_served_as_it_is(
    run: Callable[..., Outcome], capsys: pytest.CaptureFixture[str], flags: str, control: dict[str, Any]
) -> None:
    outcome = run(flags)
    assert (outcome.status, outcome.report[-1]) == (0, "1 of 1 models imported")
    assert outcome.config == USUAL | {"model_control": control, "repositories": ["models"]}
    Path("gateway.yaml").write_text(outcome.yaml)
    assert (main(["check", "gateway.yaml"]), capsys.readouterr().err) == (0, "")


def test_what_is_imported_passes_the_check(run: Callable[..., Outcome], capsys: pytest.CaptureFixture[str]) -> None:
    flags = " ".join(flags for flags, _ in SECTIONS if "ssl" not in flags and "opentelemetry" not in flags)
    assert run(flags, "-o", "gateway.yaml").status == 0
    assert main(["check", "--load", "gateway.yaml"]) == 0
    assert capsys.readouterr().out == "gateway.yaml: ok, 1 models\n"


@pytest.mark.parametrize("name", TRITON_FLAGS)
def test_every_flag_is_told(run: Callable[..., Outcome], name: str) -> None:
    flag = TRITON_FLAGS[name]
    value = {"text": "x", "number": "7", "truth": "true", "nothing": ""}[flag.kind]
    value = {"model-control-mode": "explicit", "cache-config": "local,size=1"}.get(name, value)
    control = "--model-control-mode=explicit" if name == "load-model" else ""
    Path("x").mkdir()  # a second repository
    files = TLS if name.startswith("grpc-use-ssl") else ""
    outcome = run(f"{control} {files} --{name}" + (f"={value}" if value else ""))
    told = [line for line in outcome.report if line.startswith(f"command line: --{name}")]
    begins = {"mapped": "-> ", "ignored": "is ignored: ", "refused": "is refused: "}[flag.fate]
    assert all(begins in line for line in told), told
    assert told, outcome.report
    assert outcome.status == int(flag.fate == "refused"), outcome.report


def test_what_is_refused_when_it_is_on(run: Callable[..., Outcome]) -> None:
    assert run("--rate-limit=off --model-namespacing=false --allow-vertex-ai 0").status == 0
    outcome = run("--cache-config redis,host=h --http-restricted-api=inference:key=SECRET --grpc-use-ssl=true")
    assert outcome.status == 1
    assert "redis is no cache of this server" in outcome.said("is refused: redis")
    assert "auth" in outcome.said("--http-restricted-api is refused")
    assert "--grpc-server-cert=FILE" in outcome.said("--grpc-use-ssl=true is refused: it needs")
    assert "SECRET" not in outcome.yaml + "".join(outcome.report)
    assert "# command line: --http-restricted-api is refused" in outcome.yaml


def test_unknown_flags(run: Callable[..., Outcome]) -> None:
    outcome = run("--strict-redines false word -v --new=1")
    assert outcome.said("--strict-redines ").endswith("has no such flag; did you mean --strict-readiness?")
    assert [line.split()[2] for line in outcome.report if "no such flag" in line] == [
        "--strict-redines", "word", "-v", "--new=1"
    ]  # fmt: skip
    assert (outcome.status, outcome.config["server_name"]) == (0, "triton")


USAGE = {
    "--http-port=x": "--http-port=x: expected a number",
    "--http-port=70000": "--http-port=70000: expected a port, from 0 to 65535",
    "--allow-http=maybe": "--allow-http=maybe: expected true or false",
    "--http-port": "--http-port: needs a value",
    "--model-control-mode=some": "--model-control-mode=some: expected none, poll or explicit",
    "--load-model=m": "--load-model: needs --model-control-mode=explicit",
    "--http-max-input-size=-1": "--http-max-input-size=-1: expected a whole number, at least 1",
    "'": "the command line cannot be read: no closing quotation",
}


@pytest.mark.parametrize("flags", USAGE)
def test_what_the_old_server_would_not_start_with(run: Callable[..., Outcome], flags: str) -> None:
    outcome = run(flags, "-o", "gateway.yaml")
    assert (outcome.status, outcome.report, Path("gateway.yaml").exists()) == (2, [USAGE[flags]], False)


def test_repositories(run: Callable[..., Outcome], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Of two with the same model Triton serves neither; a folder takes the place of all that the line names."""
    (tmp_path / "other/m/1").mkdir(parents=True)
    outcome = run("--model-store other")
    assert (outcome.status, list(outcome.config["models"])) == (1, ["m"])
    assert "Triton would serve neither" in outcome.said("NOT IMPORTED")
    assert run("--model-store elsewhere", "models").status == 0
    assert run("--model-store elsewhere").report[-1] == "elsewhere: no such file or directory"
    assert (main(["import", "triton"]), "nothing to import" in capsys.readouterr().err) == (2, True)


def test_without_a_command_line_the_file_offers_what_it_could_have_had(
    run: Callable[..., Outcome], capsys: pytest.CaptureFixture[str]
) -> None:
    """Every offer is a line that can be taken as it is."""
    assert main(["import", "triton", "models", "-o", "gateway.yaml"]) == 0
    text = Path("gateway.yaml").read_text()
    assert {**yaml.safe_load(text), "models": None} == USUAL | {"models": None}
    offered = [line for line in text.splitlines() if line.startswith("# ") and ": " in line and "  # " in line]
    assert len(offered) == 4
    taken = text
    for line in offered:
        taken = taken.replace(line, line.removeprefix("# "))
    Path("gateway.yaml").write_text(taken)
    capsys.readouterr()
    assert (main(["check", "gateway.yaml"]), capsys.readouterr().err) == (0, "")


def test_the_help_tells_of_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["import", "triton", "--flags"])
    lines = capsys.readouterr().out.splitlines()
    assert end.value.code == 0
    for name, flag in TRITON_FLAGS.items():
        assert any(line.split()[:1] == [f"--{name}"] and line.endswith(flag.becomes) for line in lines), name


WORDS = st.text() | st.sampled_from(sorted(TRITON_FLAGS)).flatmap(lambda name: st.text().map(lambda t: f"--{name}{t}"))


@given(st.lists(WORDS).map(" ".join))
def test_a_command_line_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(UsageError):
        assert all(name in TRITON_FLAGS for name in read_command_line(text).given)
