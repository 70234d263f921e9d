"""The command line and the files that it names -> models, and the sections of the YAML before them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tensorgate.adapters.importers.common import (
    Imported,
    ImportedServer,
    Note,
    Source,
    flow,
    one_line,
    parse_text,
    read_text,
)
from tensorgate.adapters.importers.tf_serving_config.batching import ALONE, PARALLEL, batching
from tensorgate.adapters.importers.tf_serving_config.batching import KIND as BATCHING
from tensorgate.adapters.importers.tf_serving_config.flags import COMMAND_LINE, FLAGS, CommandLine, note_flags
from tensorgate.adapters.importers.tf_serving_config.model_location import TENSORFLOW
from tensorgate.adapters.importers.tf_serving_config.models import KIND as MODELS
from tensorgate.adapters.importers.tf_serving_config.models import PLATFORM, models, parse_models
from tensorgate.adapters.protobuf.messages import message

MONITORING: Final = "tensorflow.serving.MonitoringConfig"
SSL: Final = "tensorflow.serving.SSLConfig"
METRICS_PATH: Final = "/monitoring/prometheus/metrics"
DEFAULT_PORTS: Final = {"port": 8500, "rest_api_port": 8501}
"""Those of the container image, taken where the command line names none."""

_DIALECT: Final = {
    "rest_api_enable_cors_support": "cors",
    "rest_api_timeout_in_ms": "timeout_ms",
    "enable_serialization_as_tensor_content": "tensor_content",
}
"""Flag -> option of the section tf_serving."""
_METRICS: Final = "tf_serving_path"
"""Where the original's metrics are, in the section metrics; null is nowhere."""
_THREADS: Final = {
    "intra_op_threads": "tensorflow_intra_op_parallelism",
    "inter_op_threads": "tensorflow_inter_op_parallelism",
}
"""Option of a model, of either backend -> flag."""
_SESSION: Final = "tensorflow_session_parallelism"
"""What counts where one of those is 0."""
_PROXY: Final = "the gateway's ports speak plain text"
_SSL_FIELDS: Final = {
    "server_key": f"{_PROXY}; a proxy in front (nginx, Envoy) holds the key and leads to the gRPC port below",
    "server_cert": f"{_PROXY}; a proxy in front (nginx, Envoy) holds the certificate",
    "custom_ca": f"{_PROXY}; let the proxy in front know the authority",
    "client_verify": f"{_PROXY}; let the proxy in front ask callers for their certificates",
}


def read_server(line: CommandLine) -> ImportedServer:
    """Reads the files that the flags name. Raises ValueError or OSError for a file that cannot be read at all."""
    note_flags(line)
    notes = line.notes
    scheduling = _scheduling(line, notes)
    extras = _extras(line, scheduling)
    source = _models(line)
    found = models(source, extras)
    metrics = _monitored(line, notes)
    tunnelled = _tunnelled(line, notes)
    sections = [*_listeners(line, tunnelled), *_sections(line, metrics), *_control(line, found)]
    return ImportedServer(sections, found, [*notes, *source.notes])


def _file(line: CommandLine, flag: str, kind: str, *, secret: bool = False) -> Source:
    name = line.of(flag)
    return parse_text(read_text(Path(name), name), kind, name, lenient=True, secret=secret)


def _models(line: CommandLine) -> Source:
    file = line.of("model_config_file")
    if file:
        return parse_models(read_text(Path(file), file), file)
    config = message(MODELS)()
    name, path = line.of("model_name"), line.of("model_base_path")
    config.model_config_list.config.add(name=name, base_path=path, model_platform=PLATFORM)
    return Source(config, COMMAND_LINE)


def _scheduling(line: CommandLine, notes: list[Note]) -> Mapping[str, Any]:
    if not line.of("enable_batching"):
        return ALONE
    if line.of("batching_parameters_file"):
        source = _file(line, "batching_parameters_file", BATCHING)
    else:
        source = Source(message(BATCHING)(), COMMAND_LINE)
    entry = batching(source)
    notes += source.notes
    return entry


