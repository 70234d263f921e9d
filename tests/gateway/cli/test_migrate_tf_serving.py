"""`tensorgate import tf-serving`: command lines and files as people write them, and what becomes of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from import_outcome import Outcome
from onnx import TensorProto, helper

from tensorgate.adapters.importers.common import UsageError
from tensorgate.adapters.importers.tf_serving_config import read_flags
from tensorgate.adapters.importers.tf_serving_config.flags import FLAGS
from tensorgate.adapters.protobuf.messages import message
from tensorgate.adapters.protobuf.wire_format import varint
from tensorgate.gateway.app import registries
from tensorgate.gateway.cli.main import main
from tensorgate.gateway.config import json_schema

ALONE = {"max_batch_size": 0, "max_queue_size": 65536}


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """Runs the command in a folder with these models: onnx (versions 1 and 3), saved (version 00000123), lite, none."""
    for file in ("onnx/1/model.onnx", "onnx/3/model.onnx", "saved/00000123/saved_model.pb", "lite/1/model.tflite"):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).touch()
    (tmp_path / "none" / "assets").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)

    def go(*words: str) -> Outcome:
        status = main(["import", "tf-serving", *words])
        told = capsys.readouterr()
        return Outcome(status, told.out, told.err.splitlines())

    return go


def listed(*configs: str, path: str = "onnx") -> str:
    """A models.config; "…" stands for a path in this folder and the platform."""
    usual = f'base_path: "{Path.cwd() / path}" model_platform: "tensorflow"'
    return "model_config_list {\n" + "".join(f"  config {{ {each.replace('…', usual)} }}\n" for each in configs) + "}\n"


def models_of(run: Callable[..., Outcome], *configs: str, path: str = "onnx") -> Outcome:
    Path("models.config").write_text(listed(*configs, path=path))
    return run("models.config")


# -------------------------------------------------------------------------------------------------------- models.config


READS: dict[str, tuple[str, dict[str, Any]]] = {
    "as little as can be": ('name: "m" …', {}),
    "other quotes and separators": ("name: 'm'; …,", {}),
    "a number of versions": (
        'name: "m" … model_version_policy { latest { num_versions: 2 } }',
        {"versions": {"latest": 2}},
    ),
    "the latest, of which there is one": ('name: "m" … model_version_policy { latest {} }', {}),
    "all versions": ('name: "m" … model_version_policy: { all: {} }', {"versions": "all"}),
    "some versions": ('name: "m" … model_version_policy { specific { versions: [3, 1] } }', {"versions": [1, 3]}),
    "labels": (
        'name: "m" … version_labels { key: "stable" value: 1 } version_labels { key: "canary" value: 3 }',
        {"labels": {"canary": 3, "stable": 1}},
    ),
    "an odd name": ('name: "no: 1 #\'" …', {}),
}


@pytest.mark.parametrize("case", READS)
def test_models(run: Callable[..., Outcome], case: str) -> None:
    config, differs = READS[case]
    outcome = models_of(run, config)
    assert (outcome.status, outcome.report[-1]) == (0, "1 of 1 models imported")
    (entry,) = outcome.config["models"].values()
    place = {"backend": "onnx", "path": str(Path.cwd() / "onnx"), "versions": "latest"}
    assert entry == place | ALONE | differs
    assert list(outcome.config["models"]) == ["no: 1 #'" if case == "an odd name" else "m"]


def test_lists_and_colons(run: Callable[..., Outcome]) -> None:
    """`config: [ {…}, {…} ]`, a comment, and a byte order mark."""
    usual = f"base_path: '{Path.cwd()}/onnx', model_platform: 'tensorflow'"
    text = f"\ufeff# ours\nmodel_config_list: {{ config: [ {{ name: 'a', {usual} }}, {{ name: 'b', {usual} }} ] }}"
    Path("models.config").write_text(text, encoding="utf-8")
    assert list(run("models.config").config["models"]) == ["a", "b"]


def test_the_deprecated_type_is_a_platform(run: Callable[..., Outcome]) -> None:
    outcome = models_of(run, f'name: "m" base_path: "{Path.cwd()}/onnx" model_type: TENSORFLOW')
    assert outcome.status == 0


@pytest.mark.parametrize(
    ("path", "backend", "because", "remark"),
    [
        ("onnx", "onnx", "3/model.onnx", ""),
        (
            "saved",
            "tensorflow",
            "00000123/saved_model.pb",
            "needs TensorFlow here: pip install 'tensorflow>=2.21'",
        ),
        ("none", "tensorflow", "no version yet", "has no version yet: check the backend, which is a guess"),
        ("nowhere", "tensorflow", "not on this machine", "is not on this machine: check path and backend"),
    ],
)
def test_what_lies_there_says_the_backend(
    run: Callable[..., Outcome], path: str, backend: str, because: str, remark: str
) -> None:
    outcome = models_of(run, 'name: "m" …', path=path)
    assert (outcome.status, outcome.config["models"]["m"]["backend"]) == (0, backend)
    assert outcome.said("-> path") == f"m: models.config:2: base_path -> path, backend: {backend} ({because})"
    assert (f"# models.config:2: base_path {remark}" in outcome.yaml) == bool(remark)


def test_a_uri_of_this_machine_is_a_path(run: Callable[..., Outcome]) -> None:
    outcome = models_of(run, f'name: "m" model_platform: "tensorflow" base_path: "file://{Path.cwd()}/onnx"')
    assert outcome.config["models"]["m"]["path"] == str(Path.cwd() / "onnx")


@pytest.mark.parametrize("url", ["gs://bucket/models/m", "s3://bucket/m"])
def test_a_bucket_is_a_url(url: str, run: Callable[..., Outcome]) -> None:
    outcome = models_of(run, f'name: "m" model_platform: "tensorflow" base_path: "{url}"')
    assert outcome.config["models"]["m"]["path"] == url
    assert outcome.said("-> path") == "m: models.config:2: base_path -> path, backend: tensorflow (in an object store)"


REFUSED: dict[str, tuple[str, str]] = {
    # the second model, and what is said of it; the first is m
    "a store that is none here": (
        'name: "n" model_platform: "tensorflow" base_path: "hdfs://b/n"',
        "3:51: model_config_list.config[1].base_path: hdfs://b/n is not on this machine; copy it here and name the "
        "folder: hdfs dfs -get hdfs://b/n DIR",
    ),
    "a bucket and no name": (
        'name: "n" model_platform: "tensorflow" base_path: "s3://"',
        "expected s3://BUCKET/PREFIX",
    ),
    "a name twice": (
        'name: "m" …',
        "3:12: model_config_list.config[1].name: Illegal to list model m multiple times in config list",
    ),
    "a relative path": (
        'name: "n" model_platform: "tensorflow" base_path: "models/n"',
        "Expected model n to have an absolute path or URI; got base_path()=models/n",
    ),
    "no path": (
        'name: "n" model_platform: "tensorflow"',
        "Expected model n to have an absolute path or URI; got base_path()=",
    ),
    "no platform": (
        'name: "n" base_path: "/n"',
        "Illegal setting neither ModelServerConfig::model_type (deprecated) nor ModelServerConfig::model_platform, "
        "model name is n",
    ),
    "platform and type": (
        'name: "n" … model_type: TENSORFLOW',
        "Illegal setting both ModelServerConfig::model_type (deprecated) and ModelServerConfig::model_platform, "
        "model name is n",
    ),
    "another platform": (
        'name: "n" base_path: "/n" model_platform: "caffe"',
        "3:38: model_config_list.config[1].model_platform: Model n requests unsupported platform caffe",
    ),
    "another type": (
        'name: "n" base_path: "/n" model_type: OTHER',
        "model_type choice 2 not supported, model name is n",
    ),
    "no name": ("…", "3:3: model_config_list.config[1]: a model needs a name"),
    "a name that no address can carry": ('name: "a/b" …', '"a/b": expected a name without / and control characters'),
    "no versions": (
        'name: "n" … model_version_policy { specific {} }',
        "model_version_policy.specific: expected versions, each at least 0",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_model_that_is_refused_leaves_the_others(run: Callable[..., Outcome], case: str) -> None:
    config, remark = REFUSED[case]
    outcome = models_of(run, 'name: "m" …', config)
    assert (outcome.status, outcome.report[-1]) == (1, "1 of 2 models imported")
    assert remark in outcome.said("NOT IMPORTED: models.config:3:")
    assert list(outcome.config["models"]) == ["m"]
    assert "not imported: models.config:3:" in outcome.yaml


def test_lite_models_are_to_be_converted(run: Callable[..., Outcome]) -> None:
    outcome = models_of(run, 'name: "m" …', path="lite")
    assert "found model.tflite; convert it to ONNX" in outcome.said("NOT IMPORTED")


def test_each_key_is_told_with_its_line(run: Callable[..., Outcome]) -> None:
    text = (
        'name: "m" …\n version_labels { key: "stable" value: 1 }\n version_labels { key: "canary" value: 4 }\n'
        " model_version_policy { specific { versions: 1 } }\n logging_config { sampling_config { sampling_rate: 1 } }\n"
        " base_pth: 3\n other { of { mine: [1, 2] } }"
    )
    outcome = models_of(run, text)
    assert outcome.status == 1, "a label was refused"
    assert outcome.report[1:-1] == [
        "m: models.config:2: base_path -> path, backend: onnx (3/model.onnx)",
        "m: models.config:3: version_labels.stable -> labels.stable: 1",
        "m: models.config:4: version_labels.canary is refused: there is no version 4; the versions served are [1]",
        "m: models.config:5: model_version_policy -> versions: [1]",
        "m: models.config:6: logging_config is ignored: requests are not logged; "
        "tracing.file writes the times of single requests",
        "m: models.config:7: base_pth is not known and passed over; did you mean base_path?",
        "m: models.config:8: other is not known and passed over",
        "1 of 1 models imported",
    ]
    assert outcome.config["models"]["m"]["labels"] == {"stable": 1}
    comments = [line.strip() for line in outcome.yaml.splitlines() if line.startswith("    #")]
    assert [line for line in comments if "->" in line] == []
    assert len([line for line in comments if "models.config" in line]) == 4


WRONG_FILES: dict[str, tuple[bytes, str]] = {
    "not text format": (
        b"model_config_list {\n  config { name: m }\n}",
        "models.config:2:18: model_config_list.config.name",
    ),
    "not closed": (b"model_config_list { config {", "models.config:1:28: "),
    "not text": (b"# a\n\xff", "models.config:2: not UTF-8 text"),
    "empty": (b"", "models.config: no model_config_list; expected model_config_list { config { name: … } }"),
    "of its own": (
        b"custom_model_config { [type.googleapis.com/mine.Own] { a: 1 } }",
        "models.config:1:1: custom_model_config is refused: it is for servers built with sources of their own",
    ),
    "an unknown type": (b"model_config_list { config { model_type: CAFFE } }", "models.config:1:42: "),
    "deep": (b"a {" * 3000, "models.config: "),
}


@pytest.mark.parametrize("case", WRONG_FILES)
def test_a_file_that_cannot_be_read(run: Callable[..., Outcome], case: str) -> None:
    content, remark = WRONG_FILES[case]
    Path("models.config").write_bytes(content)
    outcome = run("models.config", "-o", "gateway.yaml")
    assert (outcome.status, outcome.yaml, len(outcome.report)) == (1, "", 1)
    assert outcome.report[0].startswith(remark)
    original = " (Error parsing text-format tensorflow.serving.ModelServerConfig)"
    assert outcome.report[0].endswith(original) is (
        case in {"not text format", "not closed", "an unknown type", "deep"}
    )
    assert not Path("gateway.yaml").exists()


def test_no_such_file(run: Callable[..., Outcome]) -> None:
    assert run("models.config").report == ["models.config: no such file or directory"]
    assert run("models.config").status == 1
    assert run("onnx").report == ["onnx: not a file"]


def test_an_empty_list_is_no_configuration(run: Callable[..., Outcome]) -> None:
    Path("models.config").write_text("model_config_list {}")
    assert (run("models.config").status, run("models.config").report[-1]) == (1, "0 of 0 models imported")


# --------------------------------------------------------------------------------------------------------- command line


def single(run: Callable[..., Outcome], *flags: str) -> Outcome:
    return run("--model_name=m", f"--model_base_path={Path.cwd()}/onnx", *flags)


def binds(outcome: Outcome) -> tuple[list[str], list[str]]:
    listen = outcome.config["listen"]
    for listener in [*listen["http"], *listen.get("grpc", [])]:
        assert listener["dialects"] == ["tf_serving"]
    return [each["bind"] for each in listen["http"]], [each["bind"] for each in listen.get("grpc", [])]


def test_one_model(run: Callable[..., Outcome]) -> None:
    outcome = single(run)
    assert outcome.status == 0
    assert list(outcome.config["models"]) == ["m"]
    assert "m: command line: base_path -> path, backend: onnx (3/model.onnx)" in outcome.report
    assert outcome.config["model_control"] == {"mode": "poll", "poll_seconds": 1}
    assert binds(outcome) == (["0.0.0.0:8501"], ["0.0.0.0:8500"])
    assert {"tf_serving", "metrics"}.isdisjoint(outcome.config)


def test_the_name_has_a_default(run: Callable[..., Outcome]) -> None:
    assert list(run(f"--model_base_path={Path.cwd()}/onnx").config["models"]) == ["default"]


def test_a_pasted_command_line(run: Callable[..., Outcome]) -> None:
    """With the program's name, after two dashes, and the file to write before them."""
    Path("b.txt").write_text("max_batch_size { value: 16 }")
    Path("models.config").write_text(listed('name: "a" …', 'name: "b" …'))
    outcome = run(
        "-o", "gateway.yaml", "--", "/usr/bin/tensorflow_model_server", "--port=8500", "--rest_api_port=8501",
        "--model_config_file=models.config", "--enable_batching", "--batching_parameters_file=b.txt",
    )  # fmt: skip
    assert outcome.status == 0, outcome.report
    assert outcome.report[-1] == "2 of 2 models imported to gateway.yaml"
    written = yaml.safe_load(Path("gateway.yaml").read_text())
    assert {entry["max_batch_size"] for entry in written["models"].values()} == {16}


