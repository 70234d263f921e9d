"""server.yml -> ports, limits and options of the dialect; with inference.yml, the whole server."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tensorgate.adapters.importers.common import ImportedServer, flow
from tensorgate.adapters.importers.common.tree import Item, read_tree
from tensorgate.adapters.importers.grps_config.dag import read_dag
from tensorgate.adapters.importers.grps_config.models import Named, SkeletonFolder, read_models

_FRAMEWORKS: Final = ("http", "http+grpc", "http+brpc")
_HOST: Final = re.compile(r"[0-9A-Za-z.:_-]{1,253}")
_PATH: Final = re.compile(r"/[a-zA-Z0-9_\-/]+")
_MAX_BODY_BYTES: Final = 1 << 30
_THREADS: Final = "one event loop serves all connections and models run beside it; see max_queue_size of each model"
_BRPC: Final = "-> http alone; brpc is refused: let its callers send the same messages by gRPC, with listen.grpc"
_GPU: Final = {
    "devices": "each model names its device, and the metrics show every GPU",
    "mem_manager_type": "memory of the device is managed by what runs the model",
    "mem_limit_mib": "memory of the device is taken when it is needed",
    "mem_gc_enable": "memory is given back when a model is unloaded",
    "mem_gc_interval": "memory is given back when a model is unloaded",
}
_LOG: Final = "logs go to stderr; let the container or systemd keep them"


@dataclass(frozen=True, slots=True)
class _Ports:
    framework: str
    host: str
    numbers: Sequence[int]


def read_server(server: Path, inference: Path, programs: str = "") -> ImportedServer:
    """Classes that are to be written go into the folder `programs` beside the YAML, "" where there is no place.

    Raises ValueError or OSError for a file that cannot be read, or with which grps would not start.
    """
    settings, tree = read_tree(server), read_tree(inference)
    interface = settings.member("interface").mapping()
    if not interface.given:
        raise settings.wrong("there is no interface")
    ports = _ports(interface)
    options = _customized(interface.member("customized_predict_http").mapping())
    interface.leftovers()
    _ignored(settings)
    beside = SkeletonFolder(inference.parent, programs)
    models = read_models(tree, beside)
    default = read_dag(tree, models)
    tree.leftovers()
    if default:
        options = {"default_model": default} | options
    if ports.framework == "http+brpc":
        options["http_status"] = "always_200"
    sections = [*_listeners(ports), *_sections(options, models)]
    notes = [*settings.file.notes, *tree.file.notes]
    return ImportedServer(sections, [each.imported for each in models], notes, skeletons=beside.texts)


def _ports(interface: Item) -> _Ports:
    framework = interface.member("framework").choice(*_FRAMEWORKS)
    host, port = interface.member("host"), interface.member("port")
    address = host.text("0.0.0.0")  # noqa: S104
    if not _HOST.fullmatch(address):
        raise host.wrong(f"found {address}, expected an address")
    texts = [each.strip() for each in port.text().split(",")]
    if not all(each.isascii() and each.isdecimal() and 1 <= int(each) <= 65535 for each in texts):
        raise port.wrong(f'found "{port.text()}", expected ports as in "7080,7081"')
    numbers = [int(each) for each in texts]
    if len(numbers) != (1 if framework == "http" else 2):
        raise port.wrong(f"{len(numbers)} ports for {framework}")
    if len(set(numbers)) < len(numbers):
        raise port.wrong("the ports must differ")
    if framework == "http+brpc":
        interface.member("framework").note(_BRPC, "refused")
    elif len(numbers) == 2 and address != "0.0.0.0":  # noqa: S104
        host.note("-> of both ports; gRPC of the original listened on every address", "told")
    port.note(f"-> listen, {framework}", "mapped")
    return _Ports(framework, address, numbers)


def _customized(item: Item) -> dict[str, Any]:
    if not item.given:
        return {}
    path, body = item.member("path"), item.member("customized_body")
    control = item.member("streaming_ctrl").mapping()
    mode, key = control.member("ctrl_mode"), control.member("ctrl_key")
    kind = control.member("res_content_type")
    item.leftovers()
    control.leftovers()
    streaming = {
        "ctrl_mode": mode.choice("query_param", "header_param", "body_param") if mode.given else "",
        "ctrl_key": key.text(),
        "res_content_type": kind.text(),
    }
    if not _PATH.fullmatch(path.text()) or path.text().startswith("/grps/v1"):
        raise path.wrong(f'found "{path.text()}", expected a path of its own, such as /predict')
    item.note("-> grps.customized_predict_http", "mapped")
    if body.truth():
        remark = "the model gets the raw request and shapes the raw response; see the outputs below grps.reply"
        body.note(remark, "told")
    own: dict[str, Any] = {"path": path.text()} | ({"customized_body": True} if body.truth() else {})
    given = {name: value for name, value in streaming.items() if value}
    return {"customized_predict_http": own | ({"streaming_ctrl": given} if given else {})}


def _ignored(settings: Item) -> None:
    for name in ("max_connections", "max_concurrency"):
        settings.member(name).ignore(_THREADS)
    gpu, log = settings.member("gpu").mapping(), settings.member("log").mapping()
    for name, reason in _GPU.items():
        gpu.member(name).ignore(reason)
    for name in ("log_dir", "log_backup_count"):
        log.member(name).ignore(_LOG)
    for item in (gpu, log, settings):
        item.leftovers()


def _listeners(ports: _Ports) -> Iterator[str]:
    yield "listen:                               # grps' ports"
    host = f"[{ports.host}]" if ":" in ports.host else ports.host
    binds = [f'    - {{bind: "{host}:{number}", dialects: [grps]}}' for number in ports.numbers]
    yield "  http:"
    yield binds[0]
    yield '    # - {bind: "0.0.0.0:8000"}        # the same models, for clients of other servers'
    if ports.framework == "http+grpc":
        yield "  grpc:"
        yield binds[1]


def _sections(options: dict[str, Any], models: Sequence[Named]) -> Iterator[str]:
    yield f"limits: {{max_body_bytes: {_MAX_BODY_BYTES}}}    # the original had no limit over HTTP"
    if options:
        yield "grps:"
        yield from (f"  {name}: {flow(value)}" for name, value in options.items())
