"""A real Triton keeps what V2 promises, as `tensorgate conform` asks for it, but for what clients cope with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from heavy_tools import triton
from serving import HOST, command

pytestmark = pytest.mark.heavy


def test_a_real_triton_differs_only_in_what_is_recommended(tmp_path: Path) -> None:
    assert command("conform", "--dialect", "v2", "--repository", tmp_path / "models").returncode == 0
    with triton(tmp_path / "models", tmp_path / "log") as (http, grpc):
        addresses = ("--http", f"http://{HOST}:{http}", "--grpc", f"{HOST}:{grpc}")
        asked = command("conform", "--dialect", "v2", *addresses, "--json", tmp_path / "report.json")
    assert asked.returncode == 0, asked.stdout + asked.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    differing = [each for each in report["cases"] if each["outcome"] == "differs"]
    assert {each["level"] for each in differing} == {"recommended"}
    found = {each["what"] for case in differing for each in case["differences"]}
    assert found == {"status", "header content-type"}
