"""tritonserver's command line: every flag that it takes, how its value is read, and what becomes of it here."""

from __future__ import annotations

import difflib
import shlex
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from tensorgate.adapters.importers.common import Note, UsageError, printable
from tensorgate.adapters.importers.common.source import Fate

COMMAND_LINE: Final = "command line"
PROGRAM: Final = "tritonserver"
ValueKind: TypeAlias = Literal["text", "number", "truth", "nothing"]

_LOOP: Final = "one event loop serves all connections; processes: {doors: N} are more of them"
_POOLS: Final = "memory is taken when it is needed, and given back when a model is unloaded"
_KEEPALIVE: Final = "connections stay until their client goes; pings are answered"
_FILES: Final = "backends are parts of this server, and libraries of others are not loaded"
_LOG: Final = "the log goes to stderr, by tensorgate serve --log-level"
_CLOUD: Final = "there is no such door; let the platform call POST /v2/models/NAME/infer"
_RESTRICTED: Final = (
    "what changes the server needs a header with admin: {header: NAME, value_file: FILE}; who may call what else is in "
    "auth"
)
_TRACE: Final = "tracing, or opentelemetry"

_FLAGS: Final[Mapping[Fate, Mapping[str, tuple[ValueKind, str]]]] = {
    "mapped": {
        "model-repository": ("text", "the models, or repositories where models come and go"),
        "model-store": ("text", "the same"),
        "model-control-mode": ("text", "model_control.mode"),
        "load-model": ("text", "model_control.load"),
        "repository-poll-secs": ("number", "model_control.poll_seconds"),
        "strict-readiness": ("truth", "readiness: strict, or lenient"),
        "id": ("text", "server_name"),
        "exit-timeout-secs": ("number", "drain_seconds"),
        "allow-http": ("truth", "listen.http"),
        "http-port": ("number", "listen.http"),
        "http-address": ("text", "listen.http"),
        "http-header-forward-pattern": ("text", "open_inference.http_header_forward_pattern"),
        "http-max-input-size": ("number", "limits.max_body_bytes; binary tensors have limits.max_binary_bytes"),
        "allow-grpc": ("truth", "listen.grpc"),
        "grpc-port": ("number", "listen.grpc"),
        "grpc-address": ("text", "listen.grpc"),
        "grpc-header-forward-pattern": ("text", "open_inference.grpc_header_forward_pattern"),
        "grpc-use-ssl": ("truth", "tls of listen.grpc"),
        "grpc-use-ssl-mutual": ("truth", "tls of listen.grpc, with client_ca"),
        "grpc-server-cert": ("text", "tls.certificate of listen.grpc"),
        "grpc-server-key": ("text", "tls.key of listen.grpc"),
        "grpc-root-cert": ("text", "tls.client_ca of listen.grpc, with --grpc-use-ssl-mutual"),
        "allow-metrics": ("truth", "listen.metrics"),
        "metrics-port": ("number", "listen.metrics"),
        "metrics-address": ("text", "listen.metrics"),
        "allow-client-shm": ("truth", "shared_memory"),
        "response-cache-byte-size": ("number", "response_cache.max_bytes"),
        "cache-config": ("text", "response_cache.max_bytes, of the cache local"),
        "trace-config": ("text", _TRACE),
        "trace-file": ("text", "tracing.file"),
        "trace-level": ("text", "tracing.level"),
        "trace-rate": ("number", "tracing.rate"),
        "trace-count": ("number", "tracing.count"),
        "trace-log-frequency": ("number", "tracing.log_frequency"),
    },
    "ignored": {
        "exit-on-error": ("truth", "a model that fails to load keeps the server unready; the others are loaded"),
        "disable-auto-complete-config": ("nothing", "what a configuration lacks is read from the model's file"),
        "strict-model-config": ("truth", "what a configuration lacks is read from the model's file"),
        "model-load-thread-count": ("number", "models are loaded side by side, by all cores but one"),
        "model-load-retry-count": ("number", "a model that fails to load is loaded again when its files change"),
        "enable-peer-access": ("truth", "each batch stays on one GPU"),
        "reuse-http-port": ("truth", "processes: {doors: N} share their ports"),
        "http-thread-count": ("number", _LOOP),
        "reuse-grpc-port": ("truth", "processes: {doors: N} share their ports"),
        "grpc-infer-thread-count": ("number", _LOOP),
        "grpc-infer-allocation-pool-size": ("number", _LOOP),
        "grpc-max-response-pool-size": ("number", "a stream's answers wait until its client takes them"),
        "grpc-infer-response-compression-level": ("text", "answers over gRPC are sent as they are"),
        "grpc-keepalive-time": ("number", _KEEPALIVE),
        "grpc-keepalive-timeout": ("number", _KEEPALIVE),
        "grpc-keepalive-permit-without-calls": ("truth", _KEEPALIVE),
        "grpc-http2-max-pings-without-data": ("number", _KEEPALIVE),
        "grpc-http2-min-recv-ping-interval-without-data": ("number", _KEEPALIVE),
        "grpc-http2-max-ping-strikes": ("number", _KEEPALIVE),
        "grpc-max-connection-age": ("number", _KEEPALIVE),
        "grpc-max-connection-age-grace": ("number", _KEEPALIVE),
        "log-verbose": ("number", _LOG),
        "log-info": ("truth", _LOG),
        "log-warning": ("truth", _LOG),
        "log-error": ("truth", _LOG),
        "log-format": ("text", _LOG),
        "log-file": ("text", _LOG),
        "allow-gpu-metrics": ("truth", "GPUs are shown where there are any"),
        "allow-cpu-metrics": ("truth", "the process is shown"),
        "metrics-interval-ms": ("number", "metrics are read when somebody asks for them"),
        "metrics-config": ("text", "latencies are histograms, nv_inference_* counters as there"),
        "cache-directory": ("text", _FILES),
        "backend-directory": ("text", _FILES),
        "repoagent-directory": ("text", _FILES),
        "rate-limit-resource": ("text", "instances run when they are free; see cpu.threads and instances"),
        "pinned-memory-pool-byte-size": ("number", _POOLS),
        "cuda-memory-pool-byte-size": ("text", _POOLS),
        "cuda-virtual-address-size": ("text", _POOLS),
        "min-supported-compute-capability": ("number", "each backend says itself which GPUs it can do with"),
        "buffer-manager-thread-count": ("number", _POOLS),
        "host-policy": ("text", "the operating system places threads; numactl binds the whole process"),
        "sagemaker-port": ("number", _CLOUD),
        "sagemaker-safe-port-range": ("text", _CLOUD),
        "sagemaker-thread-count": ("number", _CLOUD),
        "vertex-ai-port": ("number", _CLOUD),
        "vertex-ai-thread-count": ("number", _CLOUD),
        "vertex-ai-default-model": ("text", _CLOUD),
        "help": ("nothing", "tensorgate serve --help"),
    },
    "refused": {
        "model-config-name": ("text", "copy configs/NAME.pbtxt of each model over its config.pbtxt, and import again"),
        "model-namespacing": ("truth", "give models of the same name different names"),
        "model-load-gpu-limit": ("text", "write memory_limit_bytes beside each ONNX model"),
        "backend-config": (
            "text",
            "backends have options of their own beside each model: tensorgate schema lists them",
        ),
        "rate-limit": ("text", "instances run when they are free; rate_limits bounds what callers may ask for"),
        "http-restricted-api": ("text", _RESTRICTED),
        "grpc-restricted-protocol": ("text", _RESTRICTED),
        "allow-sagemaker": ("truth", _CLOUD),
        "allow-vertex-ai": ("truth", _CLOUD),
    },
}
"""What becomes of a flag -> flag -> the kind of its value, and a key of the YAML or the reason."""
_OFF: Final = {
    "rate-limit": "off",
    "model-namespacing": "false",
    "allow-sagemaker": "false",
    "allow-vertex-ai": "false",
}
"""What is refused only with another value."""
_SECRET: Final = frozenset(("http-restricted-api", "grpc-restricted-protocol"))
_TRUTHS: Final = {"true": "true", "1": "true", "false": "false", "0": "false"}


