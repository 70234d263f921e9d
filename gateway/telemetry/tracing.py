"""Traces of single requests: who is traced (settings of the server, and of models), and the file that they go to.

A model that has no setting of its own follows the server's, value by value. Every `trace_rate`-th request that ends is
written, until `trace_count` of them are. While nothing is to be written, a request pays for one look at `Tracer.on`.

Settings, and what is said of wrong ones, are in Triton's vocabulary. The file is Triton's, too: a JSON array, complete
after every trace, of two objects for each. `log_frequency` above 0 begins another file (`trace_file`.0, .1 …) after
that many. Source: Triton's trace extension.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

from tensorgate.gateway.contract.canonical import InferRequest
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.tensor import NOTHING
from tensorgate.gateway.telemetry.statistics import Compute

log = logging.getLogger(__name__)

OFF: Final = ("OFF",)
TIMESTAMPS: Final = "TIMESTAMPS"
DEFAULTS: Final[Mapping[str, Any]] = {"trace_level": OFF, "trace_rate": 1000, "trace_count": -1, "log_frequency": 0}
"""Setting -> its value as long as nobody says otherwise: levels, and numbers."""

_LEVELS: Final = ("OFF", TIMESTAMPS, "TENSORS")
_RANGES: Final = {"trace_rate": (0, 2**32 - 1), "trace_count": (-1, 2**31 - 1), "log_frequency": (0, 2**32 - 1)}
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,20}")
_MAX_WAITING: Final = 4096
"""Traces that may wait for the disk; more are dropped."""
_MAX_ID: Final = 256
"""Characters of a request's id that are kept."""


class Tracer:
    """Whether the requests of one model are traced. This one says no; `RequestTracing` makes those that may say yes."""

    on = False

    def note(
        self, request: InferRequest, began: float, started: float | None, compute: Compute | None, ended: float
    ) -> None:
        """A request has ended. Times in seconds of time.monotonic(): accepted, run (None: never), last answer."""


class _ModelTracer(Tracer):
    __slots__ = ("_model", "_tracing", "on")

    def __init__(self, tracing: RequestTracing, model: str) -> None:
        self._tracing = tracing
        self._model = model
        self.on = False

    def note(
        self, request: InferRequest, began: float, started: float | None, compute: Compute | None, ended: float
    ) -> None:
        self._tracing.note(self._model, request, _moments(began, started, compute, ended))


class Sink(Protocol):
    """Where traces go."""

    def write(self, trace: str, frequency: int) -> None:
        """One trace, as JSON objects with commas between them; at most `frequency` of them in a file, 0: any number."""
        ...

    def close(self) -> None:
        """Write what waits."""
        ...


class RequestTracing:
    """All settings. `name` is the file as the operator calls it, "" with no `sink`: then nothing is ever written, and
    nobody can ask for it. For the event loop.
    """

    def __init__(self, sink: Sink | None = None, name: str = "", initial: Mapping[str, Any] = NOTHING) -> None:
        self._sink = sink
        self._name = name
        self._initial = {**DEFAULTS, **initial}
        self._server = dict(self._initial)
        self._models: dict[str, dict[str, Any]] = {}
        self._tracers: dict[str, _ModelTracer] = {}
        self._seen: dict[str, int] = {}
        self._written = 0

    def tracer(self, model: str) -> Tracer:
        """The one of this model."""
        tracer = self._tracers.get(model)
        if tracer is None:
            tracer = self._tracers[model] = _ModelTracer(self, model)
            self._refresh()
        return tracer

    def settings(self, model: str) -> Mapping[str, tuple[str, ...]]:
        """What holds for a model, or for the server if that is "". `trace_count` is what is left of it."""
        values = {key: self._owner(model, key)[key] for key in DEFAULTS}
        numbers = {key: (str(value),) for key, value in values.items() if key != "trace_level"}
        return {
            "trace_level": values["trace_level"],
            **numbers,
            "trace_file": (self._name,),
            "trace_mode": ("triton",),
        }

    def change(self, model: str, changes: Mapping[str, tuple[str, ...] | None]) -> None:
        """Set values of a model or the server. None clears one: the server's is what it was at first, a model's the
        server's. Keys that are none of DEFAULTS, and lists without values, are ignored. Raises InvalidArgument, and
        then changes nothing.
        """
        checked = {key: _checked(key, values) for key, values in changes.items() if key in DEFAULTS and values != ()}
        if self._sink is None and checked.get("trace_level") not in (None, DEFAULTS["trace_level"]):
            raise InvalidArgument("Attempting to set invalid trace setting :trace file name is not given")
        own = self._models.setdefault(model, {}) if model else self._server
        for key, value in checked.items():
            if value is not None:
                own[key] = value
            elif model:
                own.pop(key, None)
            else:
                own[key] = self._initial[key]
        if model and not own:
            del self._models[model]
        self._refresh()

    def note(self, model: str, request: InferRequest, moments: Mapping[str, float]) -> None:
        """A request of a traced model has ended; every rate-th is written."""
        scope = model if model in self._models else ""
        seen = self._seen.get(scope, 0) + 1
        if seen < self._owner(model, "trace_rate")["trace_rate"]:
            self._seen[scope] = seen
            return
        self._seen[scope] = 0
        counting = self._owner(model, "trace_count")
        if counting["trace_count"] > 0:
            counting["trace_count"] -= 1
            self._refresh()
        self._written += 1
        if self._sink is not None:
            frequency = self._owner(model, "log_frequency")["log_frequency"]
            self._sink.write(_text(self._written, request, moments), frequency)

    def close(self) -> None:
        """Write what waits."""
        if self._sink is not None:
            self._sink.close()

    def _owner(self, model: str, key: str) -> dict[str, Any]:
        """Whose value holds: the model's, if it has one."""
        own = self._models.get(model)
        return own if own is not None and key in own else self._server

    def _refresh(self) -> None:
        for model, tracer in self._tracers.items():
            values = {key: self._owner(model, key)[key] for key in DEFAULTS}
            wanted = TIMESTAMPS in values["trace_level"] and values["trace_rate"] and values["trace_count"]
            tracer.on = self._sink is not None and bool(wanted)


