"""The command line: `tensorgate VERB`.

Every verb is one function, whose docstring is its help. Verbs that serve import the gateway inside it; those that ask a
server start without it.
"""

from __future__ import annotations

import argparse
import inspect
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tensorgate import __version__
from tensorgate.gateway.cli import client, starters
from tensorgate.gateway.cli.starters import STARTERS

DEFAULT_URL = "http://localhost:8000"
Verb = Callable[[argparse.Namespace], int]
"""What a verb does with its options -> the exit status. Raises client.ClientError."""
PORTS = {"http": 8000, "grpc": 8001, "metrics": 8002}
"""Where `serve` listens without a configuration: Triton's ports."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0: done; 1: it could not be done; 2: the command or the configuration is wrong."""
    parser = _parser()
    options, flags = parser.parse_known_args(_import_of_a_file([*(sys.argv[1:] if arguments is None else arguments)]))
    if flags and options.run is not _import_tf_serving:
        parser.error(f"unrecognized arguments: {' '.join(flags)}")
    options.flags = flags
    try:
        status: int = options.run(options)
    except KeyboardInterrupt:
        return 130
    except client.ClientError as error:
        _print_error(str(error))
        return 1
    except Exception as error:
        from tensorgate.gateway.config import ConfigError

        if not isinstance(error, ConfigError):
            raise
        _print_error(str(error))
        return 2
    return status


