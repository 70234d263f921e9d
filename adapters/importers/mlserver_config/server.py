"""settings.json, and the model-settings.json of every model below it -> a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tensorgate.adapters.importers.common import ImportedServer, flow
from tensorgate.adapters.importers.common.tabular import TABULAR_FILE, TABULAR_TEXT
from tensorgate.adapters.importers.common.tree import File, Item, read_tree
from tensorgate.adapters.importers.mlserver_config.models import MlserverImport, read_models

SETTINGS: Final = "settings.json"
MODEL_SETTINGS: Final = "model-settings.json"
_PORTS: Final = {"http_port": 8080, "grpc_port": 8081, "metrics_port": 8082}
_LOOP: Final = "one event loop serves all connections; a model with process: own computes beside it"
_LOG: Final = "logs go to stderr, as tensorgate serve --log-level says"
_IGNORED: Final = {
    "debug": _LOG,
    "parallel_workers": _LOOP,
    "parallel_workers_timeout": _LOOP,
    "use_structured_logging": "access_log writes a line of JSON for each call",
    "logging_settings": _LOG,
    "environments_dir": "all models share this server's Python",
    "metrics_dir": "metrics need no files",
    "metrics_rest_server_prefix": "metrics have names of their own",
    "model_repository_root": "the folder that is imported is the root",
    "server_version": "the version is this server's",
    "gzip_enabled": "answers are compressed for callers who ask for it",
    "extensions": "Open Inference's extensions are always there",
    "cache_size": "response_cache.max_bytes bounds it in bytes",
}
_KAFKA: Final = ("kafka_servers", "kafka_topic_input", "kafka_topic_output")
_NO_KAFKA: Final = "is refused: there is no Kafka; let a consumer call POST /v2/models/NAME/infer"
_NO_REPOSITORY: Final = "is refused: a repository of your own has no place here; list the models"


def read_server(root: Path, programs: str = "", *, trusted: bool = False) -> ImportedServer:
    """`programs` is the folder beside the YAML that gets the classes of models, "" where there is no place; `trusted`:
    their files may be programs. Raises ValueError, or OSError.
    """
    if not root.is_dir():
        raise ValueError(f"{root}: no such folder")
    files = sorted(root.rglob(MODEL_SETTINGS))
    if not files:
        raise ValueError(f"{root}: there is no {MODEL_SETTINGS} in it or below it")
    place = root / SETTINGS
    settings = read_tree(place) if place.is_file() else Item(File(str(place)), "", 0, {})
    sections = list(_sections(settings))
    beside = MlserverImport(programs, trusted, settings.member("cache_enabled").truth())
    models = read_models(files, beside)
    settings.leftovers()
    texts = {f"{programs}/{TABULAR_FILE}": TABULAR_TEXT} if beside.is_tabular else {}
    return ImportedServer(sections, models, settings.file.notes, skeletons=texts)


def _sections(settings: Item) -> Iterator[str]:
    host = settings.member("host").text("0.0.0.0")  # noqa: S104
    binds = {name: f"{host}:{settings.member(name).number(port, 0)}" for name, port in _PORTS.items()}
    http: dict[str, Any] = {"bind": binds["http_port"], "dialects": ["open_inference"]}
    http |= _cors(settings.member("cors_settings").mapping())
    yield "listen:                               # MLServer's ports"
    yield "  http:"
    yield f"    - {flow(http)}"
    yield "  grpc:"
    yield f"    - {flow({'bind': binds['grpc_port'], 'dialects': ['open_inference']})}"
    endpoint = settings.member("metrics_endpoint")
    if isinstance(settings.value, dict) and "metrics_endpoint" in settings.value and not endpoint.given:
        endpoint.note("-> no listen.metrics", "mapped")
    else:
        if endpoint.text("/metrics") != "/metrics":
            endpoint.note("is refused: metrics are at /metrics; let Prometheus look there", "refused")
        yield f"  metrics: {flow({'bind': binds['metrics_port']})}"
    yield f"server_name: {flow(settings.member('server_name').text('mlserver'))}"
    length = settings.member("grpc_max_message_length")
    if length.given:
        yield f"limits: {{max_binary_bytes: {min(length.number(0, 1), 2**31 - 1)}}}"
    collector = settings.member("tracing_server")
    if collector.given:
        endpoint_url = f"http://{collector.text()}"
        yield f"opentelemetry: {flow({'endpoint': endpoint_url, 'protocol': 'grpc', 'ratio': 1})}"
    startup = settings.member("load_models_at_startup")
    if startup.given and not startup.truth():
        startup.note("-> model_control: {mode: explicit}", "mapped")
        yield "model_control: {mode: explicit}       # callers load what they want"
    _told(settings)


def _cors(cors: Item) -> dict[str, Any]:
    origins = [each.text() for each in cors.member("allow_origins").items()]
    for name in ("allow_credentials", "allow_origin_regex", "allow_methods", "expose_headers"):
        cors.member(name).ignore("a page may call from the origins that are listed")
    headers = [each.text() for each in cors.member("allow_headers").items() if each.text() != "*"]
    age = cors.member("max_age")
    given = {"headers": headers} if headers else {}
    seconds = {"max_age_seconds": age.number(600, 0)} if age.given else {}
    cors.leftovers()
    return {"cors": {"origins": origins} | given | seconds} if origins else {}


def _told(settings: Item) -> None:
    for name, reason in _IGNORED.items():
        settings.member(name).ignore(reason)
    for name in ("kafka_enabled", *_KAFKA):
        item = settings.member(name)
        if item.given and settings.member("kafka_enabled").truth():
            item.note(_NO_KAFKA, "refused")
    repository = settings.member("model_repository_implementation")
    if repository.given:
        repository.note(_NO_REPOSITORY, "refused")
    root = settings.member("root_path")
    if root.text().strip("/"):
        root.note("is refused: paths begin with /v2; let a proxy in front cut the prefix off", "refused")
