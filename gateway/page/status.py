"""What the operator's page shows: the server, its models, the past of their calls. Plain data, for JSON.

The page asks once a second, and gets what it is about to show and no more: the rows of one page of the table, filtered
and sorted here, and of the drawn lines the points that it does not have yet. So an answer has a few kilobytes, however
many models there are.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import numpy as np

from tensorgate.gateway.contract.canonical import VERIFIED, ModelView
from tensorgate.gateway.contract.dialect import Dialect, SampleRequest
from tensorgate.gateway.contract.engine import Engine
from tensorgate.gateway.contract.errors import ErrorReason
from tensorgate.gateway.contract.metrics import Distribution, GoalStatus, Gpu
from tensorgate.gateway.contract.questions import IndexEntry, KnownVersions, ModelActivities, ModelActivity
from tensorgate.gateway.contract.tensor import TensorSpec
from tensorgate.gateway.monitoring.call_history import COLUMNS, SPANS, TOTAL, CallHistory, Stream
from tensorgate.gateway.monitoring.recent_errors import MAX_KINDS, RecentError, RecentErrors
from tensorgate.gateway.monitoring.time_series import TimeSeries
from tensorgate.gateway.service import Service

_MAX_SAMPLE_BYTES: Final = 256 << 10
_MAX_PROBLEMS: Final = 50
_MAX_PROBLEM_CHARS: Final = 400
_MAX_ROWS: Final = 500
_SPARK_POINTS: Final = 30
_LEVELS: Final = ("bad", "warn", "note")
_UNLOADED: Final = "unloaded"
"""The reason of a version that was taken away on purpose. Source: Triton's model repository extension."""
_SORTS: Final = ("dialect", "model", *COLUMNS, "all_calls", "all_errors")


@dataclass(frozen=True, slots=True)
class PageQuery:
    """What of all this is wanted. `read` makes it of a request target."""

    span: str = "minutes"
    """The span of the drawn lines, and of the last point in the table: a key of SPANS."""
    since: int = 0
    """The number of the first point that is wanted; all that are there if `run` is another one."""
    run: int = 0
    """The run of the server that numbered the points."""
    stream: Stream = TOTAL
    """Whose lines: (dialect's title, model)."""
    rows: int = 50
    """How many rows of the table, and of the list of models."""
    first: int = 0
    """How many rows are left out before."""
    sort: str = "-calls"
    """A column, "-" before it: the largest first."""
    search: str = ""
    """Part of a model's name, or of a dialect's."""
    models: frozenset[str] | None = None
    """Of which models the queues, batches and copies; None: of those that match the search and have worked."""
    errors: int = MAX_KINDS
    """How many kinds of errors."""
    brief: bool = False
    """Models without their tensors and samples."""

    @classmethod
    def read(cls, target: str) -> PageQuery:
        """Raises ValueError in words for whoever wrote the target."""
        said = dict(parse_qsl(urlsplit(target).query, keep_blank_values=True))
        found: dict[str, Any] = {}
        for name, value in said.items():
            if name in ("dialect", "model"):
                dialect, model = found.get("stream", TOTAL)
                found["stream"] = (value, model) if name == "dialect" else (dialect, value)
            elif name in _READERS:
                found[name] = _READERS[name](name, value)
            else:
                raise ValueError(f"there is no {name[:80]!r} to ask for")
        if found.get("span", "minutes") not in SPANS:
            raise ValueError(f"span is one of {', '.join(SPANS)}")
        if found.get("sort", "calls").removeprefix("-") not in _SORTS:
            raise ValueError(f"sort is one of {', '.join(_SORTS)}, with - before it for the largest first")
        query = cls(**found)
        if query.rows > _MAX_ROWS:
            raise ValueError(f"rows are {_MAX_ROWS} at most")
        return query

    def wants(self, *names: str) -> bool:
        """Whether the words of the search are in one of these names."""
        words = self.search.strip().lower()
        return not words or any(words in name.lower() for name in names)