@pytest.mark.parametrize(
    ("flags", "http", "grpc"),
    [
        (["--port=9000", "--rest_api_port=9001"], ["0.0.0.0:9001"], ["0.0.0.0:9000"]),
        (["--port=9000"], [], ["0.0.0.0:9000"]),
        (["--rest_api_port=9001"], ["0.0.0.0:9001"], ["0.0.0.0:8500"]),
        (["--port=0", "--rest_api_port=9001"], ["0.0.0.0:9001"], []),
        (["--port=1", "--port=2"], [], ["0.0.0.0:2"]),
        (["--port=1", "--grpc_socket_path=/run/s p"], [], ["0.0.0.0:1", "unix:/run/s p"]),
        (["--port=0", "--rest_api_port=1", "--grpc_socket_path=/s"], ["0.0.0.0:1"], ["unix:/s"]),
    ],
)
def test_ports(run: Callable[..., Outcome], flags: list[str], http: list[str], grpc: list[str]) -> None:
    assert binds(single(run, *flags)) == (http, grpc)


@pytest.mark.parametrize(
    ("flag", "section", "value"),
    [
        ("--rest_api_enable_cors_support", "tf_serving", {"cors": True}),
        ("--rest_api_timeout_in_ms=5000", "tf_serving", {"timeout_ms": 5000}),
        ("--enable_serialization_as_tensor_content=true", "tf_serving", {"tensor_content": True}),
        ("--file_system_poll_wait_seconds=30", "model_control", {"mode": "poll", "poll_seconds": 30}),
        ("--file_system_poll_wait_seconds=0", "model_control", None),
    ],
)
def test_sections(run: Callable[..., Outcome], flag: str, section: str, value: Any) -> None:
    outcome = single(run, flag)
    assert outcome.status == 0
    assert outcome.config.get(section) == value
    assert " -> " in outcome.said(f"command line: {flag}")


