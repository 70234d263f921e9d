"""What the operator's page shows: the server, its models, the last minutes of their calls. Plain data, for JSON."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from tensorgate.gateway.contract.canonical import ModelView
from tensorgate.gateway.contract.dialect import Dialect
from tensorgate.gateway.contract.engine import Engine
from tensorgate.gateway.contract.metrics import Distribution, Gpu
from tensorgate.gateway.contract.questions import IndexEntry, KnownVersions, ModelActivities, ModelActivity
from tensorgate.gateway.contract.tensor import TensorSpec
from tensorgate.gateway.monitoring.recent_errors import RecentError, RecentErrors
from tensorgate.gateway.monitoring.time_series import CallHistory, TimeSeries
from tensorgate.gateway.service import Service

_MAX_SAMPLE_BYTES: Final = 256 << 10
_MAX_PROBLEMS: Final = 50
_LEVELS: Final = ("bad", "warn", "note")
_UNLOADED: Final = "unloaded"
"""The reason of a version that was taken away on purpose. Source: Triton's model repository extension."""


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
        self._service = service
        self._engine = engine
        self._monitor = monitor
        self._name, self._version = about
        self._begun = time.monotonic()

    def live(self) -> dict[str, Any]:
        """The state of the server and of every model, and the calls of the last minutes; for asking every second."""
        monitor, known = self._monitor, self._engine.ask(KnownVersions())
        activities = self._engine.ask(ModelActivities())
        return {
            "name": self._name,
            "version": self._version,
            "uptime_s": int(time.monotonic() - self._begun),
            "state": self._state(),
            "problems": self._problems(known, activities),
            "online": self._service.online,
            "cpu_percent": round(monitor.trends["cpu_percent"].last, 1),
            "memory_bytes": monitor.memory_bytes(),
            "gpus": [_gpu(gpu) for gpu in monitor.gpus],
            "total": _calls(monitor.total),
            "calls": [
                {"dialect": self._titles.get(dialect, dialect), "model": model, **_calls(calls)}
                for (dialect, model), calls in sorted(monitor.streams.items())
            ],
            "models": [_load(each) for each in activities if _has_worked(each)],
            "errors": [self._error(each) for each in self._errors.read()],
            "stamp": _stamp(known, activities),
        }

    def models(self, dialects: Sequence[Dialect]) -> list[dict[str, Any]]:
        """Every model: versions and states, what it takes and gives, and a request of each of these dialects that can
        call it.
        """
        entries: dict[str, dict[str, Any]] = {}
        for index in self._engine.ask(KnownVersions()):
            entry = entries.setdefault(index.name, {"name": index.name, "versions": []})
            if index.version is not None:
                entry["versions"].append({"version": index.version, "state": index.state, "reason": index.reason})
            elif index.reason:
                entry["reason"] = index.reason
        views = [each.view for each in self._engine.ask(ModelActivities())]
        unready = {(view.name, view.version): why for view in views if (why := _unready(view))}
        for name, entry in entries.items():
            for version in entry["versions"]:
                if why := unready.get((name, version["version"]), ""):
                    version |= {"state": "UNAVAILABLE", "reason": why}
        newest = {view.name: view for view in views}  # versions ascend
        for name, view in newest.items():
            entries[name] |= _described(view, dialects)
        return list(entries.values())

    def _state(self) -> str:
        if self._service.draining:
            return "draining"
        return "ready" if self._service.ready else "not ready" if self._service.started else "loading"

    def _problems(self, known: Iterable[IndexEntry], activities: Iterable[ModelActivity]) -> list[list[str]]:
        """[bad, warn or note; words] of all that calls are refused for, or soon may be; the worst first."""
        found = [
            ["warn", "draining: what was accepted is finished, and nothing more is taken"]
        ] * self._service.draining
        if not self._service.online:
            found.append(["note", "offline for grps' health probes, until /grps/v1/health/online"])
        for entry in known:
            name = entry.name if entry.version is None else f"{entry.name} version {entry.version}"
            if entry.state == "UNAVAILABLE" and entry.reason not in ("", _UNLOADED):
                found.append(["bad", f"{name} is not served: {entry.reason}"])
            elif entry.state == "LOADING":
                found.append(["warn", f"{name} is being loaded"])
        for activity in activities:
            view, most = activity.view, activity.view.configuration.get("max_queue_size", 0)
            name = f"{view.name} version {view.version}"
            if why := _unready(view):
                found.append(["bad", f"{name} is not ready: {why}"])
            if most and activity.queued >= most:
                found.append(["bad", f"{name} refuses calls: all {most} places of its queue are taken"])
            elif most and activity.queued > most // 2:
                found.append(["warn", f"{name}: {activity.queued} calls wait, of {most} at most"])
        return sorted(found, key=lambda each: _LEVELS.index(each[0]))[:_MAX_PROBLEMS]

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


def _stamp(known: Iterable[IndexEntry], activities: Iterable[ModelActivity]) -> int:
    """Changes whenever `Status.models` would say something else."""
    states = [(each.name, each.version, each.state, each.reason) for each in known]
    views = [(id(each.view), each.view.handle.is_ready()) for each in activities]  # a version loaded anew has another
    return hash((*states, *views)) & 0xFFFFFFFF


def _unready(view: ModelView) -> str:
    """Why a version that is loaded cannot answer; "" where it can."""
    if view.handle.is_ready():
        return ""
    is_remote = view.configuration.get("backend") == "remote"
    return "the server behind it does not answer" if is_remote else "nothing that computes it is up"


def _has_worked(activity: ModelActivity) -> bool:
    """What has not is not told every second: hundreds of models may be idle."""
    return bool(activity.queued or activity.running or activity.batches.sum)


def _load(activity: ModelActivity) -> dict[str, Any]:
    view, batches = activity.view, activity.batches
    return {
        "name": view.name,
        "version": view.version,
        "queued": activity.queued,
        "running": activity.running,
        "batches": sum(batches.counts),
        "rows": int(batches.sum),
        "fill": _fill(batches),
        "max_batch_size": view.max_batch_size,
        "traffic": activity.traffic,
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


def _calls(calls: CallHistory) -> dict[str, Any]:
    """Columns of seconds, the last one the newest."""
    history = list(calls.history)
    if not any(second.calls or second.errors for second in history):
        history = []  # nothing to draw
    return {
        "calls": calls.calls,
        "errors": calls.errors,
        "rate": [second.calls for second in history],
        "failed": [second.errors for second in history],
        "p50": [round(second.p50, 3) for second in history],
        "p99": [round(second.p99, 3) for second in history],
    }


def _described(view: ModelView, dialects: Sequence[Dialect]) -> dict[str, Any]:
    return {
        "platform": view.platform,
        "device": ", ".join(view.devices),
        "instances": view.instances,
        "max_batch_size": view.max_batch_size,
        "decoupled": view.decoupled,
        "sequences": bool(view.configuration.get("sequences")),
        "inputs": _tensors(view.inputs),
        "outputs": _tensors(view.outputs),
        "samples": [] if view.configuration.get("sequences") else _samples(view, dialects),
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
    """A request of each dialect that can call the model; a sequence is more than one request."""
    samples = [(dialect.title, dialect.sample(view)) for dialect in dialects]
    return [
        {"dialect": title, "path": sample.path, "body": sample.body, "content_type": sample.content_type}
        for title, sample in samples
        if sample is not None and len(sample.body) <= _MAX_SAMPLE_BYTES
    ]
