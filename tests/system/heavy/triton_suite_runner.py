"""Runs tests of one unittest module and writes their outcomes as JSON: id -> null if it passed, else its traceback.

    python triton_suite_runner.py FILE MODULE [CLASS OR TEST…]

What the tests print may be anything, at any time. A test that its suite skips is left out. Run with the suite's folder
as working directory.
"""

from __future__ import annotations

import json
import sys
import types
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Outcomes = dict[str, "str | None"]


class Recorder(unittest.TestResult):
    """Keeps one outcome a test; of several failed subtests the first."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: Outcomes = {}
        self.skipped_ids: set[str] = set()

    def stopTest(self, test: unittest.TestCase) -> None:  # noqa: N802 - unittest's name
        super().stopTest(test)
        failed = {id_of(each): text for each, text in reversed([*self.errors, *self.failures])}
        if test.id() not in self.skipped_ids:
            self.outcomes[test.id()] = failed.get(test.id())

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802 - unittest's name
        super().addSkip(test, reason)
        self.skipped_ids.add(test.id())


class SharedMemoryManager:
    """Triton's library that looks into the memory between a server and its Python models' processes; here is none."""

    def __init__(self, name: str) -> None:
        self.name = name

    def free_memory(self) -> int:
        return 0


def stand_in() -> None:
    """What the suites import of Triton's build, or of a package that only what is not run here uses."""
    monitor: Any = types.ModuleType("triton_shm_monitor")
    monitor.SharedMemoryManager = SharedMemoryManager
    sys.modules["triton_shm_monitor"] = monitor
    sys.modules["psutil"] = types.ModuleType("psutil")


def id_of(test: unittest.TestCase) -> str:
    """Of a subtest: the test that it belongs to."""
    return getattr(test, "test_case", test).id()


def tests_of(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for each in suite:
        if isinstance(each, unittest.TestSuite):
            yield from tests_of(each)
        else:
            yield each


def main(file: str, module: str, *parts: str) -> None:
    sys.path.insert(0, "")
    stand_in()
    found = tests_of(unittest.defaultTestLoader.loadTestsFromName(module))
    chosen = [each for each in found if not parts or any(part in each.id().split(".") for part in parts)]
    recorder = Recorder()
    for test in chosen:
        test.run(recorder)
    Path(file).write_text(json.dumps(recorder.outcomes))


if __name__ == "__main__":
    main(*sys.argv[1:])