@pytest.mark.parametrize("path", ["onnx", "saved"])
def test_threads(run: Callable[..., Outcome], path: str) -> None:
    def threads(*flags: str) -> list[Any]:
        model = run(f"--model_base_path={Path.cwd()}/{path}", *flags).config["models"]["default"]
        return [model.get("intra_op_threads"), model.get("inter_op_threads")]

    assert threads("--tensorflow_session_parallelism=3") == [3, 3]
    assert threads("--tensorflow_session_parallelism=3", "--tensorflow_inter_op_parallelism=1") == [3, 1]
    assert threads("--tensorflow_intra_op_parallelism=0") == [None, None]


def test_options_of_saved_models_alone(run: Callable[..., Outcome]) -> None:
    Path("b.txt").write_text("num_batch_threads { value: 2 }")
    flags = ["--saved_model_tags=serve,gpu", "--batching=b.txt"]
    saved = run(f"--model_base_path={Path.cwd()}/saved", *flags).config["models"]["default"]
    assert (saved["tags"], saved["parallel_runs"]) == (["serve", "gpu"], 2)
    assert {"tags", "parallel_runs"}.isdisjoint(single(run, *flags).config["models"]["m"])


def test_every_flag_is_told(run: Callable[..., Outcome]) -> None:
    """With its default each is mapped or ignored; nothing is passed over in silence, and the help has them all."""
    named = {"model_name", "model_base_path", "model_config_file", "batching_parameters_file"}
    files = {name for name in FLAGS if name.endswith("_file")}
    for name, flag in FLAGS.items():
        if name in named | files:
            continue
        value = str(flag.default).lower() if isinstance(flag.default, bool) else flag.default
        told = single(run, f"--{name}={value}").said(f"command line: --{name}=")
        assert told.partition(" ")[2].partition(" ")[2].split(" ", 1)[1].startswith(("-> ", "is ignored: ")), told


