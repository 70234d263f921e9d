"""Trace and log settings, what they do to traces and logs, and how the service answers about them and about numbers."""

import io
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tensorgate.gateway.config import RouteConfig, RouteTarget
from tensorgate.gateway.contract.canonical import InferRequest, ModelRef, ModelView
from tensorgate.gateway.contract.errors import InvalidArgument, ModelNotFound
from tensorgate.gateway.contract.questions import LogSettings, ModelStatistics, ServerDescription, TraceSettings
from tensorgate.gateway.local_engine import LocalEngine
from tensorgate.gateway.monitoring.metrics import MetricsCollector
from tensorgate.gateway.routing.router import Router
from tensorgate.gateway.service import Service
from tensorgate.gateway.telemetry.logs import Logs
from tensorgate.gateway.telemetry.statistics import Counters
from tensorgate.gateway.telemetry.tracing import RequestTracing, TraceFile, Tracer

AT_FIRST = {
    "trace_level": ("OFF",),
    "trace_rate": ("1000",),
    "trace_count": ("-1",),
    "log_frequency": ("0",),
    "trace_file": ("",),
    "trace_mode": ("triton",),
}
ON = {"trace_level": ("TIMESTAMPS",), "trace_rate": ("1",)}


class Kept:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.traces: list[Any] = []
        self.frequencies: list[int] = []

    def write(self, trace: str, frequency: int) -> None:
        self.traces.append(json.loads(f"[{trace}]"))
        self.frequencies.append(frequency)

    def close(self) -> None:
        pass


@pytest.fixture
def request_of(make_model: Callable[..., ModelView]) -> Callable[[str], InferRequest]:
    view = make_model("m", {"x": ("FP32", None)}, {"y": ("FP32", None)}, version=3)
    return lambda request_id: InferRequest(view, {"x": np.zeros(1)}, request_id)


@pytest.fixture
def note(request_of: Callable[[str], InferRequest]) -> Callable[[Tracer], bool]:
    """End one request, as a scheduler would; says whether anything was on."""

    def note(tracer: Tracer) -> bool:
        was_on = tracer.on
        if was_on:
            tracer.note(request_of(""), 1.0, 2.0, (0.1, 0.2, 0.3), 3.0)
        return was_on

    return note


# ------------------------------------------------------------------------------------------------------ trace settings


def test_settings_of_a_model_follow_the_servers() -> None:
    tracing = RequestTracing(Kept())
    assert tracing.settings("") == tracing.settings("m") == AT_FIRST
    tracing.change("", {"trace_rate": ("5",), "log_frequency": ("7",)})
    tracing.change("m", {"trace_level": ("TENSORS", "TIMESTAMPS"), "trace_rate": (" +9",), "unknown": ("1",)})
    assert tracing.settings("n") == {**AT_FIRST, "trace_rate": ("5",), "log_frequency": ("7",)}
    assert tracing.settings("m") == {
        **AT_FIRST,
        "trace_level": ("TIMESTAMPS", "TENSORS"),
        "trace_rate": ("9",),
        "log_frequency": ("7",),
    }
    tracing.change("", {"trace_rate": None, "trace_level": ()})
    tracing.change("m", {"trace_level": None})
    assert tracing.settings("m") == {**AT_FIRST, "trace_rate": ("9",), "log_frequency": ("7",)}
    tracing.change("m", {"trace_rate": None})
    tracing.change("", {"log_frequency": None})
    assert tracing.settings("") == tracing.settings("m") == AT_FIRST
    assert not tracing._models, "a model without settings of its own costs nothing"


def test_the_configuration_is_what_clearing_goes_back_to() -> None:
    tracing = RequestTracing(name="t.json", initial={"trace_rate": 3, "trace_level": ("TIMESTAMPS",)})
    tracing.change("", {"trace_rate": ("4",), "trace_level": ("OFF",)})
    tracing.change("", {"trace_rate": None, "trace_level": None})
    assert tracing.settings("m") == {
        **AT_FIRST,
        "trace_rate": ("3",),
        "trace_level": ("TIMESTAMPS",),
        "trace_file": ("t.json",),
    }