@dataclass(frozen=True, slots=True)
class TritonFlag:
    """`becomes` is a key of the YAML, or, of what is ignored or refused, the reason."""

    kind: ValueKind
    fate: Fate
    becomes: str


TRITON_FLAGS: Final[Mapping[str, TritonFlag]] = {
    name: TritonFlag(kind, fate, becomes) for fate, rows in _FLAGS.items() for name, (kind, becomes) in rows.items()
}


@dataclass(slots=True)
class TritonCommandLine:
    """The flags that were given, each with its values in their order; `true` and `false` are written so."""

    given: dict[str, list[str]] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    def text(self, name: str, default: str = "") -> str:
        """The last value."""
        return self.given.get(name, [default])[-1]

    def number(self, name: str, default: int) -> int:
        return int(self.text(name, str(default)))

    def truth(self, name: str, *, default: bool) -> bool:
        return self.text(name, str(default).lower()) == "true"

    @property
    def repositories(self) -> list[str]:
        return [*self.given.get("model-repository", ()), *self.given.get("model-store", ())]

    def note(self, name: str, text: str, fate: Fate) -> None:
        """Tell what becomes of a flag."""
        shown = "" if name in _SECRET else "".join(f"={value}" for value in self.given[name][:1] if value)
        self.notes.append(Note(COMMAND_LINE, 0, printable(f"--{name}{shown}"), text, fate))


