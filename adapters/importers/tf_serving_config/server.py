"""The command line and the files that it names -> models, and the sections of the YAML before them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
_PEM_FILES: Final = {
    "server_cert": ("certificate", "server.crt"),
    "server_key": ("key", "server.key"),
    "custom_ca": ("client_ca", "client_ca.crt"),
}
"""Field -> the option of a listener's tls, and the file that has its text."""
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
_ITERATIONS: Final = "num_request_iterations_for_warmup"
_WARMUP: Final = "warmup_requests"
_LIMITS: Final = {"max_body_bytes": 2**31 - 1, "max_binary_bytes": 2**31 - 1}
"""The original has none over HTTP, and gRPC's largest message over gRPC."""
_NO_FILE: Final = "the files with it are written beside the YAML; say where that is with -o FILE"
_ROOTS: Final = (
    "is refused: callers' certificates were checked against the authorities that gRPC trusts; name the one that signs "
    "your callers' in listen.grpc tls: {client_ca: FILE}"
)


@dataclass(frozen=True, slots=True)
class _Encryption:
    """What gRPC's port was told of TLS: the section of the listener, and the PEM files that it names."""

    section: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    closed: bool = False
    """It was encrypted in a way that is not taken over: none but this machine shall reach the port."""


def read_server(line: CommandLine, folder: str = "") -> ImportedServer:
    """Reads the files that the flags name; PEM files are to be written into the `folder` beside the YAML, "" where
    there is no place for them. Raises ValueError or OSError for a file that cannot be read at all.
    """
    note_flags(line)
    notes = line.notes
    scheduling = _scheduling(line, notes)
    extras = _extras(line, scheduling)
    source = _models(line)
    found = models(source, extras)
    metrics = _monitored(line, notes)
    encryption = _encryption(line, notes, folder)
    sections = [*_listeners(line, encryption), *_sections(line, metrics), *_control(line, found)]
    return ImportedServer(sections, found, [*notes, *source.notes], encryption.files)


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


def _encryption(line: CommandLine, notes: list[Note], folder: str) -> _Encryption:
    """Raises ValueError for keys with which the original would not start, either."""
    if not line.of("ssl_config_file"):
        return _Encryption()
    source = _file(line, "ssl_config_file", SSL, secret=True)
    texts = _pem_texts(source)
    closed = not folder or (source.config.client_verify and "custom_ca" not in texts)
    for name in texts:
        key, file = _PEM_FILES[name]
        if folder:
            text = f"-> listen.grpc tls.{key}: {folder}/{file}, which only its owner may read"
            source.note(name, text, fate="mapped")
        else:
            source.note(name, f"is refused: {_NO_FILE}", fate="refused")
    notes += source.notes
    if not folder:
        return _Encryption(closed=True)
    section = {key: f"{folder}/{file}" for key, file in [_PEM_FILES[name] for name in texts]}
    return _Encryption(section, {f"{folder}/{_PEM_FILES[name][1]}": text for name, text in texts.items()}, closed)


def _pem_texts(source: Source) -> dict[str, str]:
    """Field -> what is to be in a file. Raises ValueError for keys with which the original would not start, either."""
    config = source.config
    texts = {name: getattr(config, name) for name in _PEM_FILES if getattr(config, name)}
    for name in ("server_key", "server_cert"):
        if name not in texts:
            raise source.wrong(name, "is missing; expected its text in PEM form")
    if not config.client_verify and texts.pop("custom_ca", None):
        source.note("custom_ca", "is ignored: callers are not asked for certificates")
    if config.client_verify:
        known = "custom_ca" in texts
        text = "-> listen.grpc tls.client: require" if known else _ROOTS
        source.note("client_verify", text, fate="mapped" if known else "refused")
    return texts


def _sections(line: CommandLine, metrics: Mapping[str, Any]) -> Iterator[str]:
    yield f"limits: {flow(_LIMITS)}   # the original had none"
    options = {option: line.given[flag] for flag, option in _DIALECT.items() if flag in line.given}
    if not line.of("enable_model_warmup"):
        options[_WARMUP] = 0
    elif line.of(_ITERATIONS) > 0:
        options[_WARMUP] = line.of(_ITERATIONS)
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


def _listeners(line: CommandLine, encryption: _Encryption) -> Iterator[str]:
    named = any(port in line.given for port in DEFAULT_PORTS)
    rest, grpc = ((line.of(port) if named else DEFAULT_PORTS[port]) for port in ("rest_api_port", "port"))
    yield "listen:                               # TensorFlow Serving's ports"
    if rest:
        yield "  http:"
        yield _listener(f"0.0.0.0:{rest}", {})
        yield '    # - {bind: "0.0.0.0:8000"}        # the same models, for clients of Open Inference and grps'
    else:
        yield "  http: []                            # --rest_api_port was not given"
    socket = line.of("grpc_socket_path")
    if grpc or socket:
        yield "  grpc:"
    if grpc:
        if encryption.closed:
            yield "    # It was encrypted otherwise than here: nobody but this machine reaches it."
        host = "127.0.0.1" if encryption.closed else "0.0.0.0"  # noqa: S104
        yield _listener(f"{host}:{grpc}", encryption.section)
    if socket:
        yield _listener(f"unix:{Path(socket).absolute()}", encryption.section)


def _listener(bind: str, tls: Mapping[str, str]) -> str:
    encrypted = f", tls: {flow(dict(tls))}" if tls else ""
    return f"    - {{bind: {json.dumps(bind)}, dialects: [tf_serving]{encrypted}}}"
