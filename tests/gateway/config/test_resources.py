"""How many threads of the host models get."""

import os
from pathlib import Path

import pytest

from tensorgate.gateway.app import registries
from tensorgate.gateway.config.file import parse_config
from tensorgate.gateway.config.options import config_class
from tensorgate.gateway.config.resources import Cpu, usable_cores


@pytest.mark.parametrize(
    ("own", "files", "cores"),
    [
        ("", {}, 16),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 16),
        ("0::/\n", {"cpu.max": "250000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "20000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "6400000 100000\n"}, 16),
        ("0::/a/b\n", {"a/cpu.max": "400000 100000", "a/b/cpu.max": "max 100000"}, 4),
        ("0::/a/b\n", {"a/cpu.max": "400000 100000", "a/b/cpu.max": "300000 100000", "cpu.max": "800000 100000"}, 3),
        ("0::/../elsewhere\n", {"cpu.max": "400000 100000"}, 4),
        ("0::/\n", {"cpu.max": "no numbers"}, 16),
        (
            "5:memory:/d\n4:cpu,cpuacct:/d\n",
            {"cpu,cpuacct/cpu.cfs_quota_us": "500000\n", "cpu,cpuacct/cpu.cfs_period_us": "100000\n"},
            5,
        ),
        ("4:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 16),
    ],
)
def test_cores_and_quotas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, files: dict[str, str], cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(16)))
    for name, text in files.items():
        file = tmp_path / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    if own:
        (tmp_path / "own").write_text(own)
    assert usable_cores(tmp_path / "own", tmp_path / "cgroup") == cores


def test_the_budget(tmp_path: Path) -> None:
    assert Cpu().budget() == usable_cores() >= 1
    config = parse_config("cpu: {threads: 3}\nrepositories: [.]", tmp_path / "g.yaml", config_class(registries()))
    assert config.cpu.budget() == 3