def _import_of_a_file(words: list[str]) -> list[str]:
    """`import FILE` is `import model FILE`: what has the name of a file is no server."""
    if words[:1] == ["import"] and len(words) > 1 and Path(words[1]).suffix and not words[1].startswith("-"):
        words.insert(1, "model")
    return words


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tensorgate",
        description="One front door for Open Inference V2, TensorFlow Serving and grps clients.",
        epilog="Start here:  tensorgate serve config/demo.yaml",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)

    verb = _verb(verbs, "serve", _serve)
    verb.add_argument(
        "paths",
        nargs="*",
        metavar="FILE",
        help="a configuration, YAML; or models, each [NAME=]PATH: an ONNX file, a PyTorch program, a SavedModel, "
        "file.py:Class, a folder of versions, a Triton repository",
    )
    verb.add_argument(
        "--write-config", type=Path, metavar="FILE", help="of models: write the configuration that says the same, too"
    )
    verb.add_argument(
        "--model-repository",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="a Triton model repository, served as it is; may be given again",
    )
    for name, port in PORTS.items():
        text = f"where there is no configuration (default {port})"
        verb.add_argument(f"--{name}-port", type=int, default=port, metavar="PORT", help=text)
    verb.add_argument(
        "--doors",
        type=_doors,
        metavar="N|auto",
        help="processes that take calls, in place of what the file says: processes.doors",
    )
    verb.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    _model_control(verb)

    verb = _verb(verbs, "new", _new)
    kinds = "; ".join(f"{kind}: {starter.about}" for kind, starter in STARTERS.items())
    verb.add_argument("kind", choices=list(STARTERS), help=kinds)
    verb.add_argument("folder", type=Path, nargs="?", help="where to; by default a folder named like the kind")

    verb = _verb(verbs, "check", _check)
    verb.add_argument("files", type=Path, nargs="*", metavar="FILE", help="configurations, YAML")
    verb.add_argument("--load", action="store_true", help="also load every model once, as serve would")
    verb.add_argument(
        "--device",
        action="store_true",
        help="also tell which drivers, libraries and GPUs are there, and where each model would run; files may be "
        "left out then",
    )

    verb = _verb(verbs, "fetch", _fetch)
    verb.add_argument("files", type=Path, nargs="+", metavar="FILE", help="configurations, YAML")

    verb = _verb(verbs, "plan", _plan)
    verb.add_argument("old", type=Path, metavar="OLD", help="configuration, YAML; - is stdin, read as if it lay by NEW")
    verb.add_argument("new", type=Path, metavar="NEW", help="configuration, YAML")
    verb.add_argument("--json", action="store_true", help="for programs")

    _import_verbs(verbs)

    verb = _verb(verbs, "schema", _schema)
    verb.add_argument("file", type=Path, nargs="?", help="a configuration whose own operators are to be in it, too")

    verb = _verb(verbs, "ops", _ops)
    verb.add_argument("names", nargs="*", metavar="NAME", help="of operators to explain, with their keys")
    verb.add_argument("--config", type=Path, metavar="FILE", help="a configuration that brings operators of its own")

    verb = _verb(verbs, "digest", _digest)
    verb.add_argument("paths", type=Path, nargs="+", metavar="PATH", help="a model's file, or a version's folder")
    verb.add_argument("--files", action="store_true", help="print every file below a folder with its own SHA-256")

    verb = _verb(verbs, "models", _models)
    verb.add_argument("name", nargs="?", metavar="NAME", help="of the only model to tell of")
    verb.add_argument("--schema", action="store_true", help="print the JSON Schema of requests to it")
    _dialect(verb)
    _url(verb)

    verb = _verb(verbs, "sample", _sample)
    verb.add_argument("model")
    _dialect(verb)
    _url(verb)

    verb = _verb(verbs, "usage", _usage)
    verb.add_argument("--csv", action="store_true", help="comma-separated values, for spreadsheets and bills")
    _url(verb)

    verb = _verb(verbs, "call", _call)
    verb.add_argument("model")
    verb.add_argument(
        "inputs",
        nargs="+",
        metavar="[NAME=]JSON|@FILE",
        help="one input each: JSON, or a file with JSON, an array of NumPy's (.npy) or, for BYTES, anything; @- is "
        "stdin; NAME= may be left out if the model has only one, and the batch dimension if you send one row",
    )
    verb.add_argument("--json", action="store_true", help="print the whole answer as JSON")
    verb.add_argument("--version", help="default: the highest that is ready")
    _url(verb)

    verb = _verb(verbs, "diff", _diff)
    verb.add_argument("file", type=Path, help="the file of a route's mirror: samples")
    verb.add_argument("--route", metavar="NAME", help="of this route only")
    verb.add_argument("--json", action="store_true", help="as one JSON document, with a summary")

    verb = _verb(verbs, "replay", _replay)
    verb.add_argument("files", type=Path, nargs="+", metavar="FILE", help="recorded calls (see record in the YAML)")
    verb.add_argument("--to", metavar="URL", help="where calls over HTTP go: http://HOST:PORT")
    verb.add_argument("--grpc", metavar="HOST:PORT", help="where calls over gRPC go")
    verb.add_argument(
        "--speed",
        type=_speed,
        default=1.0,
        metavar="N|max",
        help="times as fast as they came (default 1); max: at once",
    )
    verb.add_argument("--diff", action="store_true", help="compare answers; exit status 1 if any differs")
    near = "with --diff: how far floating-point numbers may be from the recorded one"
    verb.add_argument("--rtol", type=_distance, default=0.0, metavar="X", help=f"{near}, relative to it")
    verb.add_argument("--atol", type=_distance, default=0.0, metavar="X", help=f"{near}, beside that")
    ignore_help = "with --diff: a key of JSON, or an output, that may differ; may be repeated"
    verb.add_argument("--ignore", action="append", default=[], metavar="NAME", help=ignore_help)
    verb.add_argument("--model", action="append", default=[], metavar="NAME", help="calls of this model or route only")
    verb.add_argument("--header", action="append", default=[], metavar="'NAME: VALUE'", help="sent with every call")
    verb.add_argument("--connections", type=_number, default=64, metavar="N", help="calls at a time with --speed max")
    verb.add_argument("--repeat", type=_number, default=1, metavar="N", help="play all so many times")
    verb.add_argument("--json", type=Path, metavar="FILE", help="write the report, with all that differ")

    verb = _verb(verbs, "tune", _tune)
    verb.add_argument("config", type=Path, help="the configuration with the models")
    traffic_help = "recorded calls (see record in the YAML)"
    verb.add_argument("--traffic", type=Path, nargs="+", required=True, metavar="FILE", help=traffic_help)
    target_help = "the goal of the 99th percentile (default: each model's own target_p99_ms, else none)"
    verb.add_argument("--target-p99-ms", type=float, metavar="MS", help=target_help)
    verb.add_argument("--model", action="append", default=[], metavar="NAME", help="this model only; may be repeated")
    verb.add_argument("--json", type=Path, metavar="FILE", help="write all that was found")

    _conform_verb(verbs)

    verb = _verb(verbs, "health", _health)
    verb.add_argument("--live", action="store_true", help="ask only whether the process answers")
    verb.add_argument("--grpc", metavar="HOST:PORT", help="ask a gRPC port, in place of --url")
    verb.add_argument("--wait", type=float, default=0.0, metavar="SECONDS", help="keep asking for so long (default 0)")
    _url(verb)
    return parser


def _conform_verb(verbs: Any) -> None:
    from tensorgate.adapters import CONFORMANCE

    verb = _verb(verbs, "conform", _conform)
    verb.add_argument("--dialect", required=True, choices=CONFORMANCE, help="the protocol")
    verb.add_argument("--http", metavar="URL", help="where it speaks HTTP: http://HOST:PORT")
    verb.add_argument("--grpc", metavar="HOST:PORT", help="where it speaks gRPC (needs grpcio)")
    verb.add_argument(
        "--repository",
        type=Path,
        metavar="DIR",
        help="write models of known behaviour there, and end: what a server that serves them is asked is far more",
    )
    verb.add_argument("--model", action="append", default=[], metavar="NAME", help="ask about these models only")
    other = verb.add_argument_group("another server in place of the protocol: only what the two answer differently")
    other.add_argument("--against-http", metavar="URL", help="where the other one speaks HTTP")
    other.add_argument("--against-grpc", metavar="HOST:PORT", help="where the other one speaks gRPC")
    other.add_argument(
        "--from-log",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="ask what was recorded (see docs/record.md): answers are to be as they were, or as the other server's",
    )
    verb.add_argument("--timeout", type=float, default=10.0, help="seconds for one answer (default 10)")
    verb.add_argument("--show", type=_number, default=20, metavar="N", help="differences told per group (default 20)")
    verb.add_argument("--json", type=Path, metavar="FILE", help="write the report, with every case")
    verb.add_argument("--junit", type=Path, metavar="FILE", help="write it as JUnit's XML")
    verb.add_argument("--html", type=Path, metavar="FILE", help="write it as one HTML page")