def _number(name: str, value: str) -> int:
    if not (value.isascii() and value.isdecimal() and len(value) < 16):
        raise ValueError(f"{name} is a number, not {value[:80]!r}")
    return int(value)


_READERS: Final[Mapping[str, Callable[[str, str], Any]]] = {
    **dict.fromkeys(("since", "run", "rows", "first", "errors"), _number),
    **dict.fromkeys(("span", "sort", "search"), lambda name, value: value),
    "models": lambda name, value: frozenset(value.split("\n")) - {""},
    "brief": lambda name, value: value not in ("", "0", "false"),
}
EVERYTHING: Final = PageQuery()


class Status:
    """Reads what others keep. `about` is the server's name and version, `titles` are those of the dialects."""

    def __init__(
        self,
        service: Service,
        engine: Engine,
        monitor: TimeSeries,
        about: tuple[str, str],
        titles: Mapping[str, str],
        errors: RecentErrors,
    ) -> None:
        self._errors = errors
        self._titles = titles
        self._names = {title: name for name, title in titles.items()}
        self._service = service
        self._engine = engine
        self._monitor = monitor
        self._name, self._version = about
        self._begun = time.monotonic()
        self._run = time.time_ns() // 1_000_000
        self.restarts: Mapping[str, int] = {}
        """How often this process was started again, by the reason."""
        self.doors: Callable[[], Sequence[Mapping[str, Any]]] = tuple
        """Processes that accept connections: {slot, up, since_s, connections, restarts}."""
        self.listeners: Callable[[], Sequence[Mapping[str, Any]]] = tuple
        """Ports: {name, transport, connections, running}."""
        self.tokens: Callable[[], Mapping[tuple[str, str], Sequence[int]]] = dict
        """(model, version) -> tokens of texts that came, and went."""
        self.callers: Callable[[], Sequence[Mapping[str, Any]]] = tuple
        """Who called: {caller, calls, failed, rows, compute_s}, most calls first."""
        self.shares: Callable[[], Sequence[Mapping[str, Any]]] = tuple
        """What callers have had of devices: {caller, device, weight, seconds, queued, refused}, most time first."""
        self.routes: Callable[[], Sequence[Mapping[str, Any]]] = tuple
        """Routes as they are now: {name, targets: [{model, label or version, weight}], taken, refused, running}."""
        self.grpc_port: Callable[[], int | None] = lambda: None
        """Where gRPC's snippets call; None: nowhere."""
        self.labels: Callable[[], Mapping[str, Mapping[str, int]]] = dict
        """Model -> label -> version."""

    def live(self, query: PageQuery = EVERYTHING) -> dict[str, Any]:
        """The state of the server, of the models asked for, and the calls of a span; for asking every second."""
        monitor, known = self._monitor, self._engine.ask(KnownVersions())
        activities = self._engine.ask(ModelActivities(query.models))
        calls, found = self._table(query)
        chosen = query.stream[1] if query.stream != TOTAL else None
        doors = self.doors()
        return {
            "name": self._name,
            "version": self._version,
            "run": self._run,
            "uptime_s": int(time.monotonic() - self._begun),
            "state": self._state(),
            "problems": self._problems(known, activities, doors),
            "online": self._service.online,
            "cpu_percent": round(monitor.trends["cpu_percent"].last, 1),
            "memory_bytes": monitor.memory_bytes(),
            "gpus": [_gpu(gpu) for gpu in monitor.gpus],
            "grpc_port": self.grpc_port(),
            "doors": doors,
            "listeners": self.listeners(),
            "routes": self.routes(),
            "callers": self.callers()[: query.rows],
            "shares": self.shares()[: query.rows],
            "series": self._series(query),
            "load": _together(each for each in activities if chosen in (None, each.view.name)),
            "calls": calls,
            "found": {"calls": found, "models": sum(query.wants(name) for name in {each.name for each in known})},
            "models": self._loads(activities, query),
            "errors": [self._error(each) for each in self._wanted_errors(query)],
            "stamp": _stamp(known, activities, self.labels()),
        }

    def models(self, dialects: Sequence[Dialect], query: PageQuery | None = None) -> list[dict[str, Any]]:
        """Models by name: versions and states, what they take and give, and requests of these dialects that call them.
        Without a query all of them; `query.models` are exact names.
        """
        entries: dict[str, dict[str, Any]] = {}
        for index in self._engine.ask(KnownVersions()):
            entry = entries.setdefault(index.name, {"name": index.name, "versions": []})
            if index.version is not None:
                entry["versions"].append({"version": index.version, "state": index.state, "reason": index.reason})
            elif index.reason:
                entry["reason"] = index.reason
        if query is not None:
            names = [name for name in entries if query.wants(name) and (query.models is None or name in query.models)]
            entries = {name: entries[name] for name in names[query.first : query.first + query.rows]}
        loaded = [each for each in self._engine.ask(ModelActivities(frozenset())) if each.view.name in entries]
        unready = {(each.view.name, each.view.version): _unready(each.view) for each in loaded if not each.is_ready}
        labels = self.labels()
        for name, entry in entries.items():
            for version in entry["versions"]:
                version["labels"] = [each for each, at in labels.get(name, {}).items() if at == version["version"]]
                if why := unready.get((name, version["version"]), ""):
                    version |= {"state": "UNAVAILABLE", "reason": why}
        newest = {each.view.name: each.view for each in loaded}  # versions ascend
        brief = query is not None and query.brief
        for name, view in newest.items():
            entries[name] |= _described(view)
            if not brief:
                entries[name] |= _called(view, dialects)
        return list(entries.values())

    def _series(self, query: PageQuery) -> dict[str, Any]:
        """Columns of points, the last one the newest; null where nothing was asked. `first` numbers the first."""
        history, span = self._monitor.history, SPANS[query.span]
        title, model = query.stream
        stream = (self._names.get(title, title), model)
        number = history.number(query.span)
        since = query.since if query.run == self._run and query.since <= number else 0
        points = history.points(stream, query.span, since)
        calls, errors = history.counts(stream)
        return {
            "span": query.span,
            "step": span.step,
            "points": span.points,
            "first": number - len(points),
            "calls": calls,
            "errors": errors,
            "rate": [_short(value / span.step) for value in points[:, 0].tolist()],
            "failed": [_short(value / span.step) for value in points[:, 1].tolist()],
            **{name: [_short(value) for value in points[:, at].tolist()] for at, name in enumerate(COLUMNS) if at >= 2},
        }

    def _loads(self, activities: Iterable[ModelActivity], query: PageQuery) -> list[dict[str, Any]]:
        tokens = self.tokens()
        wanted = [each for each in activities if _is_wanted(each, query)][: query.rows]
        return [_load(each, tokens.get((each.view.name, str(each.view.version)))) for each in wanted]

    def _table(self, query: PageQuery) -> tuple[list[dict[str, Any]], int]:
        """Rows of streams, and how many there are of those that match."""
        history, step = self._monitor.history, SPANS[query.span].step
        streams, last, counts = history.table(query.span)
        titles = [self._titles.get(dialect, dialect) for dialect, _ in streams]
        kept = [at for at, (_, model) in enumerate(streams) if query.wants(model, titles[at])]
        column, falls = query.sort.removeprefix("-"), query.sort.startswith("-")
        kept.sort(key=lambda at: (streams[at][1], titles[at]))
        if column in ("dialect", "model"):
            kept.sort(key=lambda at: titles[at] if column == "dialect" else streams[at][1], reverse=falls)
        else:
            values = (
                counts[:, int(column == "all_errors")] if column.startswith("all_") else last[:, COLUMNS.index(column)]
            )
            # What was not asked is last, whichever way; of equals the busier one is first.
            order = {at: (-value if falls else value) for at, value in enumerate(values.tolist())}
            kept.sort(key=lambda at: (math.isnan(order[at]), order[at], -int(counts[at, 0])))
        rows = []
        for at in kept[query.first : query.first + query.rows]:
            calls, errors, *times = last[at].tolist()
            rows.append(
                {
                    "dialect": titles[at],
                    "model": streams[at][1],
                    "rate": _short(calls / step),
                    "failed": _short(errors / step),
                    **{name: _short(value) for name, value in zip(COLUMNS[2:], times, strict=True)},
                    "calls": int(counts[at, 0]),
                    "errors": int(counts[at, 1]),
                    "spark": _spark(history, streams[at], query.span),
                }
            )
        return rows, len(kept)

    def _state(self) -> str:
        if self._service.draining:
            return "draining"
        return "ready" if self._service.ready else "not ready" if self._service.started else "loading"

    def _problems(
        self,
        known: Iterable[IndexEntry],
        activities: Iterable[ModelActivity],
        doors: Iterable[Mapping[str, Any]],
    ) -> list[list[str]]:
        """[bad, warn or note; words] of all that calls are refused for, or soon may be; the worst first."""
        found = [
            *self._of_server(doors),
            *_of_versions(known),
            *_of_queues(activities, each_has_its_own=bool(self.shares())),
        ]
        found.sort(key=lambda each: _LEVELS.index(each[0]))
        return [[level, text[:_MAX_PROBLEM_CHARS]] for level, text in found[:_MAX_PROBLEMS]]

    def _of_server(self, doors: Iterable[Mapping[str, Any]]) -> Iterator[list[str]]:
        if self._service.draining:
            yield ["warn", "draining: what was accepted is finished, and nothing more is taken"]
        if not self._service.online:
            yield ["note", "offline for grps' health probes, until /grps/v1/health/online"]
        for door in doors:
            if not door["up"]:
                yield ["warn", f"door {door['slot']} is being restarted: the others take its connections"]
        for reason, count in self.restarts.items():
            if count:
                times = "once" if count == 1 else f"{count} times"
                yield ["note", f"the process that runs the models was started again {times}: {reason}"]
        yield from _of_errors(self._errors.read(), self._errors.now() - _RECENTLY_S)

    def _wanted_errors(self, query: PageQuery) -> Iterable[RecentError]:
        return islice((each for each in self._errors.read() if query.wants(each.key.model)), query.errors)

    def _error(self, error: RecentError) -> dict[str, Any]:
        """Errors of one kind; times are seconds since 1970."""
        key = error.key
        return {
            **key._asdict(),
            "dialect": self._titles.get(key.dialect, key.dialect),
            "code": key.code.name,
            "text": error.text,
            "since": round(error.since, 3),
            "last": round(error.last, 3),
            "count": error.count,
        }