def _checked(key: str, values: tuple[str, ...] | None) -> Any:
    """A setting's new value. Raises InvalidArgument."""
    if values is None:
        return None
    if key == "trace_level":
        return _checked_levels(values)
    text = values[0][:_MAX_ID]
    if not _NUMBER.fullmatch(text.strip()):
        raise InvalidArgument(f"Unable to parse '{key}', got: {text}")
    number = int(text)
    least, most = _RANGES[key]
    if key == "trace_count" and number < least:
        raise InvalidArgument(f"Unable to parse '{key}'. Expecting value >= {least}, got:{text}")
    if not least <= number <= most:
        raise InvalidArgument(f"Unable to parse '{key}', value is out of range [ {least}, {most} ], got: {text}")
    return number


def _checked_levels(levels: tuple[str, ...]) -> tuple[str, ...]:
    for level in levels:
        if level not in _LEVELS:
            raise InvalidArgument(f"Unable to parse 'trace_level', got: {level[:_MAX_ID]}")
    if "OFF" in levels and len(levels) > 1:
        raise InvalidArgument("Expect only one trace level 'OFF' is specified")
    return tuple([level for level in _LEVELS if level in levels])


def _moments(began: float, started: float | None, compute: Compute | None, ended: float) -> Mapping[str, float]:
    if started is None or compute is None:
        return {"REQUEST_START": began, "QUEUE_START": began, "REQUEST_END": ended}
    before, infer, after = compute
    return {
        "REQUEST_START": began,
        "QUEUE_START": began,
        "COMPUTE_START": started,
        "COMPUTE_INPUT_END": started + before,
        "COMPUTE_OUTPUT_START": started + before + infer,
        "COMPUTE_END": min(started + before + infer + after, ended),
        "REQUEST_END": ended,
    }


def _text(number: int, request: InferRequest, moments: Mapping[str, float]) -> str:
    about = {"id": number, "model_name": request.view.name, "model_version": request.view.version}
    if request.id:
        about["request_id"] = request.id[:_MAX_ID]
    stamps = [{"name": name, "ns": round(seconds * 1e9)} for name, seconds in moments.items()]
    return f"{json.dumps(about)},\n{json.dumps({'id': number, 'timestamps': stamps})}"


class TraceFile:
    """The file, written by a thread of its own, which starts with the first trace: disks are no work for the loop."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiting: queue.SimpleQueue[tuple[str, int] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._file: BinaryIO | None = None
        self._begun: set[Path] = set()
        self._index = 0
        self._in_index = 0

    def write(self, trace: str, frequency: int) -> None:
        """See Sink. Drops the trace if the disk is far behind."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="trace", daemon=True)
            self._thread.start()
        if self._waiting.qsize() < _MAX_WAITING:
            self._waiting.put((trace, frequency))

    def close(self) -> None:
        """Write what waits, and end the thread."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while (item := self._waiting.get()) is not None:
            try:
                self._append(*item)
            except OSError as error:
                log.error("a trace cannot be written: %s", error.strerror or error)
        if self._file is not None:
            self._file.close()
            self._file = None

    def _append(self, trace: str, frequency: int) -> None:
        """Put a trace before the bracket that closes the array."""
        file = self._opened(self._next_name(frequency))
        if file.seek(0, os.SEEK_END):
            file.seek(-len(b"\n]\n"), os.SEEK_END)
            file.write(b",\n")
        else:
            file.write(b"[\n")
        file.write(trace.encode() + b"\n]\n")
        file.flush()

    def _next_name(self, frequency: int) -> Path:
        """Where one more trace belongs."""
        if not frequency:
            return self._path
        if self._in_index >= frequency:
            self._begun.discard(self._numbered())
            self._index += 1
            self._in_index = 0
        self._in_index += 1
        return self._numbered()

    def _numbered(self) -> Path:
        return self._path.with_name(f"{self._path.name}.{self._index}")

    def _opened(self, path: Path) -> BinaryIO:
        """The file, emptied when it is opened for the first time."""
        if self._file is None or self._file.name != str(path):
            if self._file is not None:
                self._file.close()
            self._file = path.open("r+b" if path in self._begun else "w+b")
            self._begun.add(path)
        return self._file
