"""The section `residency`: which models are in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorgate.gateway.app import registries
from tensorgate.gateway.config import Config, ConfigError, load_config

MODELS = "models: {a: {backend: onnx, path: m, residency: {keep: 90s}}}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "m").mkdir()
    return tmp_path


def load(folder: Path, text: str) -> Config:
    file = folder / "gateway.yaml"
    file.write_text(MODELS + text)
    return load_config(file, registries())


def test_sizes_and_times_are_written_as_people_say_them(folder: Path) -> None:
    text = 'residency: {on_demand: true, keep: 10m, wait: 1.5, max_resident_bytes: {cpu: 16GiB, "cuda:0": 1000}}'
    config = load(folder, text)
    residency = config.residency
    assert (residency.keep, residency.wait) == (600.0, 1.5)
    assert residency.max_resident_bytes == {"cpu": 16 << 30, "cuda:0": 1000}
    assert config.models["a"].residency.keep == 90.0


@pytest.mark.parametrize(
    ("written", "seconds"), [("250ms", 0.25), ("2 h", 7200.0), ("1d", 86400.0), ("0", None), (0, 0.0)]
)
def test_durations(folder: Path, written: str | int, seconds: float | None) -> None:
    text = f"residency: {{on_demand: true, keep: {written!r}}}"
    if seconds is None:
        with pytest.raises(ConfigError, match="expected a number of seconds, or text like 30s, 10m or 2h"):
            load(folder, text)
    else:
        assert load(folder, text).residency.keep == seconds


@pytest.mark.parametrize(
    ("on_demand", "pin", "name", "is_on_demand", "is_pinned"),
    [
        ("false", "[]", "a", False, False),
        ("true", "[]", "a", True, False),
        ("true", "[a]", "a", False, True),
        ("['tenant-*']", "[]", "tenant-7", True, False),
        ("['tenant-*']", "[]", "Tenant-7", False, False),
        ("['tenant-*']", "['*-7']", "tenant-7", False, True),
        ("['m?']", "[]", "m12", False, False),
    ],
)
def test_names_and_patterns(
    folder: Path, on_demand: str, pin: str, name: str, is_on_demand: bool, is_pinned: bool
) -> None:
    residency = load(folder, f"residency: {{on_demand: {on_demand}, pin: {pin}}}").residency
    assert (residency.is_on_demand(name), residency.is_pinned(name)) == (is_on_demand, is_pinned)


@pytest.mark.parametrize(
    ("section", "line"),
    [
        ("{pin: [a]}", "residency.pin: without on_demand all models are in memory"),
        ("{max_resident_bytes: {cpu: 1GiB}}", "residency.max_resident_bytes: without on_demand"),
        ("{on_demand: true, max_resident_bytes: {cuda: 1GiB}}", "residency.max_resident_bytes.cuda: which GPU?"),
        ("{on_demand: true, max_resident_bytes: {gpu: 1}}", "residency.max_resident_bytes"),
        ("{on_demand: true, max_resident_bytes: {cpu: much}}", "expected a number of bytes"),
        ('{on_demand: true, prefetch: [{models: [a], at: "24:00"}]}', "residency.prefetch"),
        ("{on_demand: true, prefetch: [{models: [], at: '08:00'}]}", "residency.prefetch"),
        ("{on_demand: true, loads_at_once: 0}", "residency.loads_at_once"),
        ("{on_demand: true, keeps: 1m}", "keep"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(folder: Path, section: str, line: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(folder, f"residency: {section}")
    assert "gateway.yaml:2:" in str(error.value)
    assert line in str(error.value)