REFUSED_FLAGS = {
    "--platform_config_file=p": "platforms are backends here",
    "--tensorflow_session_config_file=p": "write a model's threads and device beside it",
    "--prefer_tflite_model": "convert it to ONNX",
    "--use_alts_credentials=true": "give gRPC's port a certificate",
    "--enable_per_model_batching_parameters": "write a model's own max_batch_size beside it",
}


@pytest.mark.parametrize("flag", REFUSED_FLAGS)
def test_a_refused_flag_has_a_remedy(run: Callable[..., Outcome], flag: str) -> None:
    outcome = single(run, flag)
    assert (outcome.status, list(outcome.config["models"])) == (1, ["m"])
    assert f"is refused: {REFUSED_FLAGS[flag][:5]}"[:11] in outcome.said(flag)
    assert REFUSED_FLAGS[flag] in outcome.said(flag)
    assert f"# command line: {flag}" in outcome.yaml
    assert outcome.report[-1] == "1 thing refused; the lines above say what to do"


def test_an_unknown_flag_is_told_and_passed_over(run: Callable[..., Outcome]) -> None:
    outcome = single(run, "--enable_batchin", "-v")
    assert outcome.status == 0
    assert outcome.said("--enable_batchin ").endswith("has no such flag; did you mean --enable_batching?")
    assert outcome.said("-v ").endswith("TensorFlow Serving has no such flag")
    assert "max_queue_delay_us" not in outcome.config["models"]["m"]


def test_a_file_takes_the_place_of_the_only_model(run: Callable[..., Outcome]) -> None:
    Path("models.config").write_text(listed('name: "a" …'))
    outcome = single(run, "models.config")
    assert list(outcome.config["models"]) == ["a"]
    assert "is ignored: --model_config_file takes its place" in outcome.said("--model_name=m")


