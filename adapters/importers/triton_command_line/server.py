"""The flags of a command line -> lines of YAML: ports, control of models, readiness, limits, traces."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from tensorgate.adapters.importers.common import flow
from tensorgate.adapters.importers.triton_command_line.flags import TritonCommandLine
from tensorgate.gateway.contract.extras import install_command

_EVERY: Final = "*"
_EXIT_SECONDS: Final = 30
_POLL_SECONDS: Final = 15
_ANY: Final = "0.0.0.0"  # noqa: S104
_UPLOADS: Final = "# allow_uploads: true in it lets loads bring files, as in Triton; it needs admin or auth beside it"
_TRACES_PATH: Final = re.compile(r"/v1/traces/?\Z")

Relative = Callable[[str], str]
"""A path as it is to stand in the YAML."""


def offers() -> Iterator[str]:
    """What a command line could have said of the server, which nobody showed us, as comments."""
    yield "server_name: triton                   # what GET /v2 tells (--id)"
    yield "# Was more on the old command line? Import it, --from-command-line 'tritonserver --…', or take from these:"
    yield "# readiness: lenient                  # --strict-readiness=false"
    yield "# model_control: {mode: explicit, load: ['*']}            # --model-control-mode=explicit --load-model=*"
    yield _UPLOADS
    yield "# shared_memory: {system: true, cuda: true}               # regions of callers on this machine"
    yield "# open_inference: {http_header_forward_pattern: '^x-'}    # --http-header-forward-pattern"


def sections(line: TritonCommandLine, relative: Relative) -> Iterator[str]:
    """Lines of YAML; further notes go to the command line's."""
    yield "listen:                               # Triton's ports"
    yield from _listeners(line, relative)
    yield f"server_name: {flow(line.text('id', 'triton'))}"
    yield from _control(line)
    if not line.truth("strict-readiness", default=True):
        yield "readiness: lenient"
    if line.truth("allow-client-shm", default=False):
        yield "shared_memory: {system: true, cuda: true}"
    else:
        yield "# shared_memory: {system: true, cuda: true}   # older releases always let callers share memory"
    patterns = {
        key: line.text(name)
        for key, name in (
            ("http_header_forward_pattern", "http-header-forward-pattern"),
            ("grpc_header_forward_pattern", "grpc-header-forward-pattern"),
        )
        if line.text(name)
    }
    if patterns:
        yield f"open_inference: {flow(patterns)}"
    if "http-max-input-size" in line.given:
        yield f"limits: {{max_body_bytes: {line.number('http-max-input-size', 0)}}}"
    seconds = max(0, line.number("exit-timeout-secs", _EXIT_SECONDS))
    if seconds != _EXIT_SECONDS:
        yield f"drain_seconds: {seconds}"
    yield from _cache(line)
    yield from _traces(line, relative)


def _listeners(line: TritonCommandLine, relative: Relative) -> Iterator[str]:
    http = line.text("http-address", _ANY)
    for key, address, default, more in (
        ("http", http, 8000, {}),
        ("grpc", line.text("grpc-address", _ANY), 8001, _tls(line, relative)),
    ):
        if line.truth(f"allow-{key}", default=True):
            yield f"  {key}:"
            yield f"    - {flow({'bind': _bind(address, line.number(f'{key}-port', default))} | more)}"
        else:
            yield f"  {key}: []"
    if line.truth("allow-metrics", default=True):
        bind = _bind(line.text("metrics-address", http), line.number("metrics-port", 8002))
        yield f"  metrics: {flow({'bind': bind})}"


def _bind(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _tls(line: TritonCommandLine, relative: Relative) -> dict[str, Any]:
    mutual = line.truth("grpc-use-ssl-mutual", default=False)
    if not mutual and not line.truth("grpc-use-ssl", default=False):
        return {}
    files = {"certificate": "grpc-server-cert", "key": "grpc-server-key"} | (
        {"client_ca": "grpc-root-cert"} if mutual else {}
    )
    lacking = [flag for flag in files.values() if not line.text(flag)]
    if lacking:
        use = "grpc-use-ssl-mutual" if mutual else "grpc-use-ssl"
        line.note(use, f"is refused: it needs --{lacking[0]}=FILE; the port speaks plain text until then", "refused")
        return {}
    return {"tls": {key: relative(line.text(flag)) for key, flag in files.items()}}


def _control(line: TritonCommandLine) -> Iterator[str]:
    mode = line.text("model-control-mode", "none").lower()
    if mode == "poll":
        control: dict[str, Any] = {"mode": mode, "poll_seconds": line.number("repository-poll-secs", _POLL_SECONDS)}
        yield f"model_control: {flow(control)}"
    elif mode == "explicit":
        yield f"model_control: {flow({'mode': mode, 'load': list(dict.fromkeys(line.given.get('load-model', ())))})}"
        yield _UPLOADS


def _cache(line: TritonCommandLine) -> Iterator[str]:
    size = line.text("response-cache-byte-size")
    for each in line.given.get("cache-config", ()):
        name, _, setting = each.partition(",")
        key, _, value = setting.partition("=")
        if (name, key) == ("local", "size") and value.isdecimal():
            size = value
        else:
            line.note("cache-config", f"is refused: {name} is no cache of this server, which has one, local", "refused")
    if size.isdecimal() and int(size):
        yield f"response_cache: {{max_bytes: {int(size)}}}   # of models that ask for it"


def _traces(line: TritonCommandLine, relative: Relative) -> Iterator[str]:
    said: dict[str, list[str]] = {}
    for each in line.given.get("trace-config", ()):
        mode, _, setting = each.rpartition(",")
        key, _, value = setting.partition("=")
        said.setdefault(key if mode in ("", "triton") else f"{mode}.{key}", []).append(value)
    for key in ("file", "level", "rate", "count", "log-frequency"):
        if line.given.get(f"trace-{key}"):
            said.setdefault(key, []).extend(line.given[f"trace-{key}"])
    if said.get("mode", [""])[-1] == "opentelemetry":
        yield from _spans(said)
        return
    tracing: dict[str, Any] = {"file": relative(said["file"][-1])} if "file" in said else {}
    levels = sorted({level.upper() for level in said.get("level", ())} & {"TIMESTAMPS", "TENSORS"})
    if levels:
        tracing["level"] = levels
    for key in ("rate", "count", "log-frequency"):
        if said.get(key, [""])[-1].lstrip("-").isdecimal():
            tracing[key.replace("-", "_")] = int(said[key][-1])
    if tracing:
        yield f"tracing: {flow(tracing)}"


def _spans(said: Mapping[str, Sequence[str]]) -> Iterator[str]:
    url = said.get("opentelemetry.url", ["http://localhost:4318/v1/traces"])[-1]
    rate = said.get("rate", ["1000"])[-1]
    ratio = 1 / int(rate) if rate.isdecimal() and int(rate) else 1
    spans = {"endpoint": _TRACES_PATH.sub("", url), "ratio": round(ratio, 6)}
    yield f"opentelemetry: {flow(spans)}   # {install_command('otel')}"