@pytest.mark.parametrize(
    ("key", "values", "text"),
    [
        ("trace_rate", ("x",), "Unable to parse 'trace_rate', got: x"),
        ("trace_rate", ("",), "Unable to parse 'trace_rate', got: "),
        ("trace_rate", ("1.5",), "Unable to parse 'trace_rate', got: 1.5"),
        ("trace_rate", ("\u0665",), "Unable to parse 'trace_rate', got: \u0665"),
        ("trace_rate", ("9" * 5000,), f"Unable to parse 'trace_rate', got: {'9' * 256}"),
        ("trace_rate", ("-1",), "Unable to parse 'trace_rate', value is out of range [ 0, 4294967295 ], got: -1"),
        ("trace_count", ("-2",), "Unable to parse 'trace_count'. Expecting value >= -1, got:-2"),
        (
            "trace_count",
            ("2147483648",),
            "Unable to parse 'trace_count', value is out of range [ -1, 2147483647 ], got: 2147483648",
        ),
        ("log_frequency", ("no",), "Unable to parse 'log_frequency', got: no"),
        ("trace_level", ("OFF", "TIMESTAMPS"), "Expect only one trace level 'OFF' is specified"),
        ("trace_level", ("SOME",), "Unable to parse 'trace_level', got: SOME"),
    ],
)
def test_wrong_values_change_nothing(key: str, values: tuple[str, ...], text: str) -> None:
    tracing = RequestTracing()
    for model in ("", "m"):
        with pytest.raises(InvalidArgument) as error:
            tracing.change(model, {"trace_rate": ("7",), "log_frequency": ("7",), key: values})
        assert error.value.text == text
    assert tracing.settings("m") == tracing.settings("") == AT_FIRST


# -------------------------------------------------------------------------------------------------------------- traces


def test_nothing_is_on_without_a_file_a_level_a_rate_and_a_count(note: Callable[[Tracer], bool]) -> None:
    assert not Tracer().on
    nowhere = RequestTracing()
    tracer = nowhere.tracer("m")
    for changes in (ON, {"trace_level": ("TENSORS",)}):
        with pytest.raises(
            InvalidArgument, match="Attempting to set invalid trace setting :trace file name is not given"
        ):
            nowhere.change("", changes)
    nowhere.change("", {"trace_level": ("OFF",), "trace_rate": ("1",)})
    assert not note(tracer)
    somewhere = RequestTracing(Kept())
    tracer = somewhere.tracer("m")
    assert tracer is somewhere.tracer("m")
    more: Any
    for more, on in [
        ({}, False),
        (ON, True),
        ({"trace_level": ("TENSORS",)}, False),
        ({"trace_level": ("TENSORS", "TIMESTAMPS")}, True),
        ({"trace_rate": ("0",)}, False),
        ({"trace_rate": ("2",)}, True),
        ({"trace_count": ("0",)}, False),
        ({"trace_count": None}, True),
    ]:
        somewhere.change("", more)
        assert note(tracer) is on, more
        assert note(somewhere.tracer("new")) is on


def test_a_trace_has_what_tritons_summary_reads(request_of: Callable[[str], InferRequest]) -> None:
    kept = Kept()
    tracing = RequestTracing(kept, initial={"trace_level": ("TIMESTAMPS",), "trace_rate": 1, "log_frequency": 4})
    tracer = tracing.tracer("m")
    tracer.note(request_of("i" * 1000), 1.0, 1.5, (0.125, 0.25, 0.0625), 2.0)
    tracer.note(request_of(""), 5.0, None, None, 5.5)
    assert kept.traces == [
        [
            {"id": 1, "model_name": "m", "model_version": 3, "request_id": "i" * 256},
            {
                "id": 1,
                "timestamps": [
                    {"name": "REQUEST_START", "ns": 1_000_000_000},
                    {"name": "QUEUE_START", "ns": 1_000_000_000},
                    {"name": "COMPUTE_START", "ns": 1_500_000_000},
                    {"name": "COMPUTE_INPUT_END", "ns": 1_625_000_000},
                    {"name": "COMPUTE_OUTPUT_START", "ns": 1_875_000_000},
                    {"name": "COMPUTE_END", "ns": 1_937_500_000},
                    {"name": "REQUEST_END", "ns": 2_000_000_000},
                ],
            },
        ],
        [
            {"id": 2, "model_name": "m", "model_version": 3},
            {
                "id": 2,
                "timestamps": [
                    {"name": "REQUEST_START", "ns": 5_000_000_000},
                    {"name": "QUEUE_START", "ns": 5_000_000_000},
                    {"name": "REQUEST_END", "ns": 5_500_000_000},
                ],
            },
        ],
    ]
    assert kept.frequencies == [4, 4]