def _doors(text: str) -> int | str:
    """Raises ArgumentTypeError."""
    if text == "auto":
        return text
    if not (text.isdecimal() and 1 <= int(text) <= 256):
        raise argparse.ArgumentTypeError("expected auto, or a number from 1 to 256")
    return int(text)


def _number(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def _speed(text: str) -> float:
    if text == "max":
        return 0.0
    speed = float(text)
    if not 0 < speed < float("inf"):
        raise ValueError(text)
    return speed


def _distance(text: str) -> float:
    distance = float(text)
    if not 0 <= distance < float("inf"):
        raise ValueError(text)
    return distance


def _model_control(verb: argparse.ArgumentParser) -> None:
    control = verb.add_argument_group("model control, in place of what the file says under model_control")
    control.add_argument("--model-control-mode", dest="mode", choices=["none", "poll", "explicit"])
    control.add_argument(
        "--load-model", dest="load", action="append", metavar="NAME", help='of mode explicit: load at start; "*" is all'
    )
    control.add_argument(
        "--repository-poll-secs",
        dest="poll_seconds",
        type=float,
        metavar="N",
        help="of mode poll: seconds between looks",
    )


_IMPORT = """
Write another server's configuration as YAML of the gateway; a comment stands for each key that is ignored. Or make ONNX
of a model of XGBoost, LightGBM or scikit-learn: import FILE.

example:
  tensorgate import churn.ubj --output models
  tensorgate import triton models -o gateway.yaml
  tensorgate import tf-serving models.config -o gateway.yaml
  tensorgate import grps conf/server.yml conf/inference.yml -o gateway.yaml
  tensorgate import mlserver models -o gateway.yaml
  tensorgate import kserve service.yaml -o gateway.yaml
"""


def _import_verbs(verbs: Any) -> None:
    verb = _verb(verbs, "import", None, _IMPORT)
    servers = verb.add_subparsers(title="servers", metavar="SERVER|FILE", required=True)

    verb = _verb(servers, "model", _import_model)
    verb.add_argument("file", type=Path, help=".json or .ubj of XGBoost, .txt of LightGBM, .skops of scikit-learn")
    verb.add_argument(
        "--output", type=Path, default=Path("models"), metavar="DIR", help="a repository (default models)"
    )
    verb.add_argument("--name", default="", help="of the model; else that of the file")
    verb.add_argument("--datatype", choices=["FP32", "FP64"], help="of the input; else the first that proves right")
    verb.add_argument(
        "--tolerance", type=_distance, default=1e-5, metavar="X", help="how far numbers may be apart (default 1e-5)"
    )
    verb.add_argument("--own", action="store_true", help="have the model's own library compute it in any case")
    verb.add_argument("--allow-ties", action="store_true", help="of two classes equally likely, either label will do")
    verb.add_argument("--no-missing", dest="missing", action="store_false", help="rows have all their values, no NaN")
    own = "where its own library computes it: the entry says trusted: true, for that reads the file"
    verb.add_argument("--trusted", action="store_true", help=own)

    verb = _verb(servers, "triton", _import_triton)
    verb.add_argument("folder", type=Path, nargs="?", help="the model repository, a folder with a folder per model")
    line = "the old server's command line, one word for the shell: ports, control of models, readiness, headers, TLS"
    verb.add_argument("--from-command-line", dest="line", default="", metavar="'tritonserver --…'", help=line)
    verb.add_argument(
        "--flags", action=_PrintHelp, text=_triton_flags, help="show what becomes of every flag of tritonserver"
    )
    verb.add_argument("-o", "--output", type=Path, metavar="FILE", help="the file to write; without it, to stdout")

    verb = _verb(servers, "tf-serving", _import_tf_serving, add_help=False, allow_abbrev=False)
    verb.add_argument(
        "-h", "--help", action=_PrintHelp, text=_tf_serving_help, help="show this, and the fate of every flag"
    )
    verb.add_argument("words", nargs="*", metavar="FILE|--flag=value", help="models.config, or flags of the old server")
    verb.add_argument("--batching", metavar="FILE", help="--enable_batching --batching_parameters_file=FILE")
    verb.add_argument("--monitoring", metavar="FILE", help="--monitoring_config_file=FILE")
    verb.add_argument("--ssl", metavar="FILE", help="--ssl_config_file=FILE")
    verb.add_argument("-o", "--output", type=Path, metavar="FILE", help="the file to write; without it, to stdout")

    verb = _verb(servers, "grps", _import_grps)
    verb.add_argument("server", type=Path, help="server.yml: ports, limits, customized HTTP")
    verb.add_argument("inference", type=Path, help="inference.yml: models and dag")
    verb.add_argument("-o", "--output", type=Path, metavar="FILE", help="the file to write; without it, to stdout")

    trust = "let classes load joblib files and boosters, which may be programs: parameters say trusted: true"
    verb = _verb(servers, "mlserver", _import_mlserver)
    verb.add_argument("folder", type=Path, help="a folder with settings.json, and model-settings.json of each model")
    verb.add_argument("--trusted", action="store_true", help=trust)
    verb.add_argument("-o", "--output", type=Path, metavar="FILE", help="the file to write; without it, to stdout")

    verb = _verb(servers, "kserve", _import_kserve)
    verb.add_argument("file", type=Path, help="InferenceServices, as kubectl get -o yaml prints them")
    verb.add_argument("--trusted", action="store_true", help=trust)
    verb.add_argument("-o", "--output", type=Path, metavar="FILE", help="the file to write; without it, to stdout")


class _PrintHelp(argparse.Action):
    """Prints a text, made of the verb's own help, and ends."""

    def __init__(
        self, option_strings: Sequence[str], dest: str, help: str, text: Callable[[argparse.ArgumentParser], str]
    ) -> None:
        super().__init__(option_strings, dest=argparse.SUPPRESS, default=argparse.SUPPRESS, nargs=0, help=help)
        self._text = text

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        _print_line(self._text(parser).strip("\n"))
        parser.exit()


def _tf_serving_help(parser: argparse.ArgumentParser) -> str:
    """The help of `import tf-serving`, with the fate of each flag of TensorFlow Serving."""
    from tensorgate.adapters.importers.tf_serving_config import table

    return parser.format_help() + _CONTAINER + table()


def _triton_flags(parser: argparse.ArgumentParser) -> str:
    """The fate of each flag of tritonserver."""
    from tensorgate.adapters.importers.triton_command_line import table

    return table()


_CONTAINER = """
the container image of TensorFlow Serving has two environment variables; they stand for these flags:
  --port=8500 --rest_api_port=8501 --model_name=$MODEL_NAME --model_base_path=$MODEL_BASE_PATH/$MODEL_NAME
where MODEL_NAME is model and MODEL_BASE_PATH is /models unless they are set. Where no flag names a port, they are 8500
and 8501, too.
"""


def _verb(verbs: Any, name: str, run: Verb | None, text: str | None = None, **more: Any) -> argparse.ArgumentParser:
    """Add a verb. Its help is the text, by default the function's docstring."""
    help_text, _, example = inspect.cleandoc(text or run.__doc__ or "").partition("\n\nexample:\n")
    verb: argparse.ArgumentParser = verbs.add_parser(
        name,
        help=help_text,
        description=help_text,
        epilog=f"example:\n{example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        **more,
    )
    verb.set_defaults(run=run)
    return verb


def _url(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--url", default=DEFAULT_URL, help=f"address of the gateway (default {DEFAULT_URL})")
    verb.add_argument("--timeout", type=float, default=10.0, help="seconds for one answer (default 10)")


def _dialect(verb: argparse.ArgumentParser) -> None:
    dialects = ("open_inference", "tf_serving", "grps")
    verb.add_argument(
        "--dialect",
        metavar="NAME",
        default=dialects[0],
        help=f"of the request: {', '.join(dialects)} (default the first)",
    )


def _print_line(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _print_error(line: str) -> None:
    sys.stderr.write(line + "\n")


def _serve(options: argparse.Namespace) -> int:
    """Serve models, or those of a configuration or of Triton model repositories, until SIGTERM.

    example:
      tensorgate serve model.onnx
      tensorgate serve gateway.yaml
      tensorgate serve digits=models/net.onnx scorer.py:Scorer --write-config gateway.yaml
      tensorgate serve --model-repository models
    """
    # The kernel ignores signals to process 1, a container's, for which the process has no handler. Until there is
    # something to undo, none of them may be lost in a callback that swallows exceptions.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    from tensorgate.gateway import app
    from tensorgate.gateway.cli import serving
    from tensorgate.gateway.contract import shortcuts
    from tensorgate.gateway.crossing.role import Role
    from tensorgate.gateway.telemetry.logs import LINE

    if not options.paths and not options.model_repository:
        _print_error("serve needs a configuration, models, or --model-repository DIR; see tensorgate serve --help")
        return 2
    logging.basicConfig(level=options.log_level.upper(), format=LINE)
    try:
        shortcuts.check_variable()
    except ValueError as error:
        _print_error(str(error))
        return 2
    kinds = app.registries()
    role = Role.of_environment(os.environ)
    if role is None and options.write_config is not None:
        _write_config(options)
    read = partial(_read, options, kinds)
    config = read() if role is None else read(role.configuration())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    app.tune_process()
    return serving.serve(config, kinds, _print_line, read, role)


def _read(options: argparse.Namespace, kinds: Any, text: str | None = None) -> Any:
    """Read the configuration that `serve` was given; `text` stands for what is in the file. Raises ConfigError."""
    from tensorgate.gateway.config import (
        config_class,
        load_config,
        load_text,
        parse_config,
        with_doors,
        with_model_control,
    )

    models, file = _models_and_file(options)
    if models and file is None:
        config = load_text(_yaml_of(models, options, Path.cwd()), _COMMAND_LINE, kinds, options.model_repository)
    elif file is None:
        config = parse_config(_listen(options), _COMMAND_LINE, config_class(kinds), options.model_repository)
    elif text is not None:
        config = load_text(text, file, kinds, options.model_repository)
    else:
        config = load_config(file, kinds, options.model_repository)
    return with_doors(with_model_control(config, options.mode, options.load, options.poll_seconds), options.doors)


_COMMAND_LINE = Path("command line")
"""Stands for the file of a configuration that has none."""


def _models_and_file(options: argparse.Namespace) -> tuple[Sequence[str], Path | None]:
    """The models of a command line, and its configuration, which says the same if both are there. Raises
    client.ClientError.
    """
    from tensorgate.gateway.cli import from_files

    files = [written for written in options.paths if from_files.is_configuration(written)]
    if not files:
        return options.paths, options.write_config
    if len(options.paths) > 1:
        raise client.ClientError(f"serve takes one configuration alone; {files[0]} is one: name the models in it")
    if options.write_config is not None:
        raise client.ClientError(f"{files[0]} is a configuration: --write-config is for models without one")
    return (), Path(files[0])


def _yaml_of(models: Sequence[str], options: argparse.Namespace, folder: Path) -> str:
    """The configuration of models on the command line. Raises client.ClientError."""
    from tensorgate.gateway.cli import from_files

    binds = {name: f'{{bind: "0.0.0.0:{getattr(options, f"{name}_port")}"}}' for name in PORTS}
    listen = ["listen:", f"  http: [{binds['http']}]", f"  grpc: [{binds['grpc']}]", f"  metrics: {binds['metrics']}"]
    try:
        return from_files.yaml_of(models, listen, folder)
    except (from_files.NoModel, OSError) as error:
        raise client.ClientError(str(error)) from None


def _write_config(options: argparse.Namespace) -> None:
    """Write the configuration of the command line's models. Raises client.ClientError."""
    models, _ = _models_and_file(options)
    file = options.write_config
    text = _yaml_of(models, options, file.absolute().parent)
    try:
        with file.open("x", encoding="utf-8") as new:
            new.write(text)
    except FileExistsError:
        raise client.ClientError(f"{file} is there already, and is not written over: tensorgate serve {file}") from None
    except OSError as error:
        raise client.ClientError(f"{file}: {(error.strerror or 'not written').lower()}") from None
    _print_line(f"wrote {file}; from now on: tensorgate serve {file}")


def _listen(options: argparse.Namespace) -> str:
    """The configuration, as JSON, of a command line without a file, except its repositories."""
    binds = {name: {"bind": f"0.0.0.0:{getattr(options, f'{name}_port')}"} for name in PORTS}
    return json.dumps({"listen": {"http": [binds["http"]], "grpc": [binds["grpc"]], "metrics": binds["metrics"]}})


def _new(options: argparse.Namespace) -> int:
    """Write a commented configuration to begin with, and what it serves.

    example:
      tensorgate new python
      tensorgate new images try/photos
    """
    folder = options.folder or Path(options.kind)
    try:
        lines = starters.write(options.kind, folder)
    except OSError as error:
        raise client.ClientError(f"{folder}: {error.strerror.lower()}" if error.strerror else str(error)) from None
    _print_line("\n".join(lines))
    return 0


def _check(options: argparse.Namespace) -> int:
    """Say what is wrong with a configuration, one line per problem, without serving. Exit status 2 if anything is.

    example:
      tensorgate check gateway.yaml
      tensorgate check --device
    """
    from tensorgate.gateway import app
    from tensorgate.gateway.cli import check, device_report
    from tensorgate.gateway.config import ConfigError, load_config

    if not (options.files or options.device):
        _print_error("check needs a configuration, or --device; see tensorgate check --help")
        return 2
    kinds = app.registries()
    status = 0
    for line in device_report.installation(kinds) if options.device else ():
        _print_line(line)
    for file in options.files:
        try:
            config = load_config(file, kinds)
        except ConfigError as error:
            _print_error(str(error))
            status = 2
            continue
        for line in device_report.models(config, config.extended(kinds)) if options.device else ():
            _print_line(line)
        found = check.misfits(config, file, kinds, _print_line)
        failures = [str(problem) for _, problem in found]
        if any(not name for name, _ in found):  # the models are not known
            _print_error("\n".join(failures))
            status = 2
            continue
        if options.load:
            known = {name for name, _ in found}
            loads = app.dry_run_load(config, kinds)
            failures += [f"{file}: models.{text}" for name, text in loads if name not in known]
        for failure in failures:
            _print_error(failure)
        count = len(app.catalog(config, config.extended(kinds)).names())
        _print_line(f"{file}: {'models fail to load' if failures else 'ok'}, {count} models")
        status = max(status, 2 if failures else 0)
    return status


def _fetch(options: argparse.Namespace) -> int:
    """Fetch all models of configurations that lie on other machines, so that serve finds them in its cache. Exit status
    1 if one of them cannot be fetched.

    example:
      tensorgate fetch gateway.yaml
    """
    from tensorgate.gateway import app
    from tensorgate.gateway.cli import fetch
    from tensorgate.gateway.config import load_config

    kinds = app.registries()
    status = 0
    for file in options.files:
        for failure in fetch.fetch(load_config(file, kinds), kinds, _print_line):
            _print_error(f"{file}: {failure}")
            status = 1
    return status


def _plan(options: argparse.Namespace) -> int:
    """Say what a reload of a running gateway would do from one configuration to another: which models, routes and
    settings change, and what needs a restart. Exit status 0: nothing does, 1: something does, 2: a file is bad.

    example:
      tensorgate plan gateway.yaml next.yaml
      git show HEAD:gateway.yaml | tensorgate plan - gateway.yaml
    """
    from tensorgate.gateway import app

    found = app.plan(options.old, options.new, sys.stdin.read if options.old == Path("-") else None)
    _print_line(json.dumps(found.plain(), indent=2) if options.json else "\n".join(found.lines()))
    return 1 if found else 0


def _import_model(options: argparse.Namespace) -> int:
    """Make ONNX of a model of XGBoost, LightGBM or scikit-learn, compare what both answer, and write a model folder and
    its YAML. A model of which none is made, or none that answers alike, is computed by its own library, in a process of
    its own. Exit status 0: it can be served; 1: not before it is trusted; 2: the file is no such model.

    example:
      tensorgate import churn.ubj --output models
      tensorgate serve --model-repository models
    """
    from tensorgate.gateway.cli.classic.verb import Wish, import_model

    wish = Wish(
        options.file,
        options.output,
        options.name,
        options.datatype,
        options.tolerance,
        own=options.own,
        trusted=options.trusted,
        allow_ties=options.allow_ties,
        missing=options.missing,
    )
    return import_model(wish, _print_line, _print_error)


def _import_triton(options: argparse.Namespace) -> int:
    """Write another server's configuration as YAML of the gateway; a comment stands for each key that is ignored.
    The report goes to stderr: a line for each such key, and for each model that cannot be served.

    A Triton model repository can also be served as it is: tensorgate serve --model-repository DIR

    example:
      tensorgate import triton models -o gateway.yaml
      tensorgate import triton --from-command-line 'tritonserver --model-repository=/models --strict-readiness=false'
      tensorgate check --load gateway.yaml
      tensorgate serve gateway.yaml
    """
    from tensorgate.gateway.cli import migrate

    return migrate.from_triton(options.folder, options.line, options.output, _print_line, _print_error)


def _import_tf_serving(options: argparse.Namespace) -> int:
    """Write the configuration files and the command line of a TensorFlow Serving server as YAML of the gateway.
    The report goes to stderr: for each key and flag what it becomes, or why it is ignored or refused.
    Exit status 1 if a model or anything else is refused, 2 if the old server would not start like that, either.

    example:
      tensorgate import tf-serving models.config -o gateway.yaml
      tensorgate import tf-serving models.config --batching batching.txt --monitoring monitoring.txt
      tensorgate import tf-serving --model_name=m --model_base_path=/models/m
      tensorgate import tf-serving -o gateway.yaml -- tensorflow_model_server --port=8500 --rest_api_port=8501 --model_config_file=models.config
    """  # noqa: E501  (a command line, to be copied)
    from tensorgate.gateway.cli import migrate

    words = [*options.words, *options.flags]
    if options.batching:
        words += ["--enable_batching", f"--batching_parameters_file={options.batching}"]
    words += [f"--monitoring_config_file={options.monitoring}"] if options.monitoring else []
    words += [f"--ssl_config_file={options.ssl}"] if options.ssl else []
    return migrate.from_tf_serving(words, options.output, _print_line, _print_error)


def _import_grps(options: argparse.Namespace) -> int:
    """Write the two configuration files of a grps server as YAML of the gateway; its clients go on as they did.
    The report goes to stderr: for each key what it becomes, or why it is ignored or refused with what to do.
    Exit status 1 if a model or anything else is refused.

    example:
      tensorgate import grps conf/server.yml conf/inference.yml -o gateway.yaml
      tensorgate check --load gateway.yaml
    """
    from tensorgate.gateway.cli import migrate

    return migrate.from_grps(options.server, options.inference, options.output, _print_line, _print_error)


def _import_mlserver(options: argparse.Namespace) -> int:
    """Write MLServer's settings and those of its models as YAML of the gateway. scikit-learn, XGBoost and LightGBM
    become classes of the backend python, written beside the YAML; an ONNX file beside a model is run in its place.
    Exit status 1 if a model or anything else is refused.

    example:
      tensorgate import mlserver models -o gateway.yaml
      tensorgate import mlserver models --trusted -o gateway.yaml
      tensorgate check --load gateway.yaml
    """
    from tensorgate.gateway.cli import migrate

    return migrate.from_mlserver(options.folder, options.output, _print_line, _print_error, trusted=options.trusted)


def _import_kserve(options: argparse.Namespace) -> int:
    """Write InferenceServices of KServe as YAML of the gateway: predictors become models, canaries weights of a route.
    Exit status 1 if a model or anything else is refused.

    example:
      kubectl get inferenceservice iris -o yaml > service.yaml
      tensorgate import kserve service.yaml -o gateway.yaml
      tensorgate check gateway.yaml
    """
    from tensorgate.gateway.cli import migrate

    return migrate.from_kserve(options.file, options.output, _print_line, _print_error, trusted=options.trusted)


def _schema(options: argparse.Namespace) -> int:
    """Print the JSON schema of the configuration, for editors that complete and check YAML.

    example:
      tensorgate schema > schema.json
      tensorgate schema gateway.yaml > schema.json
    """
    from tensorgate.gateway.config import json_schema

    _print_line(json.dumps(json_schema(_kinds(options.file)), indent=2))
    return 0


def _ops(options: argparse.Namespace) -> int:
    """List the operators for preprocess and postprocess, or say all about some of them.

    example:
      tensorgate ops
      tensorgate ops softmax nms
      tensorgate ops --config gateway.yaml my_op
    """
    from tensorgate.gateway.cli import ops_help

    kinds = _kinds(options.config)
    try:
        lines = ops_help.explained(kinds.ops, options.names) if options.names else ops_help.listed(kinds.ops)
        _print_line("\n".join(lines).rstrip())
    except KeyError as error:
        _print_error(error.args[0])
        return 2
    return 0


def _kinds(file: Path | None) -> Any:
    """The registries plus the operators that a configuration defines. Raises ConfigError."""
    from tensorgate.gateway import app
    from tensorgate.gateway.config import load_config

    kinds = app.registries()
    return kinds if file is None else load_config(file, kinds).extended(kinds)


def _digest(options: argparse.Namespace) -> int:
    """Print the SHA-256 of a model's file, or of a version's folder, as verify: {sha256: …} takes it.

    example:
      tensorgate digest models/digits/1
      tensorgate digest models/digits/* --files
    """
    from tensorgate.gateway.models.file_digest import files_digest

    for path in options.paths:
        try:
            found = files_digest(path)
        except (OSError, ValueError) as error:
            _print_error(str(error) if isinstance(error, OSError) else f"{path}: {error}")
            return 1
        for line in found.manifest().splitlines() if options.files and path.is_dir() else ():
            _print_line(line)
        _print_line(f"{found.sha256}  {path}")
    return 0


def _models(options: argparse.Namespace) -> int:
    """List what a running gateway serves, or tell of one model; with --schema what requests to it have to be like.

    example:
      tensorgate models --url http://gpu1:8000
      tensorgate models digits --schema > digits.schema.json
    """
    gateway = client.Gateway(options.url, options.timeout)
    if not options.schema:
        client.models(gateway, options.name, _print_line)
        return 0
    if options.name is None:
        raise client.ClientError("say of which model: tensorgate models NAME --schema")
    from tensorgate.gateway.cli import api

    _print_line(api.schema(gateway, options.name, options.dialect))
    return 0


def _sample(options: argparse.Namespace) -> int:
    """Print a request that calls a model of a running gateway, to be sent or changed: its example, or the one that it
    was warmed up with.

    example:
      tensorgate sample digits > body.json
      curl -s localhost:8000/v2/models/digits/infer -d @body.json
      tensorgate sample digits --dialect tf_serving | curl -s localhost:8000/v1/models/digits:predict -d @-
    """
    from tensorgate.gateway.cli import api

    _print_line(api.sample(client.Gateway(options.url, options.timeout), options.model, options.dialect))
    return 0


def _usage(options: argparse.Namespace) -> int:
    """Show what each caller of a running gateway has used of each model since its start (metrics.usage): calls, rows,
    bytes in and out, milliseconds of computing.

    example:
      tensorgate usage --url http://gpu1:8002
      tensorgate usage --csv > usage.csv
    """
    client.usage(client.Gateway(options.url, options.timeout), _print_line, as_csv=options.csv)
    return 0


def _call(options: argparse.Namespace) -> int:
    """Call a model of a running gateway and print its outputs.

    example:
      tensorgate call half_plus_two '[1.0, 2.0, 5.0]'
      tensorgate call digits image=@config/demo/images/7.json
      tensorgate call add_sub INPUT0=@a.npy INPUT1=@b.json --version 1
      tensorgate call photos image=@photo.jpg --json
      printf 'a text' | tensorgate call upper text=@-
    """
    from tensorgate.gateway.cli import model_call

    gateway = client.Gateway(options.url, options.timeout)
    model_call.call(gateway, options.model, options.version, options.inputs, _print_line, as_json=options.json)
    return 0


def _health(options: argparse.Namespace) -> int:
    """Exit with 0 if a gateway is ready, with 1 if not: made for HEALTHCHECK and scripts.

    example:
      tensorgate health --wait 60 && run-my-tests
      tensorgate health --url http://localhost:8501
      tensorgate health --grpc localhost:8001
    """
    gateway: client.Probed = (
        client.GrpcGateway(options.grpc, options.timeout)
        if options.grpc
        else client.Gateway(options.url, options.timeout)
    )
    client.health(gateway, options.live, options.wait, _print_line)
    return 0


def _diff(options: argparse.Namespace) -> int:
    """Show the answers that differed between a route's models and those that its traffic is mirrored to.

    example:
      tensorgate diff diffs.jsonl
      tensorgate diff diffs.jsonl --route vision --json
    """
    from tensorgate.gateway.cli import shadow_report

    try:
        shadow_report.show(options.file, options.route, as_json=options.json, print_line=_print_line)
    except OSError as error:
        _print_error(f"{options.file}: {(error.strerror or 'unreadable').lower()}")
        return 1
    return 0


def _replay(options: argparse.Namespace) -> int:
    """Send recorded calls to a server again, in their own time, and see what its answers are like.

    example:
      tensorgate replay calls.jsonl --to http://new:8000 --grpc new:8001 --diff
      tensorgate replay calls.jsonl --to http://new:8000 --diff --rtol 1e-4 --atol 1e-6 --ignore id
      tensorgate replay calls.jsonl* --to http://new:8000 --speed 4
      tensorgate replay calls.jsonl --to http://new:8000 --speed max --connections 16 --repeat 10
    """
    from tensorgate.gateway import app
    from tensorgate.gateway.cli import replay
    from tensorgate.gateway.cli.answer_diff import Leniency
    from tensorgate.gateway.routing.response_diff import Tolerance

    if options.to is None and options.grpc is None:
        raise client.ClientError("say where to: --to http://HOST:PORT, --grpc HOST:PORT, or both")
    headers = []
    for header in options.header:
        name, colon, value = header.partition(":")
        if not colon:
            raise client.ClientError(f"expected 'NAME: VALUE', not {header!r}")
        headers.append((name.strip().lower(), value.strip()))
    leniency = Leniency(Tolerance(options.rtol, options.atol), frozenset(options.ignore))
    if leniency and not options.diff:
        raise client.ClientError("--rtol, --atol and --ignore say how answers are compared: add --diff")
    wanted = replay.ReplayOptions(
        options.to,
        options.grpc,
        options.speed,
        options.connections,
        options.repeat,
        options.diff,
        leniency,
        app.registries().dialects,
        frozenset(options.model),
        tuple(headers),
    )
    return replay.replay(options.files, wanted, options.json, _print_line)


def _tune(options: argparse.Namespace) -> int:
    """Say how each model should batch: from recorded calls, and from runs of the models, which are loaded and measured.

    Prints a table, why, and the lines of YAML to paste. With a goal, also what the best fixed delay would do.

    example:
      tensorgate tune gateway.yaml --traffic calls.jsonl --target-p99-ms 50
    """
    from tensorgate.gateway import app
    from tensorgate.gateway.cli import batch_advice, tune
    from tensorgate.gateway.config import load_config

    if options.target_p99_ms is not None and options.target_p99_ms <= 0:
        raise client.ClientError("--target-p99-ms is a time above 0")
    config = load_config(options.config, app.registries())
    wanted = tune.TuneOptions(options.target_p99_ms, frozenset(options.model))
    found = tune.tune(config, options.traffic, wanted, _print_error)
    for line in batch_advice.report(found):
        _print_line(line)
    if options.json is not None:
        try:
            options.json.write_text(json.dumps(batch_advice.plain(found), indent=2) + "\n")
        except OSError as error:
            raise client.ClientError(str(error)) from None
    return 0


def _conform(options: argparse.Namespace) -> int:
    """Ask a running server what its protocol promises, and tell what differs. Any server: a Triton, TensorFlow Serving,
    grps, KServe's, MLServer, or this one. Exit status 1 if something differs that clients rely on.

    A case passes, differs (the report has what was expected and what came), or is of an extension that the server does
    not offer. "Recommended" is what clients cope with.

    example:
      tensorgate conform --dialect v2 --repository models
      tritonserver --model-repository=models
      tensorgate conform --dialect v2 --http http://localhost:8000 --grpc localhost:8001 --html report.html
      tensorgate conform --dialect v2 --http http://new:8000 --against-http http://old:8000
    """
    from tensorgate.gateway.cli.conform import verb

    if options.repository is not None:
        return verb.write_repository(options.dialect, options.repository, _print_line)
    if options.http is None and options.grpc is None:
        raise client.ClientError("say where to ask: --http http://HOST:PORT, --grpc HOST:PORT, or both")
    wanted = verb.ConformOptions(
        options.dialect,
        options.http,
        options.grpc,
        options.against_http,
        options.against_grpc,
        options.from_log,
        options.model,
        options.timeout,
        options.show,
        options.json,
        options.junit,
        options.html,
    )
    return verb.conform(wanted, _print_line)