USAGE: dict[str, tuple[list[str], str]] = {
    "a port that is none": (["--port=70000"], "--port=70000: expected a port, from 0 to 65535"),
    "no number": (["--port=x"], "--port=x: expected a number"),
    "no value": (["--rest_api_timeout_in_ms"], "--rest_api_timeout_in_ms: needs a value, as in"),
    "a space": (["--port", "8500"], "--port: needs a value, as in --port=8500"),
    "no boolean": (["--enable_batching=yes"], "--enable_batching=yes: expected true or false"),
    "one port for both": (["--rest_api_port=8500"], "--rest_api_port=8500: the same as --port"),
    "parameters of nothing": (["--batching_parameters_file=b"], "--batching_parameters_file: needs --enable_batching"),
    "two files": (["a.config", "b.config"], "b.config: unexpected beside a.config"),
    "no time": (["--rest_api_timeout_in_ms=0"], "--rest_api_timeout_in_ms=0: expected at least 1"),
}


@pytest.mark.parametrize("case", USAGE)
def test_what_the_old_server_would_not_start_with(run: Callable[..., Outcome], case: str) -> None:
    flags, remark = USAGE[case]
    outcome = single(run, *flags, "-o", "gateway.yaml")
    assert (outcome.status, outcome.yaml) == (2, "")
    assert any(line.startswith(remark) for line in outcome.report), outcome.report
    assert not Path("gateway.yaml").exists()


def test_nothing_to_import(run: Callable[..., Outcome]) -> None:
    outcome = run()
    assert outcome.status == 2
    assert outcome.report == [
        "nothing to import: give a models.config, or --model_config_file=FILE, or --model_base_path=DIR"
    ]


WORDS = st.text() | st.sampled_from(sorted(FLAGS)).flatmap(lambda name: st.text().map(lambda text: f"--{name}{text}"))


@given(st.lists(WORDS))
def test_a_command_line_is_read_or_refused(words: list[str]) -> None:
    """Whatever it is: no other error, and whatever is read names models."""
    with contextlib.suppress(UsageError):
        line = read_flags(words)
        assert line.of("model_config_file") or line.of("model_base_path")


def test_help_tells_of_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["import", "tf-serving", "--help"])
    assert end.value.code == 0
    told = capsys.readouterr().out
    for name, flag in FLAGS.items():
        assert any(line.split()[:1] == [f"--{name}"] and line.endswith(flag.becomes) for line in told.splitlines()), (
            name
        )
    assert "--model_name=$MODEL_NAME --model_base_path=$MODEL_BASE_PATH/$MODEL_NAME" in told


def test_other_verbs_take_no_unknown_flags(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["import", "triton", "models", "--port=1"])
    assert end.value.code == 2
    assert "unrecognized arguments: --port=1" in capsys.readouterr().err


# --------------------------------------------------------------------------------------------- batching, metrics, TLS


SIZED = "max_batch_size { value: 128 }"


def batched(run: Callable[..., Outcome], text: str) -> Outcome:
    Path("b.txt").write_text(text)
    return single(run, "--batching=b.txt") if text else single(run, "--enable_batching")


@pytest.mark.parametrize(
    ("text", "size", "delay", "waiting"),
    [
        ("", 1000, 0, 10000),
        (
            "max_batch_size { value: 128 } batch_timeout_micros { value: 2000 } max_enqueued_batches { value: 7 }",
            128,
            2000,
            896,
        ),
        ("max_batch_size: { value: 4 } num_batch_threads { value: 2 }", 4, 0, 40),
        ("max_enqueued_batches { value: 0 }", 1000, 0, 1000),
    ],
)
def test_batching(run: Callable[..., Outcome], text: str, size: int, delay: int, waiting: int) -> None:
    outcome = batched(run, text)
    assert outcome.status == 0
    model = outcome.config["models"]["m"]
    assert [model[key] for key in ("max_batch_size", "max_queue_delay_us", "max_queue_size")] == [size, delay, waiting]


def test_batching_tells_of_each_key(run: Callable[..., Outcome]) -> None:
    outcome = batched(
        run,
        "max_batch_size { value: 8 }\nmax_enqueued_batches { value: 3 }\nnum_batch_threads { value: 2 }\n"
        "allowed_batch_sizes: [4, 8]\npad_variable_length_inputs: true\nenable_large_batch_splitting { value: true }\n"
        "max_execution_batch_size { value: 8 }\nthread_pool_name { value: 'x' }\nfull_batch_scheduling_boost_micros {}",
    )
    assert [line for line in outcome.report if line.startswith("b.txt")] == [
        "b.txt:9: full_batch_scheduling_boost_micros is not known and passed over",
        "b.txt:3: num_batch_threads -> parallel_runs of SavedModels; "
        "an ONNX model runs a batch at a time, on all cores (see instances)",
        "b.txt:1: max_batch_size -> max_batch_size: 8",
        "b.txt:2: max_enqueued_batches -> max_queue_size: 24, which counts requests: 3 batches of 8 rows each",
        "b.txt:8: thread_pool_name is ignored: threads have no names of their own",
        "b.txt:6: enable_large_batch_splitting is ignored: a request of up to max_batch_size rows runs whole",
        "b.txt:7: max_execution_batch_size is ignored: a request of up to max_batch_size rows runs whole",
        "b.txt:4: allowed_batch_sizes -> pad_batches_to: [4, 8]",
        "b.txt:5: pad_variable_length_inputs -> ragged.inputs, filled up with 0 or empty text and not with each "
        "tensor's first element",
    ]
    model = outcome.config["models"]["m"]
    assert model["pad_batches_to"] == [4, 8]
    assert model["ragged"] == {"inputs": {"*": {}}}