_RECENTLY_S: Final = 10.0


def _of_versions(known: Iterable[IndexEntry]) -> Iterator[list[str]]:
    for entry in known:
        name = entry.name if entry.version is None else f"{entry.name} version {entry.version}"
        if entry.state == "UNAVAILABLE" and entry.reason not in ("", _UNLOADED):
            yield ["bad", f"{name} is not served: {entry.reason}"]
        elif entry.state == "LOADING":
            yield ["warn", f"{name} is being loaded"]


def _of_queues(activities: Iterable[ModelActivity], *, each_has_its_own: bool) -> Iterator[list[str]]:
    """Where each caller has its own queue, its bound is nothing to compare all that waits with."""
    for activity in activities:
        view = activity.view
        name = f"{view.name} version {view.version}"
        if not activity.is_ready:
            yield ["bad", f"{name} is not ready: {_unready(view)}"]
        if activity.goal is not None and activity.goal.alone_s > activity.goal.target_s:
            took, goal = 1e3 * activity.goal.alone_s, 1e3 * activity.goal.target_s
            yield ["warn", f"{name} cannot hold its goal of {goal:g} ms: one row alone runs {took:.3g} ms"]
        if not activity.queued or each_has_its_own:
            continue
        most = view.configuration.get("max_queue_size", 0)
        if most and activity.queued >= most:
            yield ["bad", f"{name} refuses calls: all {most} places of its queue are taken"]
        elif most and activity.queued > most // 2:
            yield ["warn", f"{name}: {activity.queued} calls wait, of {most} at most"]


