"""The command line and the files that it names -> models, and the sections of the YAML before them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from adapters.migration import Imported, Note, Source, flow, parse_text, read_text
from adapters.pb import message
from adapters.tf_serving_config.batching import ALONE, batching
from adapters.tf_serving_config.batching import KIND as BATCHING
from adapters.tf_serving_config.flags import COMMAND_LINE, CommandLine, note_flags
from adapters.tf_serving_config.models import KIND as MODELS
from adapters.tf_serving_config.models import PLATFORM, models
from adapters.tf_serving_config.place import ONNX

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
_METRICS: Final = {"tf_serving_names": True}
"""What `enable` of the monitoring configuration becomes in the section metrics."""
_THREADS: Final = {
    ONNX: {
        "intra_op_threads": "tensorflow_intra_op_parallelism",
        "inter_op_threads": "tensorflow_inter_op_parallelism",
    }
}
"""Backend -> its options of threads, each with its flag; without that, tensorflow_session_parallelism counts."""
_PROXY: Final = "the gateway's ports speak plain text"
_SSL_FIELDS: Final = {
    "server_key": f"{_PROXY}; a proxy in front (nginx, Envoy) holds the key and leads to the gRPC port below",
    "server_cert": f"{_PROXY}; a proxy in front (nginx, Envoy) holds the certificate",
    "custom_ca": f"{_PROXY}; let the proxy in front know the authority",
    "client_verify": f"{_PROXY}; let the proxy in front ask callers for their certificates",
}


@dataclass(frozen=True, slots=True)
class Server:
    """What a TensorFlow Serving server was told: `sections` are lines of YAML before `models`."""

    sections: Sequence[str]
    models: Sequence[Imported]
    notes: Sequence[Note]


def read_server(line: CommandLine) -> Server:
    """Reads the files that the flags name. Raises ValueError or OSError for a file that cannot be read at all."""
    note_flags(line)
    notes = line.notes
    scheduling = _scheduling(line, notes)
    extras = _extras(line, scheduling)
    source = _models(line)
    found = models(source, extras)
    watched = _monitored(line, notes)
    tunnelled = _tunnelled(line, notes)
    return Server([*_sections(line, watched, tunnelled)], found, [*notes, *source.notes])


def _file(line: CommandLine, flag: str, kind: str, *, secret: bool = False) -> Source:
    name = line.of(flag)
    return parse_text(read_text(Path(name), name), kind, name, lenient=True, secret=secret)


def _models(line: CommandLine) -> Source:
    if line.of("model_config_file"):
        return _file(line, "model_config_file", MODELS)
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
    session = line.of("tensorflow_session_parallelism")

    def extras(backend: str) -> dict[str, Any]:
        threads = {key: line.of(flag) or session for key, flag in _THREADS.get(backend, {}).items()}
        return {**scheduling, **{key: count for key, count in threads.items() if count > 0}}

    return extras


def _monitored(line: CommandLine, notes: list[Note]) -> bool:
    """Whether the original's metrics are shown."""
    if not line.of("monitoring_config_file"):
        return False
    source = _file(line, "monitoring_config_file", MONITORING)
    prometheus = source.config.prometheus_config
    if prometheus.enable:
        source.note("prometheus_config.enable", f"-> metrics.tf_serving_names, at {METRICS_PATH}", fate="mapped")
    elif source.config.HasField("prometheus_config"):
        source.note("prometheus_config.enable", "is ignored: it is off, and so are the metrics")
    if prometheus.path not in ("", METRICS_PATH):
        text = f"is refused: the path is {METRICS_PATH}; let Prometheus read that one (metrics_path), or /metrics"
        source.note("prometheus_config.path", text, fate="refused")
    notes += source.notes
    return bool(prometheus.enable)


def _tunnelled(line: CommandLine, notes: list[Note]) -> bool:
    """Whether gRPC was encrypted; then none but this machine shall reach the port that is not."""
    if not line.of("ssl_config_file"):
        return False
    source = _file(line, "ssl_config_file", SSL, secret=True)
    for field, _ in source.config.ListFields():
        source.note(field.name, f"is refused: {_SSL_FIELDS[field.name]}", fate="refused")
    notes += source.notes
    return True


def _sections(line: CommandLine, watched: bool, tunnelled: bool) -> Iterator[str]:
    yield from _listeners(line, tunnelled)
    options = {option: line.given[flag] for flag, option in _DIALECT.items() if flag in line.given}
    if options:
        yield f"tf_serving: {flow(options)}"
    if watched:
        yield f"metrics: {flow(_METRICS)}"
    seconds = line.of("file_system_poll_wait_seconds")
    if seconds > 0:
        yield f"model_control: {{mode: poll, poll_seconds: {seconds}}}  # new versions are found as they come"


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