def _extras(line: CommandLine, scheduling: Mapping[str, Any]) -> Callable[[str], Mapping[str, Any]]:
    """What each model gets from the command line, by its backend."""

    def extras(backend: str) -> dict[str, Any]:
        threads = {key: line.of(flag) or line.of(_SESSION) for key, flag in _THREADS.items()}
        entry = {**scheduling, **{key: count for key, count in threads.items() if count > 0}}
        if backend != TENSORFLOW:
            entry.pop(PARALLEL, None)
        elif line.of("saved_model_tags") != FLAGS["saved_model_tags"].default:
            entry["tags"] = line.of("saved_model_tags").split(",")
        return entry

    return extras


def _monitored(line: CommandLine, notes: list[Note]) -> dict[str, Any]:
    """What metrics are shown, where the command line says it."""
    if not line.of("monitoring_config_file"):
        return {}
    source = _file(line, "monitoring_config_file", MONITORING)
    prometheus = source.config.prometheus_config
    place = (prometheus.path or METRICS_PATH) if prometheus.enable else None
    if place is not None and re.fullmatch(r"/[^?#\s]*", place) is None:
        raise source.wrong("prometheus_config.path", f'"{place}": expected a path that begins with /')
    source.note("prometheus_config.enable", f"-> metrics.{_METRICS}: {flow(place)}", fate="mapped")
    notes += source.notes
    return {_METRICS: place}


def _tunnelled(line: CommandLine, notes: list[Note]) -> bool:
    """Whether gRPC was encrypted; then none but this machine shall reach the port that is not."""
    if not line.of("ssl_config_file"):
        return False
    source = _file(line, "ssl_config_file", SSL, secret=True)
    for field, _ in source.config.ListFields():
        source.note(field.name, f"is refused: {_SSL_FIELDS[field.name]}", fate="refused")
    notes += source.notes
    return True


def _sections(line: CommandLine, metrics: Mapping[str, Any]) -> Iterator[str]:
    options = {option: line.given[flag] for flag, option in _DIALECT.items() if flag in line.given}
    if options:
        yield f"tf_serving: {flow(options)}"
    if metrics:
        yield f"metrics: {flow(dict(metrics))}"


def _control(line: CommandLine, found: Sequence[Imported]) -> Iterator[str]:
    """Polling; in a comment, what takes its place where callers send reload requests."""
    seconds = line.of("file_system_poll_wait_seconds")
    if seconds > 0:
        yield f"model_control: {{mode: poll, poll_seconds: {seconds}}}  # new versions are found as they come"
    roots = sorted({str(Path(model.entry["path"]).parent) for model in found if model.entry})
    if roots:
        other = {"mode": "explicit", "load": ["*"], "model_roots": roots}
        yield f"# model_control: {one_line(flow(other))}  # in place of polling: takes reload requests"


def _listeners(line: CommandLine, tunnelled: bool) -> Iterator[str]:
    named = any(port in line.given for port in DEFAULT_PORTS)
    rest, grpc = ((line.of(port) if named else DEFAULT_PORTS[port]) for port in ("rest_api_port", "port"))
    yield "listen:                               # TensorFlow Serving's ports"
    if rest:
        yield "  http:"
        yield _listener("0.0.0.0", rest)  # noqa: S104
        yield '    # - {bind: "0.0.0.0:8000"}        # the same models, for clients of Open Inference and grps'
    else:
        yield "  http: []                            # --rest_api_port was not given"
    if grpc:
        yield "  grpc:"
        if tunnelled:
            yield "    # It was encrypted, and is not here: only a proxy on this machine reaches it."
        yield _listener("127.0.0.1" if tunnelled else "0.0.0.0", grpc)  # noqa: S104


def _listener(host: str, port: int) -> str:
    return f'    - {{bind: "{host}:{port}", dialects: [tf_serving]}}'