def _of_errors(errors: Iterable[RecentError], since: float) -> Iterator[list[str]]:
    """What callers are refused for at this time and is told nowhere else: a line for a model, whatever its callers
    speak. `errors` are the newest first.
    """
    found: dict[tuple[ErrorReason, str], list[RecentError]] = {}
    for error in errors:
        if error.last >= since and error.key.reason in _REFUSALS:
            found.setdefault((error.key.reason, error.key.model), []).append(error)
    for (reason, model), alike in found.items():
        count = sum(each.count for each in alike)
        times = "once" if count == 1 else f"{count} times"
        yield ["warn", f"{_REFUSALS[reason].format(model=model or 'unknown models')} ({times} so far): {alike[0].text}"]


_REFUSALS: Final = {
    ErrorReason.RATE: "a rate limit refuses calls of {model}",
    ErrorReason.MODEL_RAISED: "{model} raises errors",
    ErrorReason.OUT_OF_MEMORY: "{model} has too little memory",
    ErrorReason.UPSTREAM: "the server behind {model} fails",
}


def _short(value: float) -> float | None:
    """Four digits are as many as one can see; None for NaN."""
    return None if math.isnan(value) else float(f"{value:.4g}")


def _spark(history: CallHistory, stream: Stream, span: str) -> str:
    """The rates of a span as digits from 0 to 9, the highest being 9."""
    size = SPANS[span].points
    rates = np.zeros(size)
    calls = history.points(stream, span)[:, 0]
    rates[size - len(calls) :] = calls
    parts = rates.reshape(_SPARK_POINTS, -1).mean(1) if size % _SPARK_POINTS == 0 else rates
    most = parts.max()
    return "".join(map(str, np.ceil(9 * parts / most).astype(int).tolist())) if most else ""


