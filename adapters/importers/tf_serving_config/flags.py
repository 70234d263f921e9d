"""TensorFlow Serving's command line: every flag that it takes, how its value is read, and what becomes of it here."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from tensorgate.adapters.importers.common import Note, UsageError, printable
from tensorgate.adapters.importers.common.source import Fate

COMMAND_LINE: Final = "command line"
PROGRAM: Final = "tensorflow_model_server"

Value: TypeAlias = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Flag:
    """`default` is the original's, its type that of the values. `becomes` is a key of the YAML, or, of what is ignored
    or refused, the reason. What is refused is so only if it differs from the default.
    """

    default: Value
    fate: Fate
    becomes: str


_LOADS: Final = "versions are loaded one after the other, beside those that serve"
_RETRIES: Final = "a version that fails to load is tried again when its files change"
_LITE: Final = "TensorFlow Lite models are not run"
_LITE_REMEDY: Final = f"{_LITE}; serve the SavedModel, or convert it to ONNX: python -m tf2onnx.convert"
_XLA: Final = "a SavedModel says itself what is compiled; ONNX Runtime compiles nothing"
_ALTS: Final = "ALTS is Google's own; give gRPC's port a certificate, listen.grpc tls, and let clients use TLS"

_FLAGS: Final[Mapping[Fate, Mapping[str, tuple[Value, str]]]] = {
    "mapped": {
        "port": (8500, "listen.grpc; 0: none"),
        "grpc_socket_path": ("", "listen.grpc, a second listener: unix:/PATH"),
        "rest_api_port": (0, "listen.http; 0, or left out beside --port: none"),
        "rest_api_timeout_in_ms": (30000, "tf_serving.timeout_ms"),
        "rest_api_enable_cors_support": (False, "tf_serving.cors"),
        "model_name": ("default", "the name of the only model"),
        "model_base_path": ("", "the path of the only model"),
        "model_config_file": ("", "models; `tensorgate import tf-serving FILE` is the same"),
        "file_system_poll_wait_seconds": (1, "model_control: {mode: poll, poll_seconds: N}; 0: mode none"),
        "enable_batching": (False, "max_batch_size, max_queue_delay_us and max_queue_size of every model"),
        "batching_parameters_file": ("", "the values of those; needs --enable_batching"),
        "monitoring_config_file": ("", "metrics.tf_serving_path"),
        "tensorflow_session_parallelism": (0, "intra_op_threads and inter_op_threads of every model"),
        "tensorflow_intra_op_parallelism": (0, "intra_op_threads of every model"),
        "tensorflow_inter_op_parallelism": (0, "inter_op_threads of every model"),
        "ssl_config_file": ("", "tls of listen.grpc; its keys and certificates become files beside the YAML"),
        "enable_model_warmup": (True, "tf_serving.warmup_requests; false: 0"),
        "num_request_iterations_for_warmup": (0, "tf_serving.warmup_requests"),
        "saved_model_tags": ("serve", "tags of SavedModels"),
        "enable_serialization_as_tensor_content": (False, "tf_serving.tensor_content"),
    },
    "ignored": {
        "rest_api_num_threads": (0, "one event loop serves all connections"),
        "model_config_file_poll_wait_seconds": (
            0,
            "the gateway's own file is read again on SIGHUP; import again and send it",
        ),
        "allow_version_labels_for_unavailable_models": (
            False,
            "a label may always name a version that is not loaded yet",
        ),
        "num_load_threads": (0, _LOADS),
        "num_unload_threads": (0, "a version leaves when its last request is answered"),
        "max_num_load_retries": (5, _RETRIES),
        "load_retry_interval_micros": (60_000_000, _RETRIES),
        "per_process_gpu_memory_fraction": (0.0, "memory of the device is taken when it is needed"),
        "grpc_channel_arguments": ("", "the gateway sets its own; limits.max_binary_bytes bounds messages"),
        "grpc_max_threads": (0, "one event loop serves all connections"),
        "enable_grpc_healthcheck_service": (False, "grpc.health.v1 is always served"),
        "enable_signature_method_name_check": (
            False,
            "the shape of a signature says whether it classifies or regresses",
        ),
        "enable_profiler": (True, "there is no TensorFlow profiler; tracing.file writes the times of requests"),
        "flush_filesystem_caches": (True, "caches of files are the operating system's business"),
        "remove_unused_fields_from_bundle_metagraph": (True, "nothing of the kind is kept in memory"),
        "num_tflite_pools": (0, _LITE),
        "num_tflite_interpreters_per_pool": (1, _LITE),
        "mixed_precision": ("", "a model runs in the precision in which it was saved"),
        "thread_pool_factory_config_file": ("", "the backends have thread pools of their own"),
        "skip_initialize_tpu": (False, "there are no TPUs here"),
        "xla_cpu_compilation_enabled": (False, _XLA),
        "xla_gpu_compilation_enabled": (False, _XLA),
        "version": (False, "`pip show tensorgate` tells the version"),
    },
    "refused": {
        "enable_per_model_batching_parameters": (
            False,
            "one set of parameters is taken for all; write a model's own max_batch_size beside it",
        ),
        "platform_config_file": ("", "platforms are backends here: tensorflow, onnx, python"),
        "tensorflow_session_config_file": (
            "",
            "sessions have no settings of their own here; write a model's threads and device beside it",
        ),
        "prefer_tflite_model": (False, _LITE_REMEDY),
        "use_alts_credentials": (False, _ALTS),
    },
}
"""What becomes of a flag -> flag -> its default, and a key of the YAML or the reason."""
FLAGS: Final[Mapping[str, Flag]] = {
    name: Flag(default, fate, becomes) for fate, rows in _FLAGS.items() for name, (default, becomes) in rows.items()
}


@dataclass(slots=True)
class CommandLine:
    """The flags that were given, read; what was not given is asked for by `of`."""

    given: dict[str, Value] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    def of(self, name: str) -> Any:
        """The flag's value, or its default."""
        return self.given.get(name, FLAGS[name].default)

    def note(self, name: str, text: str, fate: Fate) -> None:
        """Tell what becomes of a flag."""
        value = self.given[name]
        shown = f"={str(value).lower() if isinstance(value, bool) else value}"
        self.notes.append(Note(COMMAND_LINE, 0, printable(f"--{name}{shown}"), text, fate))


