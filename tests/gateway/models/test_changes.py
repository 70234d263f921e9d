"""What another configuration would change, for people and for programs."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tensorgate.gateway.app import registries
from tensorgate.gateway.cli.main import main
from tensorgate.gateway.config import Config, load_config
from tensorgate.gateway.models.changes import changes, effective

ROOT = Path(__file__).parents[3]
TENSORS = {
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1]}],
}


def python(**more: Any) -> dict[str, Any]:
    return {"backend": "python", "path": "models.py:Model", **TENSORS, **more}


BEFORE: dict[str, Any] = {
    "listen": {"http": [{"bind": "0.0.0.0:8000"}]},
    "models": {"a": python(), "b": python(labels={"stable": 1, "canary": 1}), "c": python(), "d": python()},
    "routes": {
        "r": [{"model": "b", "label": "stable", "weight": 90}, {"model": "b", "label": "canary", "weight": 10}],
        "s": [{"model": "c"}],
    },
}
AFTER: dict[str, Any] = {
    "listen": {"http": [{"bind": "0.0.0.0:9000"}]},
    "models": {
        "a": python(max_queue_size=7, preprocess=[{"op": "cast", "input": "x", "to": "FP32"}], instances=1),
        "b": python(labels={"canary": 1}),
        "d": python(),
        "e": python(),
    },
    "routes": {
        "r": {
            "targets": [{"model": "b", "label": "canary", "weight": 10}, {"model": "e", "weight": 5}],
            "timeout_ms": 9,
        },
        "t": [{"model": "e"}],
    },
    "limits": {"max_body_bytes": 1000, "max_binary_bytes": 2000},
    "readiness": "lenient",
}
LINES = """\
models
  ~ a (reloaded)
      max_queue_size: 512 -> 7
      preprocess: [] -> [{"op": "cast", "input": "x", "to": "FP32"}]
  ~ b (adjusted)
      labels.stable: 1 -> null
  - c
  + e
routes
  ~ r
      b stable: weight 90 -> none
      e: weight none -> 5
      timeout_ms: 0 -> 9
  - s
      c: weight 100 -> none
  + t
      e: weight none -> 100
settings
  limits.max_body_bytes: 67108864 -> 1000
  readiness: "strict" -> "lenient"
only after a restart
  listen.http[0].bind: "0.0.0.0:8000" -> "0.0.0.0:9000"
  limits.max_binary_bytes: 1073741824 -> 2000
models that stay as they are: 1
"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "models.py").write_text("")
    for name, config in (("old", BEFORE), ("new", AFTER)):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    return str(tmp_path / "old.yaml"), str(tmp_path / "new.yaml")


def test_for_people(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *files]) == 1
    assert capsys.readouterr().out == LINES


def test_for_programs(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--json", *files]) == 1
    told = json.loads(capsys.readouterr().out)
    assert {kind: list(models) for kind, models in told["models"].items()} == {
        "added": ["e"], "removed": ["c"], "reloaded": ["a"], "adjusted": ["b"], "retried": [], "unchanged": ["d"]
    }  # fmt: skip
    assert told["models"]["adjusted"]["b"]["keys"] == [{"key": "labels.stable", "before": 1, "after": None}]
    assert told["routes"]["r"] == {
        "change": "changed",
        "weights": {"b stable": {"before": 90, "after": None}, "e": {"before": None, "after": 5}},
        "keys": [{"key": "timeout_ms", "before": 0, "after": 9}],
    }
    assert [each["key"] for each in told["settings"]] == ["limits.max_body_bytes", "readiness"]
    assert [each["key"] for each in told["needs_restart"]] == ["listen.http[0].bind", "limits.max_binary_bytes"]


def test_processes_need_a_restart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "models.py").write_text("")
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text(yaml.safe_dump(BEFORE))
    new.write_text(yaml.safe_dump(BEFORE | {"processes": {"doors": 4}}))
    assert main(["plan", str(old), str(new)]) == 1
    assert "only after a restart\n  processes.doors: 1 -> 4\n" in capsys.readouterr().out


def test_nothing_changes(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    old, _ = files
    assert main(["plan", old, old]) == 0
    assert capsys.readouterr().out == "nothing changes\n"


@pytest.mark.parametrize("which", [0, 1])
def test_a_wrong_file(files: tuple[str, str], which: int, capsys: pytest.CaptureFixture[str]) -> None:
    Path(files[which]).write_text("models: {a: {backend: onyx}}\n")
    assert main(["plan", *files]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"{files[which]}:1:23: models.a.backend: ")
    assert main(["plan", *files[:which], f"{files[which]}.absent", *files[which + 1 :]]) == 2


def test_a_model_of_a_repository_that_cannot_be_read(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "repository/broken").mkdir(parents=True)
    (tmp_path / "repository/broken/model.yaml").write_text("backend: onyx\n")
    Path(files[1]).write_text(yaml.safe_dump(BEFORE | {"repositories": ["repository"]}))
    assert main(["plan", *files]) == 2
    assert "models.broken: " in capsys.readouterr().err


def test_what_stood_in_the_file_before(files: tuple[str, str]) -> None:
    """Paths of a text from stdin start where the new file lies."""
    old, new = files
    command = [sys.executable, "-m", "tensorgate", "plan", "-", new]
    told = subprocess.run(command, cwd=ROOT, input=Path(old).read_text(), capture_output=True, text=True, timeout=60)
    assert (told.returncode, told.stdout, told.stderr) == (1, LINES, "")


def test_whether_there_are_shares_is_for_a_restart_and_what_they_weigh_is_not(tmp_path: Path) -> None:
    def config(shares: Any) -> Config:
        model = {"backend": "python", "path": "models.py:A"}
        ports = {"http": [{"bind": "127.0.0.1:0", "name": "front"}]}
        (tmp_path / "models.py").write_text("")
        (tmp_path / "gateway.yaml").write_text(
            yaml.safe_dump({"listen": ports, "models": {"a": model}, "shares": shares})
        )
        return load_config(tmp_path / "gateway.yaml", registries())

    none, one, two = config(None), *[config({"by": "listener", "weights": {"front": weight}}) for weight in (1, 2)]
    found = changes(one, two, one.models, two.models)
    assert [each.key for each in found.settings] == ["shares.weights.front"]
    assert not found.restart
    assert effective(one, two).shares == two.shares
    for before, after in ((none, one), (one, none)):
        found = changes(before, after, before.models, after.models)
        assert [each.key for each in found.restart] == ["shares"]
        assert effective(before, after).shares == before.shares