def test_batches_smaller_than_requests(run: Callable[..., Outcome]) -> None:
    """A large request is split there; here the largest batch bounds it."""
    outcome = batched(
        run,
        "max_batch_size { value: 8 }\nallowed_batch_sizes: [2, 4]\nenable_large_batch_splitting { value: true }\n"
        "max_execution_batch_size { value: 4 }",
    )
    assert outcome.config["models"]["m"]["pad_batches_to"] == [2, 4]
    told = "b.txt:2: allowed_batch_sizes bounds requests, too: one of more than 4 rows is refused, and not split"
    assert told in outcome.report


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        (
            "max_batch_size { value: 0 }",
            "b.txt:1:1: max_batch_size: found 0, expected at least 1, as in max_batch_size {",
        ),
        ("\nbatch_timeout_micros { value: -1 }", "b.txt:2:1: batch_timeout_micros: found -1, expected at least 0"),
        ("max_batch_size: 128", "b.txt:1:17: max_batch_size: "),
        (
            SIZED + "\nallowed_batch_sizes: [4, 4, 128]",
            "b.txt:2:1: allowed_batch_sizes: found [4, 4, 128], expected si",
        ),
        (SIZED + "\nallowed_batch_sizes: [0, 128]", "b.txt:2:1: allowed_batch_sizes: found [0, 128], expected sizes"),
        (SIZED + "\nallowed_batch_sizes: 64", "b.txt:2:1: allowed_batch_sizes: found [64], whose last must be the lar"),
        ("max_batch_size {", "b.txt:1:16: "),
    ],
)
def test_wrong_batching(run: Callable[..., Outcome], text: str, remark: str) -> None:
    outcome = batched(run, text)
    assert (outcome.status, outcome.yaml) == (1, "")
    assert outcome.report[0].startswith(remark)


def tensors(name: str, shape: list[Any] | None) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


@pytest.mark.parametrize(
    ("inputs", "whole"),
    [
        ({"x": ["n", 2]}, ""),
        ({"x": [None, 2]}, ""),
        ({"x": [-1, 2]}, ""),
        ({"x": None}, ""),
        ({"x": ["n", 2], "y": [1, 2]}, "input y"),
        ({"x": []}, "input x"),
        ({"x": ["n", 2], "w": [3, 2]}, ""),
    ],
    ids=str,
)
def test_a_model_without_rows_is_not_batched(run: Callable[..., Outcome], inputs: dict[str, Any], whole: str) -> None:
    """`w` is a weight that older exporters list as an input, too."""
    weights = [helper.make_tensor("w", TensorProto.FLOAT, [3, 2], [0.0] * 6)] if "w" in inputs else []
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["z"])],
        "g",
        [tensors(name, shape) for name, shape in inputs.items()],
        [tensors("z", ["n", 2])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    Path("onnx/3/model.onnx").write_bytes(model.SerializeToString())
    outcome = batched(run, "max_batch_size { value: 8 }\nallowed_batch_sizes: [4, 8]")
    entry = outcome.config["models"]["m"]
    if whole:
        assert (entry["max_batch_size"], entry.keys() & {"pad_batches_to", "max_queue_delay_us"}) == (0, set())
        assert f"is not batched: {whole} has no dimension of rows" in outcome.said("is not batched")
    else:
        assert (entry["max_batch_size"], entry["pad_batches_to"]) == (8, [4, 8])


@pytest.mark.parametrize(
    ("signatures", "whole"),
    [
        ({"serving_default": {"x": [-1, 2]}}, ""),
        ({"serving_default": {"x": None}}, ""),
        ({"serving_default": {"x": [-1, 2]}, "scalar": {"k": []}}, "input k of signature scalar"),
        ({"serving_default": {"x": [8, 2]}}, "input x of signature serving_default"),
        ({"serving_default": {"x": [-1]}, "__saved_model_init_op": {"x": []}}, ""),
    ],
)
def test_a_signature_without_rows_is_not_batched(
    run: Callable[..., Outcome], signatures: dict[str, dict[str, list[int] | None]], whole: str
) -> None:
    """A saved_model.pb of two graphs, of which the one to serve counts; its graph is no business of the importer's."""
    served = bytes_of(1, bytes_of(4, b"serve")) + bytes_of(2, b"no graph at all")
    for key, inputs in signatures.items():
        signature = message("tensorflow.SignatureDef")()
        for name, shape in inputs.items():
            info = signature.inputs[name]
            info.tensor_shape.unknown_rank = shape is None
            for size in shape or ():
                info.tensor_shape.dim.add(size=size)
        served += bytes_of(5, bytes_of(1, key.encode()) + bytes_of(2, signature.SerializeToString()))
    training = bytes_of(1, bytes_of(4, b"train"))
    content = b"\x08\x01" + bytes_of(2, training) + bytes_of(2, served)
    Path("saved/00000123/saved_model.pb").write_bytes(content)
    Path("b.txt").write_text("max_batch_size { value: 8 }")
    outcome = run("--model_name=m", f"--model_base_path={Path.cwd() / 'saved'}", "--batching=b.txt")
    assert outcome.config["models"]["m"]["max_batch_size"] == (0 if whole else 8)
    assert whole in outcome.said("is not batched") if whole else "is not batched" not in "".join(outcome.report)


def bytes_of(number: int, data: bytes) -> bytes:
    """A field of a protobuf message."""
    return bytes([number << 3 | 2]) + varint(len(data)) + data


@pytest.mark.parametrize(
    ("flags", "count"),
    [
        ([], None),
        (["--enable_model_warmup=false"], 0),
        (["--num_request_iterations_for_warmup=3"], 3),
        (["--num_request_iterations_for_warmup=0"], None),
        (["--enable_model_warmup=false", "--num_request_iterations_for_warmup=3"], 0),
    ],
)
def test_warm_up(run: Callable[..., Outcome], flags: list[str], count: int | None) -> None:
    outcome = single(run, *flags)
    assert (outcome.status, outcome.config.get("tf_serving", {}).get("warmup_requests")) == (0, count)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("prometheus_config { enable: true }", "/monitoring/prometheus/metrics"),
        ('prometheus_config: { enable: true, path: "/m" }', "/m"),
        ("prometheus_config { enable: false }", None),
        ("", None),
    ],
)
def test_monitoring(run: Callable[..., Outcome], text: str, path: str | None) -> None:
    Path("m.txt").write_text(text)
    outcome = single(run, "--monitoring", "m.txt")
    assert (outcome.status, outcome.config["metrics"]) == (0, {"tf_serving_path": path})
    assert outcome.said("prometheus_config.enable").endswith(f"-> metrics.tf_serving_path: {path or 'null'}")


