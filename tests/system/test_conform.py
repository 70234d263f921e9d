"""The gateway keeps all that its protocols promise, as `tensorgate conform` asks for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import HOST, Gateway, command, started

pytest.importorskip("grpc")


@pytest.fixture(scope="module")
def v2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway that serves the models whose behaviour the cases of V2 know."""
    folder = tmp_path_factory.mktemp("conform")
    written = command("conform", "--dialect", "v2", "--repository", folder / "models")
    assert written.returncode == 0, written.stderr
    ports = [word for name in ("http", "grpc", "metrics") for word in (f"--{name}-port", "0")]
    with started(folder / "log", "--model-repository", str(folder / "models"), *ports) as gateway:
        gateway.wait_until_ready()
        yield gateway


def conform(gateway: Gateway, folder: Path, *options: str) -> dict[str, Any]:
    """The report on a gateway."""
    addresses = ("--http", gateway.url, "--grpc", f"{HOST}:{gateway.grpc_port}")
    asked = command("conform", *addresses, "--json", folder / "report.json", *options)
    assert asked.returncode == 0, asked.stdout + asked.stderr
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


def test_v2(v2: Gateway, tmp_path: Path) -> None:
    report = conform(v2, tmp_path, "--dialect", "v2")
    assert report["totals"] == {"passed": len(report["cases"]), "differs": 0, "not offered": 0}
    assert {each["transport"] for each in report["cases"]} == {"http", "grpc"}
    assert report["notes"] == []
