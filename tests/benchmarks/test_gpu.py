"""The GPU's benchmark as a command: on the host, so short that only the words count; its file and its picture."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from benchmarks import gpu, gpu_engine, gpu_plot, gpu_served, report
from benchmarks.gpu_setting import Report, shown
from tensorgate.backends.execution.device import cuda_devices

SHORT = ("--rounds", "1", "--seconds", "0.02")
ON_THE_HOST = ("--device", "cpu", "--backends", "onnx")
WITHOUT_DOORS = [name for name in gpu.SECTIONS if name != "served"]
"""The other one listens on ports: tests/system/test_benchmarks.py runs it."""


@pytest.fixture(autouse=True)
def results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Where the command writes; what it sets for its process is undone."""
    before = sys.getswitchinterval()
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    yield tmp_path
    sys.setswitchinterval(before)


def test_every_section_without_doors(capsys: pytest.CaptureFixture[str], results: Path) -> None:
    assert gpu.main([*ON_THE_HOST, "--sections", *WITHOUT_DOORS, *SHORT]) == 0
    said = capsys.readouterr().out
    assert all(f"\n{name}: " in said for name in WITHOUT_DOORS)
    assert said.splitlines()[-1] == "everything ran"
    (file,) = results.glob("gpu-*.json")
    content = json.loads(file.read_text())
    figures = content["figures"]
    assert {figure["section"] for figure in figures} == set(WITHOUT_DOORS)
    assert all(figure["value"] == figure["value"] and figure["unit"] for figure in figures)
    assert {figure["mark"] for figure in figures if figure["section"] == "throughput"} == {"not judged"}
    assert (content["failed"], content["missed"]) == ([], [])
    assert content["machine"]["device"] == "cpu"
    table = said[said.rindex("\nsection ") :]
    assert all(figure["name"] in table for figure in figures)


def test_a_section_that_fails_is_told_and_the_others_go_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any) -> Any:
        raise RuntimeError("no room")

    monkeypatch.setattr(gpu_engine, "open_raw", refuse)
    wanted = ["throughput", "crossover"]
    assert gpu.main([*ON_THE_HOST, "--sections", *wanted, *SHORT]) == 2
    said = capsys.readouterr().out
    assert "FAILED: onnx resnet50 4: RuntimeError: no room" in said
    assert "FAILED: onnx mlp 16: RuntimeError: no room" in said
    assert "32 x 32" in said


@pytest.mark.skipif(cuda_devices() > 0, reason="there is a GPU")
def test_without_a_gpu_it_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main([]) == 2
    said = capsys.readouterr().out
    assert "missing: a GPU: CuPy" in said
    assert "FAILED: there is no GPU to be used here" in said


def test_marks_on_a_gpu() -> None:
    found = Report(judged=True)
    assert [found.mark("rows/s", value, 0.95) for value in (0.96, 0.94)] == ["reached", "missed"]
    assert found.missed == ["rows/s: 0.94, must reach 0.95"]
    assert Report(judged=False).mark("rows/s", 0.1, 0.95) == ""


def test_figures_in_one_table() -> None:
    found = Report(judged=True)
    found.add("throughput", "onnx resnet50, batch 32, whole batches", 4100.0, "rows/s", 4200.0, "reached")
    found.add("memory", "onnx mlp, unloaded", 1.25, "MiB")
    lines = found.summary().splitlines()
    first = "throughput onnx resnet50, batch 32, whole batches 4,100 rows/s 4,200 0.98 reached"
    assert [" ".join(line.split()) for line in lines[1:]] == [first, "memory onnx mlp, unloaded 1.25 MiB - -"]
    assert [shown(value) for value in (12345.6, 0.01234, 99.94)] == ["12,346", "0.0123", "99.9"]


# ---------------------------------------------------------------------------------------------------------- over a wire


def test_requests_hold_the_same_image_in_every_form() -> None:
    """600 KB where it travels as bytes, 3 MB as JSON."""
    x = np.random.default_rng(1).standard_normal((1, 3, 224, 224), np.float32)
    made = {each.name: each for each in gpu_served.requests(x)}
    sizes = {name: len(each.message) / 1e6 for name, each in made.items()}
    assert all(0.6 < size < 0.604 for name, size in sizes.items() if "JSON" not in name)
    assert all(2.8 < size < 3.4 for name, size in sizes.items() if "JSON" in name)
    for each in made.values():
        if not each.method:
            head, _, body = each.message.partition(b"\r\n\r\n")
            assert f"Content-Length: {len(body)}".encode() in head.split(b"\r\n")
            assert head.startswith(f"POST {each.path} HTTP/1.1\r\n".encode())


def test_a_binary_answer_is_read() -> None:
    y = np.array([[1.5, -2.0]], np.float32)
    output = {"name": "y", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}
    head = json.dumps({"model_name": "identity", "outputs": [output]}, separators=(",", ":")).encode()
    np.testing.assert_array_equal(gpu_served._read_binary(head + y.tobytes()), y)


def test_what_the_gateway_tells_of_the_bus_and_the_gpu() -> None:
    text = (
        "# TYPE tensorgate_device_copied_bytes counter\n"
        'tensorgate_device_copied_bytes_total{model="m",version="1",direction="in"} 4096.0\n'
        'tensorgate_device_copied_bytes_total{model="m",version="1",direction="out"} 64.0\n'
        'tensorgate_gpu_utilization_ratio{device="cuda:0",gpu_uuid="GPU-1",name="NVIDIA H100"} 0.87\n'
    )
    assert gpu_served.COPIED.findall(text) == [('direction="in"', "4096.0"), ('direction="out"', "64.0")]
    assert gpu_served.BUSY.findall(text) == ["0.87"]


# ---------------------------------------------------------------------------------------------------------- the picture


def content(*figures: dict[str, Any]) -> dict[str, Any]:
    return {"figures": list(figures), "machine": {"gpu": "A <GPU>", "cpu": "a CPU"}, "finished": "2026-01-02T03:04:05"}


def figure(section: str, name: str, value: float, against: float | None) -> dict[str, Any]:
    return {"section": section, "name": name, "value": value, "unit": "rows/s", "against": against, "mark": ""}


def test_a_picture_has_a_bar_for_each_rate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = content(
        figure("served", "over HTTP", 50.0, 100.0),
        figure("throughput", "whole batches", 99.0, 100.0),
        figure("latency", "no rate", 5.0, 6.0),
        figure("images", "compared with nothing", 5.0, None),
    )
    file, picture = tmp_path / "gpu.json", tmp_path / "gpu.svg"
    file.write_text(json.dumps(made))
    assert gpu_plot.main([str(file), str(picture)]) == 0
    root = ElementTree.fromstring(picture.read_text())  # noqa: S314
    space = {"s": "http://www.w3.org/2000/svg"}
    words = [text.text for text in root.findall("s:text", space)]
    assert "A <GPU>, 2026-01-02" in words
    assert [word for word in words if word in ("whole batches", "over HTTP", "no rate")] == [
        "whole batches",
        "over HTTP",
    ]
    whole, half = (float(bar.attrib["width"]) for bar in root.findall("s:rect", space)[1:])
    assert half / whole == pytest.approx(50 / 99, abs=1e-3)
    assert any(re.match(r"0\.99  99 rows/s", word or "") for word in words)


def test_a_run_without_rates_has_no_picture() -> None:
    with pytest.raises(ValueError, match="no rate"):
        gpu_plot.draw(content(figure("latency", "p50", 5.0, 6.0)))