def test_every_so_many_th_request_until_there_are_enough(note: Callable[[Tracer], bool]) -> None:
    kept = Kept()
    tracing = RequestTracing(kept)
    mine, other = tracing.tracer("m"), tracing.tracer("n")
    tracing.change("", {**ON, "trace_rate": ("3",), "trace_count": ("2",)})
    for number in range(1, 20):
        note(mine if number % 2 else other)
        assert len(kept.traces) == min(2, number // 3), "models that follow the server's settings share its rate"
    assert tracing.settings("n")["trace_count"] == ("0",), "what is left of it"
    assert not mine.on
    tracing.change("m", {"trace_rate": ("2",), "trace_count": ("1",)})
    assert (mine.on, other.on) == (True, False)
    assert [note(mine) for _ in range(3)] == [True, True, False]
    assert len(kept.traces) == 3


def read(path: Path) -> list[int]:
    """The numbers of the traces in a file, which is whole JSON at any time."""
    entries = json.loads(path.read_text())
    assert [each["id"] for each in entries[::2]] == [each["id"] for each in entries[1::2]]
    return [each["id"] for each in entries[::2]]


def test_files_are_whole_after_every_trace_and_rotate(tmp_path: Path, note: Callable[[Tracer], bool]) -> None:
    path = tmp_path / "t.json"
    path.write_text("what an earlier process left")
    file = TraceFile(path)
    tracing = RequestTracing(file)
    tracer = tracing.tracer("m")
    tracing.change("", ON)
    file.close()
    assert path.read_text() == "what an earlier process left", "untouched until there is something to write"
    note(tracer)
    file.close()
    for _ in range(2):
        note(tracer)
    file.close()
    assert read(path) == [1, 2, 3]
    tracing.change("", {"log_frequency": ("2",)})
    for _ in range(5):
        note(tracer)
    tracing.change("", {"log_frequency": None})
    note(tracer)
    tracing.close()
    assert read(path) == [1, 2, 3, 9]
    assert [read(tmp_path / f"t.json.{n}") for n in range(3)] == [[4, 5], [6, 7], [8]]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["t.json", "t.json.0", "t.json.1", "t.json.2"]


def test_a_disk_that_takes_nothing_is_logged_and_harms_nobody(
    tmp_path: Path, note: Callable[[Tracer], bool], caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "gone"
    tracing = RequestTracing(TraceFile(folder / "t.json"), initial={"trace_level": ("TIMESTAMPS",), "trace_rate": 1})
    note(tracing.tracer("m"))
    note(tracing.tracer("m"))
    tracing.close()
    assert [record.getMessage() for record in caplog.records] == [
        "a trace cannot be written: No such file or directory"
    ] * 2


# ---------------------------------------------------------------------------------------------------------------- logs


@pytest.fixture
def logger() -> Iterator[tuple[logging.Logger, io.StringIO]]:
    """A logger of our own with a handler, as a process has one at its root."""
    logger = logging.getLogger("tests.settings")
    logger.propagate = False
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    yield logger, text
    for each in logger.handlers:  # pytest's own may be among them, and outlive the test
        each.filters.clear()
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


def logged(logger: logging.Logger, text: io.StringIO) -> list[str]:
    """What passes of one message of each level, through a child as all messages come."""
    text.seek(0)
    text.truncate()
    child = logger.getChild("child")
    for level in (logging.DEBUG, logging.INFO, 25, logging.WARNING, logging.ERROR, logging.CRITICAL):
        child.log(level, "%d", level)
    return [line.split()[-1] for line in text.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("changes", "passing"),
    [
        ({}, ["30", "40", "50"]),
        ({"unknown": True}, ["30", "40", "50"]),
        ({"log_info": True}, ["20", "25", "30", "40", "50"]),
        ({"log_info": True, "log_warning": False}, ["20", "25", "40", "50"]),
        ({"log_error": False}, ["30"]),
        ({"log_warning": False, "log_error": False}, []),
        ({"log_verbose_level": 1}, ["10", "30", "40", "50"]),
    ],
)
def test_levels(changes: Mapping[str, Any], passing: list[str], logger: tuple[logging.Logger, io.StringIO]) -> None:
    logs = Logs(logger[0])
    logs.change(changes)
    assert logged(*logger) == passing
    logs.change({"log_info": False, "log_warning": True, "log_error": True, "log_verbose_level": 0})
    assert logged(*logger) == ["30", "40", "50"]
    assert len(logger[0].handlers[0].filters) <= 1


def test_log_settings_begin_as_the_process_does(logger: tuple[logging.Logger, io.StringIO]) -> None:
    values = {"log_file": "", "log_verbose_level": 0, "log_format": "default", "log_warning": True, "log_error": True}
    assert Logs(logger[0]).settings() == {**values, "log_info": False}
    logger[0].setLevel(logging.DEBUG)
    assert Logs(logger[0]).settings() == {**values, "log_info": True, "log_verbose_level": 1}


def test_log_formats(logger: tuple[logging.Logger, io.StringIO]) -> None:
    logs = Logs(logger[0])
    logs.change({"log_format": "ISO8601"})
    logged(*logger)
    stamp, level, name, _ = logger[1].getvalue().splitlines()[0].split(" ", 3)
    assert (len(stamp), stamp[10], stamp[-1], level, name) == (20, "T", "Z", "WARNING", "tests.settings.child:")
    logs.change({"log_info": True})
    assert logs.settings()["log_format"] == "ISO8601"
    assert logged(*logger)[0] == "20"
    assert logger[1].getvalue()[10] == "T"
    logs.change({"log_format": "default"})
    logged(*logger)
    assert logger[1].getvalue()[10] == " "
    with pytest.raises(InvalidArgument, match="invalid argument for log_format, got: xml"):
        logs.change({"log_format": "xml", "log_info": False})
    assert logs.settings()["log_info"] is True


# --------------------------------------------------------------------------------------------------------- the service


class Repository:
    """What is loaded, on paper: models by name and version."""

    def __init__(self, **models: tuple[int, ...]) -> None:
        loaded = {
            name: {version: SimpleNamespace(version=version, counters=Counters()) for version in versions}
            for name, versions in models.items()
        }
        self.all_available = lambda: True
        self.is_loadable = lambda name: False
        self.snapshot = SimpleNamespace(
            models=loaded, labels={key: {} for key in (*models, "unloaded")}, loadable=frozenset()
        )


@pytest.fixture
def service() -> Service:
    route = RouteConfig(targets=(RouteTarget(model="b", weight=1), RouteTarget(model="a", weight=1)))
    config: Any = SimpleNamespace(
        models={name: SimpleNamespace(labels={}) for name in ("a", "b", "unloaded")}, routes={"route": route}
    )
    repository: Any = Repository(a=(1, 2), b=(2, 3))
    for model, versions in repository.snapshot.models.items():
        for version, loaded in versions.items():
            loaded.counters.ran(version, (0.0, 0.0, 0.0))
            if model == "b":
                loaded.counters.ran(version, (0.0, 0.0, 0.0))
    router = Router(config, repository)
    return Service(
        config,
        LocalEngine(repository, router, RequestTracing()),
        MetricsCollector(),
        ServerDescription("t", "1"),
    )


def asked(service: Service, question: Any) -> Any:
    return service._answers.get(type(question), service._engine.ask)(question)


def test_statistics_of_whom(service: Service) -> None:
    def found(ref: ModelRef | None) -> list[tuple[str, int, int]]:
        return [(each.name, each.version, each.execution_count) for each in asked(service, ModelStatistics(ref))]

    assert found(None) == [("a", 1, 1), ("a", 2, 1), ("b", 2, 2), ("b", 3, 2)]
    assert found(ModelRef("a")) == [("a", 1, 1), ("a", 2, 1)]
    assert found(ModelRef("a", 2)) == [("a", 2, 1)]
    assert found(ModelRef("route")) == [("route", 1, 1), ("route", 2, 2), ("route", 3, 2)]
    assert found(ModelRef("route", 1)) == [("route", 1, 1)]
    for name, version, known in [("c", None, False), ("unloaded", None, True), ("a", 9, False), ("route", 9, False)]:
        with pytest.raises(ModelNotFound) as error:
            found(ModelRef(name, version))
        assert (error.value.name, error.value.version, error.value.known) == (name, version, known)


def test_trace_settings_of_whom(service: Service) -> None:
    assert asked(service, TraceSettings()) == AT_FIRST
    changed = asked(service, TraceSettings("a", {"trace_rate": ("5",)}))
    assert changed == asked(service, TraceSettings("a")) == {**AT_FIRST, "trace_rate": ("5",)}
    assert asked(service, TraceSettings("b")) == asked(service, TraceSettings()) == AT_FIRST
    asked(service, TraceSettings("route", {"trace_rate": ("6",)}))
    assert asked(service, TraceSettings("b"))["trace_rate"] == ("6",), "a route's first target"
    for name in ("c", "unloaded"):
        with pytest.raises(ModelNotFound):
            asked(service, TraceSettings(name, {"trace_rate": ("7",)}))


def test_log_settings_are_answered(service: Service) -> None:
    root = logging.getLogger()
    level, filters = root.level, [list(handler.filters) for handler in root.handlers]
    try:
        before = asked(service, LogSettings())
        assert asked(service, LogSettings({"log_verbose_level": 3})) == {**before, "log_verbose_level": 3}
        assert root.level == logging.DEBUG
    finally:
        root.setLevel(level)
        for handler, kept in zip(root.handlers, filters, strict=True):
            handler.filters[:] = kept