def test_a_path_of_metrics_that_is_none(run: Callable[..., Outcome]) -> None:
    Path("m.txt").write_text('prometheus_config { enable: true path: "metrics" }')
    outcome = single(run, "--monitoring_config_file=m.txt")
    assert outcome.status == 1
    assert outcome.report == ['m.txt:1:34: prometheus_config.path: "metrics": expected a path that begins with /']


PEM = 'server_key: "SECRET\\n"\nserver_cert: "c"\n'


def grpc_listener(outcome: Outcome) -> dict[str, Any]:
    (listener,) = outcome.config["listen"]["grpc"]
    return {key: value for key, value in listener.items() if key != "dialects"}


@pytest.mark.parametrize(
    ("text", "more", "files"),
    [
        (PEM, {}, {"server.crt": "c", "server.key": "SECRET\n"}),
        (
            PEM + 'client_verify: true custom_ca: "a"',
            {"client_ca": "gateway-tls/client_ca.crt"},
            {"server.crt": "c", "server.key": "SECRET\n", "client_ca.crt": "a"},
        ),
        (PEM + 'custom_ca: "a"', {}, {"server.crt": "c", "server.key": "SECRET\n"}),
    ],
)
def test_grpc_stays_encrypted(
    run: Callable[..., Outcome], text: str, more: dict[str, str], files: dict[str, str]
) -> None:
    Path("s.txt").write_text(text)
    for _ in range(2):  # the second time over the files of the first
        outcome = single(run, "--ssl=s.txt", "-o", "gateway.yaml")
    written = Outcome(outcome.status, Path("gateway.yaml").read_text(), outcome.report)
    tls = {"certificate": "gateway-tls/server.crt", "key": "gateway-tls/server.key"}
    assert grpc_listener(written) == {"bind": "0.0.0.0:8500", "tls": tls | more}
    assert {file.name: file.read_text() for file in Path("gateway-tls").iterdir()} == files
    assert {file.stat().st_mode & 0o777 for file in Path("gateway-tls").iterdir()} == {0o600}
    assert "SECRET" not in written.yaml + "".join(outcome.report)
    assert outcome.status == 0
    assert ("custom_ca is ignored" in "".join(outcome.report)) is ("custom_ca" in text and not more)


def test_what_was_encrypted_otherwise_is_open_to_this_machine_alone(run: Callable[..., Outcome]) -> None:
    """Without a file to write keys beside, and with authorities that nobody names here."""
    Path("s.txt").write_text(PEM)
    outcome = single(run, "--ssl=s.txt")
    assert outcome.status == 1
    assert binds(outcome) == (["0.0.0.0:8501"], ["127.0.0.1:8500"])
    for key in ("server_key", "server_cert"):
        assert "-o FILE" in outcome.said(f"{key} is refused: ")
    Path("s.txt").write_text(PEM + "client_verify: true")
    outcome = single(run, "--ssl=s.txt", "-o", "gateway.yaml")
    assert (outcome.status, "client_ca: FILE" in outcome.said("client_verify is refused: ")) == (1, True)
    assert grpc_listener(Outcome(0, Path("gateway.yaml").read_text(), []))["bind"] == "127.0.0.1:8500"