def read_flags(words: Sequence[str]) -> CommandLine:
    """The words of a command line, with or without the program's name before them; a word that is no flag is the
    models' configuration file. Raises UsageError.
    """
    line, wrong = CommandLine(), list[str]()
    for word in words:
        if word == "--" or word.rpartition("/")[2] == PROGRAM:
            continue
        name, equals, text = word.removeprefix("--").partition("=")
        if not word.startswith("-"):
            name, equals, text = "model_config_file", "=", word
            if line.given.get(name, word) != word:
                wrong.append(
                    f'{printable(word)}: unexpected beside {line.given[name]}; flags are written "--flag=value"'
                )
        flag = FLAGS.get(name) if word.startswith("--") or not word.startswith("-") else None
        if flag is None:
            hint = "".join(f"; did you mean --{close}?" for close in difflib.get_close_matches(name, FLAGS, 1))
            text = f"is ignored: TensorFlow Serving has no such flag{hint}"
            line.notes.append(Note(COMMAND_LINE, 0, printable(word), text))
            continue
        try:
            line.given[name] = _value(name, flag.default, text if equals else None)
        except ValueError as error:
            wrong.append(str(error))
    if wrong := [*wrong, *_contradictions(line)]:
        raise UsageError("\n".join(wrong))
    return line


def _value(name: str, default: Value, text: str | None) -> Value:
    if isinstance(default, bool):
        if text not in (None, "true", "false"):
            raise ValueError(f"--{name}={printable(str(text))}: expected true or false")
        return text != "false"
    if text is None:
        raise ValueError(f"--{name}: needs a value, as in --{name}={default or 'VALUE'}")
    if isinstance(default, str):
        return text
    try:
        return type(default)(text)
    except ValueError:
        raise ValueError(f"--{name}={printable(text)}: expected a number") from None


def _contradictions(line: CommandLine) -> Iterator[str]:
    for name in ("port", "rest_api_port"):
        if not 0 <= line.of(name) <= 65535:
            yield f"--{name}={line.of(name)}: expected a port, from 0 to 65535"
    if line.of("port") == line.of("rest_api_port") != 0:
        yield f"--rest_api_port={line.of('port')}: the same as --port; give them different ports"
    if line.of("batching_parameters_file") and not line.of("enable_batching"):
        yield "--batching_parameters_file: needs --enable_batching beside it; TensorFlow Serving does not start without"
    if line.of("rest_api_timeout_in_ms") < 1:
        yield f"--rest_api_timeout_in_ms={line.of('rest_api_timeout_in_ms')}: expected at least 1"
    if not line.of("model_config_file") and not line.of("model_base_path"):
        yield "nothing to import: give a models.config, or --model_config_file=FILE, or --model_base_path=DIR"


def note_flags(line: CommandLine) -> None:
    """A note for each flag that was given."""
    for name in line.given:
        flag = FLAGS[name]
        if name in ("model_name", "model_base_path") and line.of("model_config_file"):
            line.note(name, "is ignored: --model_config_file takes its place", "ignored")
        elif flag.fate == "mapped":
            line.note(name, f"-> {flag.becomes.partition(';')[0]}", "mapped")
        elif flag.fate == "refused" and line.given[name] != flag.default:
            line.note(name, f"is refused: {flag.becomes}", "refused")
        else:
            line.note(name, f"is ignored: {flag.becomes}", "ignored")


_HEADINGS: Final[Mapping[Literal["mapped", "ignored", "refused"], str]] = {
    "mapped": "flags of TensorFlow Serving that are taken over, and what they become:",
    "ignored": "flags that are ignored, and why:",
    "refused": "flags that are refused, if they are on, and what to do:",
}


def table() -> str:
    """What becomes of every flag, for people to read."""
    wide = max(map(len, FLAGS)) + 2
    lines: list[str] = []
    for fate, heading in _HEADINGS.items():
        lines += ["", heading]
        lines += [f"  {'--' + name:<{wide}}  {flag.becomes}" for name, flag in FLAGS.items() if flag.fate == fate]
    return "\n".join(lines) + "\n"