def read_command_line(text: str) -> TritonCommandLine:
    """A command line as a shell takes it, with or without what starts the program before it. Raises UsageError."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"the command line cannot be read: {str(error).lower()}") from None
    begins = [index for index, word in enumerate(words) if word.rpartition("/")[2] == PROGRAM]
    line, wrong = TritonCommandLine(), list[str]()
    rest = deque(words[begins[-1] + 1 :] if begins else words)
    while rest:
        try:
            _take(rest.popleft(), rest, line)
        except ValueError as error:
            wrong.append(str(error))
    if wrong := [*wrong, *_contradictions(line)]:
        raise UsageError("\n".join(wrong))
    return line


def _take(word: str, rest: deque[str], line: TritonCommandLine) -> None:
    """One flag, and its value, which may be the next word. Raises ValueError."""
    name, equals, value = word.removeprefix("--").partition("=")
    flag = TRITON_FLAGS.get(name) if word.startswith("--") else None
    if flag is None:
        close = difflib.get_close_matches(name, TRITON_FLAGS, 1) if word.startswith("-") else ()
        hint = "".join(f"; did you mean --{each}?" for each in close)
        line.notes.append(Note(COMMAND_LINE, 0, printable(word), f"is ignored: tritonserver has no such flag{hint}"))
        if word.startswith("-") and not equals and rest and not rest[0].startswith("-"):
            rest.popleft()
        return
    if flag.kind != "nothing" and not equals:
        if not rest:
            raise ValueError(f"--{name}: needs a value")
        value = rest.popleft()
    found = _value(name, flag, value)
    line.given.setdefault(name, []).append(found)


def _value(name: str, flag: TritonFlag, value: str) -> str:
    if flag.kind == "truth":
        if value.lower() not in _TRUTHS:
            raise ValueError(f"--{name}={printable(value)}: expected true or false")
        return _TRUTHS[value.lower()]
    if flag.kind == "number":
        try:
            int(value) if flag.fate == "mapped" else float(value)
        except ValueError:
            raise ValueError(f"--{name}={printable(value)}: expected a number") from None
    return value


def _contradictions(line: TritonCommandLine) -> Iterator[str]:
    for name in ("http-port", "grpc-port", "metrics-port"):
        text = line.text(name, "8000")
        if not text.isdecimal() or int(text) > 65535:
            yield f"--{name}={text}: expected a port, from 0 to 65535"
    for name in ("http-max-input-size", "repository-poll-secs", "response-cache-byte-size"):
        text = line.text(name, "1")
        if not text.isdecimal() or not int(text):
            yield f"--{name}={text}: expected a whole number, at least 1"
    mode = line.text("model-control-mode", "none").lower()
    if mode not in ("none", "poll", "explicit"):
        yield f"--model-control-mode={printable(mode)}: expected none, poll or explicit"
    if "load-model" in line.given and mode != "explicit":
        yield "--load-model: needs --model-control-mode=explicit"


def note_flags(line: TritonCommandLine) -> None:
    """A note for each flag that was given, but for those of which `sections` knows more."""
    for name in line.given:
        flag = TRITON_FLAGS[name]
        if flag.fate == "mapped":
            line.note(name, f"-> {flag.becomes.partition(';')[0]}", "mapped")
        elif flag.fate == "refused" and line.text(name).lower() != _OFF.get(name):
            line.note(name, f"is refused: {flag.becomes}", "refused")
        else:
            line.note(name, f"is ignored: {flag.becomes}", "ignored")


def table() -> str:
    """What becomes of every flag, for people to read."""
    wide = max(map(len, TRITON_FLAGS)) + 2
    lines: list[str] = []
    for fate, heading in (
        ("mapped", "flags of tritonserver that --from-command-line takes over, and what they become:"),
        ("ignored", "flags that are ignored, and why:"),
        ("refused", "flags that are refused, and what to do:"),
    ):
        lines += ["", heading]
        lines += [
            f"  {'--' + name:<{wide}}  {flag.becomes}" for name, flag in TRITON_FLAGS.items() if flag.fate == fate
        ]
    return "\n".join(lines) + "\n"