def _is_wanted(activity: ModelActivity, query: PageQuery) -> bool:
    """Of hundreds of models that are idle, nothing is told every second."""
    name = activity.view.name
    if query.models is not None:
        return name in query.models
    return query.wants(name) and _has_worked(activity)


def _together(activities: Iterable[ModelActivity]) -> dict[str, int]:
    found = {"queued": 0, "running": 0, "batches": 0, "rows": 0}
    for each in activities:
        found["queued"] += each.queued
        found["running"] += each.running
        found["batches"] += each.runs
        found["rows"] += each.rows
    return found


def _stamp(
    known: Iterable[IndexEntry], activities: Iterable[ModelActivity], labels: Mapping[str, Mapping[str, int]]
) -> int:
    """Changes whenever `Status.models` would say something else."""
    states = [(each.name, each.version, each.state, each.reason) for each in known]
    views = [(id(each.view), each.is_ready) for each in activities]  # a version loaded anew has another
    named = [(name, *versions.items()) for name, versions in labels.items()]
    return hash((*states, *views, *named)) & 0xFFFFFFFF


def _unready(view: ModelView) -> str:
    """Why a version that is loaded cannot answer."""
    is_remote = view.configuration.get("backend") == "remote"
    return "the server behind it does not answer" if is_remote else "nothing that computes it is up"


def _has_worked(activity: ModelActivity) -> bool:
    """What has not is not told every second: hundreds of models may be idle."""
    return bool(activity.queued or activity.running or activity.runs)


