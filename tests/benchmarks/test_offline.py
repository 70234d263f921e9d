"""What travels to a machine without a network, and what is told of a run there."""

from __future__ import annotations

import io
import json
import struct
import tarfile
import zipfile
from pathlib import Path

import pytest

from benchmarks import fatbin, offline

KERNEL, PTX = 2, 1


def library(*programs: tuple[int, int, bytes]) -> bytearray:
    """An ELF file with one section of kernels: (kind, architecture, content)."""
    inner = b"".join(
        struct.pack("<HHIQ", kind, 0x101, 64, len(text)).ljust(28, b"\0")
        + struct.pack("<I", sm).ljust(36, b"\0")
        + text
        for kind, sm, text in programs
    )
    section = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(inner)) + inner
    names = b"\0.nv_fatbin\0.shstrtab\0"
    table = 64 + len(section) + len(names)
    head = b"\x7fELF\x02".ljust(0x28, b"\0") + struct.pack("<Q", table) + bytes(10) + struct.pack("<HHH", 64, 3, 2)
    headers = struct.pack("<IIQQQQIIQQ", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    headers += struct.pack("<IIQQQQIIQQ", 1, 0, 0, 0, 64, len(section), 0, 0, 0, 0)
    headers += struct.pack("<IIQQQQIIQQ", 12, 0, 0, 0, 64 + len(section), len(names), 0, 0, 0, 0)
    return bytearray(head.ljust(64, b"\0") + section + names + headers)


def test_kernels_of_other_architectures_are_blanked() -> None:
    made = library((KERNEL, 80, b"eighty" * 4), (KERNEL, 90, b"ninety" * 4), (PTX, 90, b"assembly"))
    assert [(entry.kind, entry.architecture, entry.nbytes) for entry in fatbin.entries(made)] == [
        (KERNEL, 80, 24),
        (KERNEL, 90, 24),
        (PTX, 90, 8),
    ]
    size = len(made)
    assert fatbin.keep(made, 90) == 24 + 8
    assert len(made) == size
    assert b"ninety" * 4 in made
    assert b"eighty" not in made
    assert b"assembly" not in made
    assert len(list(fatbin.entries(made))) == 3


def test_a_library_without_the_architecture_is_refused() -> None:
    with pytest.raises(ValueError, match="there are programs for sm_80, and none for sm_90"):
        fatbin.keep(library((KERNEL, 80, b"eighty")), 90)
    with pytest.raises(ValueError, match="no ELF file"):
        list(fatbin.entries(b"MZ"))


def test_what_travels_of_a_wheel(tmp_path: Path) -> None:
    wheel = tmp_path / "onnxruntime_gpu-1.0-py3-none-any.whl"
    both = library((KERNEL, 80, b"other"), (KERNEL, 90, b"its own"))
    files = {
        "onnxruntime/__init__.py": b"from . import capi",
        "onnxruntime/capi/libonnxruntime.so.1.0": b"for C",
        "onnxruntime/capi/libonnxruntime_providers_tensorrt.so": b"not there",
        "onnxruntime/capi/libonnxruntime_providers_cuda.so": bytes(both),
        "onnxruntime/tools/convert.py": b"not needed",
        "onnxruntime_gpu-1.0.dist-info/RECORD": b"of the installed one",
    }
    with zipfile.ZipFile(wheel, "w") as target:
        for name, content in files.items():
            target.writestr(name, content)
    archive = offline.packed(offline.cut(offline.members([wheel]), 90))
    with tarfile.open(fileobj=io.BytesIO(archive)) as unpacked:
        unpacked.extractall(tmp_path / "there", filter="data")
    found = {str(path.relative_to(tmp_path / "there")) for path in (tmp_path / "there").rglob("*") if path.is_file()}
    assert found == {"onnxruntime/__init__.py", "onnxruntime/capi/libonnxruntime_providers_cuda.so"}
    cut = (tmp_path / "there/onnxruntime/capi/libonnxruntime_providers_cuda.so").read_bytes()
    assert b"its own" in cut
    assert b"other" not in cut


def test_it_is_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime lies over the one that was there, whose module for another build goes."""
    packed, site, helpers = tmp_path / "packed", tmp_path / "site-packages", tmp_path / "helpers"
    for folder in (packed / "helpers", site / "onnxruntime/capi", helpers):
        folder.mkdir(parents=True)
    old = site / "onnxruntime/capi/onnxruntime_pybind11_state.so"
    old.write_bytes(b"of the CPU")
    (packed / "helpers/_numbers.abi3.so").write_bytes(b"compiled")
    for name in ("site", "client", "onnxruntime"):
        (packed / f"{name}.tar.xz").write_bytes(offline.packed([(f"{name}/module.py", name.encode())]))
    monkeypatch.setattr(offline, "PACKED", packed)
    monkeypatch.setattr(offline, "HELPERS", helpers)
    offline.unpack(site)
    assert not old.exists()
    assert (site / "onnxruntime/module.py").read_text() == "onnxruntime"
    assert (packed / "site/site/module.py").read_text() == "site"
    assert (packed / "client/client/module.py").read_text() == "client"
    assert (helpers / "_numbers.abi3.so").read_bytes() == b"compiled"
    (site / "onnxruntime/module.py").unlink()
    offline.unpack(site)
    assert not (site / "onnxruntime/module.py").exists()


STEPS = (
    offline.Step("good", ("-c", "print('3 passed in 1.0s')"), 60),
    offline.Step("bad", ("-c", "print('FAILED tests/test_a.py::test_b - no'); raise SystemExit(1)"), 60),
    offline.Step("endless", ("-c", "import time; print('begun', flush=True); time.sleep(60)"), 1),
)


def test_a_part_goes_on_and_tells_each_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(offline, "PARTS", {"suite": STEPS})
    assert offline.run("suite", tmp_path) == 1
    said = capsys.readouterr().out
    assert json.loads((tmp_path / "suite.json").read_text())["endless"]["status"] == "ended after 1 s"
    assert [line.split(",")[0] for line in said.splitlines() if not line.startswith(" ")] == [
        "ok     suite: good",
        "FAILED suite: bad",
        "FAILED suite: endless",
    ]
    assert "3 passed in 1.0s" in said
    assert "FAILED tests/test_a.py::test_b - no" in said
    assert offline.main(["summary", "--out", str(tmp_path)]) == 1


def test_all_parts_fit_into_calls_of_ten_minutes() -> None:
    assert len(offline.PARTS) <= 3
    assert all(sum(step.limit_s for step in steps) < 600 for steps in offline.PARTS.values())


def test_run_takes_a_part(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["run"], ["pack", "suite"]):
        with pytest.raises(SystemExit):
            offline.parse(words)
    assert "`run` takes a part: suite, engine, served" in capsys.readouterr().err
