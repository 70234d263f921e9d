"""What the comparison of numbers of doors makes of its options and its turns. No server is started here."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import cores, cores_plot
from benchmarks.cores import Turn
from benchmarks.servers import HOST, Failed, Family, Silent, listeners
from benchmarks.wrk import Load, Round


def turn(rate: float, cpu: float = 50.0) -> Turn:
    return Turn(rate, cpu, 1000.0, 2000.0, 100.0, 200.0)


RESULTS = {
    1: {"v2/16": {"one": [turn(100.0), turn(300.0), turn(200.0)], "triton": [turn(400.0), turn(400.0), turn(400.0)]}},
    2: {
        "v2/16": {
            "one": [turn(100.0), turn(200.0), turn(400.0)],
            "doors": [turn(150.0, 60.0), turn(400.0, 60.0), turn(600.0, 60.0)],
            "gateways": [turn(300.0), turn(400.0), turn(500.0)],
        }
    },
}


@pytest.mark.parametrize(
    ("text", "expected"), [("0", {0}), ("0-1", {0, 1}), ("0-2,5", {0, 1, 2, 5}), ("3,1", {1, 3}), ("7-7", {7})]
)
def test_cores_as_taskset_writes_them(text: str, expected: set[int]) -> None:
    assert cores.cores(text) == expected


@pytest.mark.parametrize("text", ["", "a", "1-", "2-1", "1,,2"])
def test_what_names_no_core(text: str) -> None:
    with pytest.raises(ValueError, match=r"invalid literal|names no core"):
        cores.cores(text)


def test_few_cores_are_shared_and_many_are_not() -> None:
    assert cores.shares([0, 1]) == ({0, 1}, {0, 1})
    assert cores.shares(range(8)) == ({0, 1, 2, 3}, {4, 5, 6, 7})


@pytest.mark.parametrize(("available", "expected"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])])
def test_doors_that_are_tried(available: int, expected: list[int]) -> None:
    assert cores.steps(available) == expected


def test_medians_are_of_each_figure_and_ratios_of_each_round() -> None:
    by_name = RESULTS[2]["v2/16"]
    assert cores.middle(by_name["doors"]) == turn(400.0, 60.0)
    assert cores.ratio(by_name["doors"], by_name["one"]) == 1.5
    assert cores.ratio(by_name["doors"], by_name["one"], "cpu_us_per_request") == 1.2


def test_the_table_has_a_line_for_each_contender() -> None:
    head, *body = cores.lines(RESULTS)
    assert head[-4:] == ("/ one", "/ gateways", "/ triton", "CPU / one")
    assert body[1] == ("1", "v2/16", "triton", "400", "50", "1.00", "2.00", "0.10", "0.20", "2.00", "-", "1.00", "1.00")
    assert body[3] == ("2", "v2/16", "doors", "400", "60", "1.00", "2.00", "0.10", "0.20", "1.50", "1.00", "-", "1.20")


def test_answers_of_ours_are_the_same_bytes() -> None:
    cores.check_answers("v2/16", {"one": b"a", "doors": b"a", "triton": b"b"})
    with pytest.raises(Failed, match="v2/16: one and doors"):
        cores.check_answers("v2/16", {"one": b"a", "doors": b"c"})


def test_more_doors_than_cores_are_refused() -> None:
    options = cores.parse(["--doors", "3", "--servers", "0", "--load", "0"])
    with pytest.raises(Failed, match="3 doors need as many cores"):
        cores.check_machine(options)


def test_the_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, picture = tmp_path / "cores.json", tmp_path / "cores.svg"
    options = {"servers": [0, 1], "load": [0, 1]}
    told = {"finished": "2026-01-02T03:04:05+00:00", "machine": {"cpu": "A <CPU>"}, "options": options}
    file.write_text(json.dumps({**told, **cores.facts(RESULTS)}))
    cores.main(["--from", str(file), "--plot", str(picture)])
    assert f"wrote {picture}" in capsys.readouterr().out
    root = ElementTree.fromstring(picture.read_text())  # noqa: S314 - our own
    space = {"s": "http://www.w3.org/2000/svg"}
    words = [text.text for text in root.findall("s:text", space)]
    assert "A <CPU>, cores shared with the load, 2026-01-02" in words
    assert "JSON, 16 floats" in words
    assert "JSON, 3 MB" not in words
    ours, gateways, triton = (line.attrib["points"].split() for line in root.findall("s:polyline", space))
    assert [len(line) for line in (ours, gateways, triton)] == [2, 1, 1]
    (left, low), (right, high) = (map(float, point.split(",")) for point in ours)
    assert left < right
    assert low > high  # 200 and 400 requests per second: y grows downwards


def test_a_file_without_these_cases_has_no_picture() -> None:
    with pytest.raises(ValueError, match=re.escape("v2/16")):
        cores_plot.draw({"medians": {"1": {}}})


def test_listeners_are_counted_by_port() -> None:
    with socket.create_server((HOST, 0), reuse_port=True) as first:
        port = first.getsockname()[1]
        assert listeners(port) == 1
        with socket.create_server((HOST, port), reuse_port=True):
            assert listeners(port) == 2
    assert listeners(port) == 0


def test_a_family_is_counted_as_a_whole() -> None:
    busy = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ntime.sleep(60)"
    parent = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {busy!r}])"
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stdout.readline() == b"\n"
        whole = Family("family", 0, process.pid)
        assert whole.cpu_us() >= 300_000
        assert 2 < whole.memory_mib() < 200
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


class Sometimes:
    """An `Ask` that hears nothing the first `silent` times."""

    def __init__(self, silent: int) -> None:
        self.silent = silent
        self.asked: list[object] = []

    def lay(self, folder: Path) -> None:
        pass

    def answer(self, contender: cores.Contender) -> bytes:
        self.asked.append(contender.http.pid)
        return b""

    def press(self, contender: cores.Contender, load: Load) -> Round:
        self.silent -= 1
        if self.silent >= 0:
            raise Silent("answered nothing")
        return Round(1.0, 2.0, 3.0, 4.0)


LOADS = (Load(1, 2, {0}), Load(1, 1, {0}))


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was started and stopped in place of servers."""
    told: list[str] = []

    @contextmanager
    def started(name: str, doors: int, folder: Path, on: set[int]) -> Iterator[cores.Contender]:
        family = Family(name, 0, len(told))
        told.append(f"start {name}")
        yield cores.Contender(name, family, family)
        told.append(f"stop {name}")

    monkeypatch.setattr(cores, "started", started)
    return told


def test_a_triton_that_stands_still_is_started_anew(events: list[str], tmp_path: Path) -> None:
    field = cores.Field(1, {0}, tmp_path)
    ask = Sometimes(1)
    field.start("one")
    turn = field.turn(ask, field.start("triton"), LOADS)
    assert turn == Turn.of(Round(1.0, 2.0, 3.0, 4.0), Round(1.0, 2.0, 3.0, 4.0))
    assert events == ["start one", "start triton", "stop triton", "start triton"]
    assert [each.name for each in field] == ["one", "triton"]
    assert ask.asked == [[*field][1].http.pid]  # its answer is compared again
    field.close()
    assert events[4:] == ["stop one", "stop triton"]


@pytest.mark.parametrize(("name", "silent"), [("triton", 2), ("doors", 1)])
def test_silence_of_ours_or_for_good_ends_the_comparison(
    name: str, silent: int, events: list[str], tmp_path: Path
) -> None:
    field = cores.Field(2, {0, 1}, tmp_path)
    contender = field.start(name)
    with pytest.raises(Silent):
        field.turn(Sometimes(silent), contender, LOADS)