def _load(activity: ModelActivity, tokens: Sequence[int] | None) -> dict[str, Any]:
    view, batches = activity.view, activity.batches
    found = {
        "name": view.name,
        "version": view.version,
        "queued": activity.queued,
        "running": activity.running,
        "batches": activity.runs,
        "rows": activity.rows,
        "fill": [] if batches is None else _fill(batches),
        "max_batch_size": view.max_batch_size,
        "traffic": activity.traffic,
    }
    if tokens is not None:
        found["tokens"] = tokens
    if activity.queued_tokens is not None:
        found["queued_tokens"] = activity.queued_tokens
    if (goal := activity.goal) is not None:
        found["goal"] = _goal(goal)
    for name, seconds in activity.streams.items():
        if count := sum(seconds.counts):
            found[name] = seconds.sum / count
    return found


def _goal(goal: GoalStatus) -> dict[str, Any]:
    """How a goal is held: counts since the model was loaded, and means of its batches, in seconds."""
    batches = max(1, goal.batches)
    return {
        "target_s": goal.target_s,
        "rows": goal.rows,
        "held": goal.held,
        "missed": goal.missed,
        "shed": sum(goal.shed.values()),
        "waited_s": _short(goal.waited_s / batches),
        "predicted_s": _short(goal.predicted_s / batches),
        "actual_s": _short(goal.actual_s / batches),
    }


def _fill(batches: Distribution) -> list[list[float]]:
    """[rows at most, batches] of each bucket that has any; -1 is more than all others."""
    bounds: Iterable[float] = (*batches.bounds, -1)
    return [[bound, count] for bound, count in zip(bounds, batches.counts, strict=True) if count]


def _gpu(gpu: Gpu) -> dict[str, Any]:
    return {
        "device": gpu.device,
        "name": gpu.name,
        "total": gpu.total,
        "used": gpu.used,
        "utilization": gpu.utilization,
        "power_watts": gpu.power_watts,
        "temperature_celsius": gpu.temperature_celsius,
    }


def _described(view: ModelView) -> dict[str, Any]:
    return {
        "platform": view.platform,
        "device": ", ".join(view.devices),
        "instances": view.instances,
        "max_batch_size": view.max_batch_size,
        "decoupled": view.decoupled,
        "sequences": bool(view.configuration.get("sequences")),
        **({VERIFIED: proof} if (proof := view.configuration.get(VERIFIED)) else {}),
    }


def _called(view: ModelView, dialects: Sequence[Dialect]) -> dict[str, Any]:
    return {
        "inputs": _tensors(view.inputs),
        "outputs": _tensors(view.outputs),
        "samples": _samples(view, dialects),
    }


def _tensors(specs: Mapping[str, TensorSpec]) -> list[dict[str, Any]]:
    return [
        {
            "name": spec.name,
            "datatype": spec.datatype,
            "shape": None if spec.shape is None else list(spec.shape),
            "optional": spec.optional,
        }
        for spec in specs.values()
    ]


def _samples(view: ModelView, dialects: Sequence[Dialect]) -> list[dict[str, Any]]:
    """Requests of each dialect that can call the model, of every kind that it has."""
    return [
        {
            "dialect": dialect.title,
            "kind": sample.title,
            "streams": sample.streams,
            "path": sample.path,
            "body": sample.body,
            "content_type": sample.content_type,
        }
        for dialect in dialects
        for sample in _samples_of(view, dialect)
        if len(sample.body) <= _MAX_SAMPLE_BYTES
    ]


def _samples_of(view: ModelView, dialect: Dialect) -> Iterable[SampleRequest]:
    """A sequence is more than one request: only a dialect that names its samples may have one that stands alone."""
    if dialect.samples is not None:
        return dialect.samples(view)
    one = None if view.configuration.get("sequences") else dialect.sample(view)
    return () if one is None else (one,)