@pytest.mark.parametrize("text", ['server_key: "k"', 'server_cert: "c"', "client_verify: true", ""])
def test_half_a_key(run: Callable[..., Outcome], text: str) -> None:
    Path("s.txt").write_text(text)
    outcome = single(run, "--ssl=s.txt", "-o", "gateway.yaml")
    assert (outcome.status, Path("gateway.yaml").exists()) == (1, False)
    assert "is missing; expected its text in PEM form" in outcome.report[-1]


@pytest.mark.parametrize("text", ['server_key: "SECRET" SECRET', "server_key: SECRET", 'server_key: "SECRET', "SECRET"])
def test_a_key_is_never_shown(run: Callable[..., Outcome], text: str) -> None:
    Path("s.txt").write_text(text)
    outcome = single(run, "--ssl=s.txt")
    assert outcome.report[0].startswith("s.txt:1:")
    assert (outcome.status, len(outcome.report)) == (1, 1)
    assert "SECRET" not in outcome.report[0]


# ----------------------------------------------------------------------------------------------------------- the whole


def test_the_file_is_made_for_people(run: Callable[..., Outcome]) -> None:
    outcome = single(run, "--rest_api_port=8501", "--grpc_max_threads=9", "--rest_api_timeout_in_ms=900")
    assert outcome.yaml.replace(str(Path.cwd()), "/models") == (
        """\
# Imported from TensorFlow Serving.
# What it was told and is not done here stands beside what it is about.
# command line: --grpc_max_threads=9 is ignored: one event loop serves all connections

listen:                               # TensorFlow Serving's ports
  http:
    - {bind: "0.0.0.0:8501", dialects: [tf_serving]}
    # - {bind: "0.0.0.0:8000"}        # the same models, for clients of Open Inference and grps
  grpc:
    - {bind: "0.0.0.0:8500", dialects: [tf_serving]}
limits: {max_body_bytes: 2147483647, max_binary_bytes: 2147483647}   # the original had none
tf_serving: {timeout_ms: 900}
model_control: {mode: poll, poll_seconds: 1}  # new versions are found as they come
# model_control: {mode: explicit, load: ['*'], model_roots: [/models]}  # in place of polling: takes reload requests

models:

  m:
    backend: onnx
    path: /models/onnx
    versions: latest
    max_batch_size: 0
    max_queue_size: 65536
"""
    )


def save_identity(path: Path) -> None:
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", infos[:1], infos[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def test_what_is_imported_passes_the_check(
    run: Callable[..., Outcome], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """With real models it also loads."""
    for version in (1, 3):
        save_identity(tmp_path / f"onnx/{version}/model.onnx")
    Path("models.config").write_text(
        listed(
            'name: "a" … model_version_policy { all {} } version_labels { key: "stable" value: 1 }',
            'name: "b" … model_version_policy { specific { versions: 3 } }',
            'name: "true" …',
        )
    )
    Path("b.txt").write_text("max_batch_size { value: 16 } batch_timeout_micros { value: 100 }")
    for flags in ([], ["--batching=b.txt", "--tensorflow_session_parallelism=1", "--port=9000"]):
        assert run("models.config", "-o", "gateway.yaml", *flags).status == 0
        assert main(["check", "--load", "gateway.yaml"]) == 0
        assert capsys.readouterr().out == "gateway.yaml: ok, 3 models\n"


OPTIONS = {
    "--rest_api_enable_cors_support": ("tf_serving", "cors"),
    "--rest_api_timeout_in_ms=1000": ("tf_serving", "timeout_ms"),
    "--enable_serialization_as_tensor_content": ("tf_serving", "tensor_content"),
    "--monitoring_config_file=m.txt": ("metrics", "tf_serving_path"),
}


def known(section: str) -> set[str]:
    """The keys of a section that this gateway has."""
    schema = json_schema(registries())
    name = schema["properties"][section].get("$ref", "").rpartition("/")[2]
    return set(schema["$defs"].get(name, {}).get("properties", {}))


def test_options_pass_the_check(
    run: Callable[..., Outcome], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Those that this gateway has."""
    save_identity(tmp_path / "onnx/3/model.onnx")
    Path("m.txt").write_text('prometheus_config { enable: true path: "/m" }')
    Path("models.config").write_text(listed('name: "a" …'))
    flags = [flag for flag, (section, key) in OPTIONS.items() if key in known(section)]
    assert run("models.config", "-o", "gateway.yaml", *flags).status == 0
    assert (main(["check", "gateway.yaml"]), *capsys.readouterr()) == (0, "gateway.yaml: ok, 1 models\n", "")
