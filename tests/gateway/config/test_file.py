"""YAML files, good and broken: what they become, and the exact lines that say what is wrong with them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import Field

from tensorgate.gateway.config.file import ConfigError, Problem, load_config, model_validator, with_model_control
from tensorgate.gateway.config.options import Config, ModelControl, config_class, json_schema
from tensorgate.gateway.config.resources import usable_cores
from tensorgate.gateway.config.values import VersionPolicy, parse_bind
from tensorgate.gateway.contract.backend import BackendKind
from tensorgate.gateway.contract.dialect import DialectKind
from tensorgate.gateway.contract.files import FileRef
from tensorgate.gateway.contract.operator import OpKind
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.registries import Registries
from tensorgate.gateway.contract.tensor import TensorSpec
from tensorgate.gateway.models.changes import effective

# ---------------------------------------------------------------------------------------------------------- registries


class OnnxOptions(Options):
    """A backend with version folders."""

    threads: int = Field(default=1, ge=1, le=64)


class PythonOptions(Options):
    """A backend that names a class in a file."""

    sizes: float | list[float] | None = None


class Upstream(Options):
    dialect: str
    transport: Literal["http", "grpc"] = "http"
    address: str
    model: str


class RemoteOptions(Options):
    """A backend without files."""

    path: None = None
    upstream: Upstream


class Cast(Options):
    input: str
    to: str


class Normalize(Options):
    input: str
    mean: tuple[float, ...]
    std: tuple[float, ...]


class Softmax(Options):
    input: str
    output: str


class GrpsOptions(Options):
    initially_online: bool = False


class GrpsModelOptions(Options):
    str_data: str | None = None


def nothing(*_: Any) -> Any:
    raise AssertionError("a configuration makes nothing")


class NamesOptions(Options):
    triton_names: bool = True


class PathOptions(Options):
    tf_serving_path: str | None = "/monitoring/prometheus/metrics"


REGISTRIES = Registries(
    dialects={
        "open_inference": DialectKind(Options, nothing, uploads=True, metrics_options=NamesOptions),
        "tf_serving": DialectKind(Options, nothing, metrics_options=PathOptions),
        "grps": DialectKind(GrpsOptions, nothing, GrpsModelOptions),
    },
    backends={
        "onnx": BackendKind(OnnxOptions, nothing),
        "python": BackendKind(PythonOptions, nothing, versioned=False),
        "remote": BackendKind(RemoteOptions, nothing, versioned=False),
    },
    ops={
        "cast": OpKind(Cast, nothing),
        "normalize": OpKind(Normalize, nothing),
        "softmax": OpKind(Softmax, nothing),
        "nothing": OpKind(Options, nothing),
    },
)

SAMPLE = """\
listen:
  http:
    - {bind: "0.0.0.0:8000"}                              # every dialect
    - {bind: "0.0.0.0:8501", dialects: [tf_serving]}
  grpc:
    - {bind: "0.0.0.0:8001"}
  metrics: {bind: "0.0.0.0:8002"}
models:
  digits:
    backend: onnx
    path: models/digits
    versions: latest
    labels: {stable: 1, canary: 2}
    device: auto
    instances: 1
    max_batch_size: 32
    max_queue_delay_us: 2000
    max_queue_size: 512
    class_labels: {scores: labels.txt}
    preprocess:
      - {op: cast, input: image, to: FP32}
      - {op: normalize, input: image, mean: [0.5], std: [0.5]}
    postprocess:
      - {op: softmax, input: logits, output: scores}
    signatures:
      classify_digit: {method: classify, inputs: {image: image}, scores: scores}
  cosine:
    backend: python
    path: cosine.py:Cosine
  legacy:
    backend: remote
    upstream: {dialect: tf_serving, transport: grpc, address: "tfs:8500", model: legacy}
routes:
  mnist:
    - {model: digits, label: stable, weight: 90}
    - {model: digits, label: canary, weight: 10}
limits: {max_body_bytes: 67108864, max_json_depth: 100}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with the files that the samples name."""
    (tmp_path / "models/digits/1").mkdir(parents=True)
    for name in ("cosine.py", "labels.txt", "example.json"):
        (tmp_path / name).write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(text: str | bytes) -> Config:
    """The configuration of a file in the working directory."""
    path = Path("gateway.yaml")
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return load_config(path, REGISTRIES)


def refusal(text: str | bytes) -> list[str]:
    """The lines that refuse a file, without its name."""
    with pytest.raises(ConfigError) as caught:
        load(text)
    lines = str(caught.value).splitlines()
    assert lines == [str(problem) for problem in caught.value.problems]
    assert all(line.startswith("gateway.yaml:") for line in lines)
    return [line.removeprefix("gateway.yaml:") for line in lines]


# ---------------------------------------------------------------------------------------------------------- good files


def test_the_sample_loads(folder: Path) -> None:
    config = load(SAMPLE)
    digits, cosine, legacy = (config.models[name] for name in ("digits", "cosine", "legacy"))
    assert (digits.backend, cosine.backend, legacy.backend) == ("onnx", "python", "remote")
    assert digits.path == FileRef("models/digits", folder / "models/digits")
    assert cosine.path == FileRef("cosine.py:Cosine", folder / "cosine.py", "Cosine")
    assert legacy.path is None
    assert isinstance(legacy, RemoteOptions)
    assert legacy.upstream.address == "tfs:8500"
    assert [step.op for step in digits.preprocess] == ["cast", "normalize"]
    assert isinstance(digits.preprocess[1], Normalize)
    assert (digits.preprocess[1].input, digits.preprocess[1].mean) == ("image", (0.5,))
    assert digits.class_labels == {"scores": FileRef("labels.txt", folder / "labels.txt")}
    assert digits.signatures["classify_digit"].scores == "scores"
    assert [(target.label, target.weight) for target in config.routes["mnist"].targets] == [
        ("stable", 90),
        ("canary", 10),
    ]
    assert [listener.port for listener in config.listen.http] == [8000, 8501]
    assert config.listen.http[1].dialects == ("tf_serving",)
    assert config.listen.metrics is not None
    assert config.listen.metrics.port == 8002
    assert config.source == folder / "gateway.yaml"


def test_defaults(folder: Path) -> None:
    config = load("models: {m: {backend: onnx, path: models/digits}}")
    assert config.plain() == {
        "listen": {
            "http": [
                {
                    "bind": "0.0.0.0:8000",
                    "socket_mode": None,
                    "tls": None,
                    "auth": None,
                    "dialects": None,
                    "name": None,
                    "cors": None,
                }
            ],
            "grpc": [],
            "metrics": None,
        },
        "models": {
            "m": {
                "backend": "onnx",
                "path": "models/digits",
                "versions": "latest",
                "labels": {},
                "verify": None,
                "device": "auto",
                "instances": 1,
                "process": "engine",
                "max_memory_bytes": None,
                "max_batch_size": 0,
                "max_queue_delay_us": 0,
                "target_p99_ms": None,
                "preferred_batch_sizes": [],
                "send_on_mismatch": False,
                "batching": True,
                "max_queue_size": 512,
                "queue": {"timeout_us": 0, "timeout_action": "reject", "allow_timeout_override": False},
                "priorities": None,
                "inputs": [],
                "outputs": [],
                "memory_limit_bytes": None,
                "pad_batches_to": [],
                "ragged": None,
                "sequences": None,
                "class_labels": {},
                "preprocess": [],
                "postprocess": [],
                "signatures": {},
                "text": None,
                "residency": {"pin": False, "keep": None, "wait": None},
                "response_cache": False,
                "parameters": {},
                "example": None,
                "warmup": [],
                "threads": 1,
                "grps": None,
            }
        },
        "ops": {},
        "repositories": [],
        "stores": {
            "cache": {"folder": None, "max_bytes": None},
            "offline": False,
            "sources": {},
            "connections": 4,
            "timeout_seconds": 30,
            "retries": 5,
            "allow_private_redirects": False,
        },
        "upstreams": {},
        "model_control": {
            "mode": "none",
            "load": [],
            "poll_seconds": 15,
            "allow_uploads": False,
            "trusted": False,
            "verify": None,
            "require_verification": False,
            "model_roots": [],
        },
        "residency": {
            "on_demand": False,
            "pin": [],
            "max_resident_bytes": {},
            "keep": None,
            "wait": 30.0,
            "loads_at_once": 2,
            "neighbours": {},
            "prefetch": [],
        },
        "admin": None,
        "routes": {},
        "auth": None,
        "rate_limits": [],
        "shares": None,
        "limits": {
            "max_body_bytes": 67108864,
            "max_binary_bytes": 1073741824,
            "max_json_depth": None,
            "max_elements": None,
            "max_header_bytes": 8190,
            "max_headers": 128,
            "max_connections": None,
            "max_concurrent_streams": 1000,
            "timeouts": {"idle_seconds": 75, "head_seconds": 30, "body_seconds": 60, "answer_seconds": 300},
        },
        "metrics": {
            "triton_names": True,
            "tf_serving_path": "/monitoring/prometheus/metrics",
            "stages": ["decode", "queue", "preprocess", "infer", "postprocess", "encode"],
            "genai_names": False,
            "usage": False,
        },
        "tracing": {"file": None, "level": [], "rate": 1000, "count": -1, "log_frequency": 0},
        "access_log": None,
        "request_ids": False,
        "expose_model_errors": True,
        "record": None,
        "opentelemetry": None,
        "shared_memory": {"system": False, "cuda": False, "prefix": "", "max_regions": 256},
        "cpu": {"threads": None},
        "processes": {"doors": 1, "engine_cores": None, "replicas": True},
        "response_cache": {"max_bytes": 64 << 20, "max_entry_bytes": 1 << 20, "ttl_seconds": 0},
        "server_name": "tensorgate",
        "page": True,
        "api_docs": True,
        "readiness": "strict",
        "supervise": "auto",
        "reload": {"watch": False, "poll_seconds": 1},
        "unready_seconds": 0,
        "drain_seconds": 30,
        "open_inference": {},
        "tf_serving": {},
        "grps": {"initially_online": False},
    }


def test_repositories_stand_in_for_models(folder: Path) -> None:
    config = load(
        "repositories: [models]\nmodel_control: {mode: explicit, load: ['*', late]}\nroutes: {r: [{model: x}]}"
    )
    assert (config.models, [each.path for each in config.repositories]) == ({}, [folder / "models"])
    assert config.model_control.chosen(("a", "b")) == ("a", "b", "late")
    assert refusal("models: {m: {backend: onnx, path: models/digits}}\nmodel_control: {mode: explicit, load: [n]}") == [
        '2:40: model_control.load[0]: no model "n"; known are m'
    ]


def test_the_administrators_value_is_never_shown(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_ADMIN_KEY", " s3cret ")
    (folder / "key").write_text("s3cret\n")
    for source in ("value_env: TEST_ADMIN_KEY", "value_file: key"):
        config = load(HEAD + f"admin: {{header: x-admin-key, {source}}}")
        assert config.admin is not None
        assert config.admin.value() == b"s3cret"
        assert "s3cret" not in f"{config!r}{config.plain()}"
    (folder / "empty").write_text("\n")
    monkeypatch.setenv("TEST_ADMIN_UMLAUT", "ä")
    for source, text in (
        ("", "needs value_env or value_file, one of them"),
        ("value_env: A, value_file: key", "needs value_env or value_file, one of them"),
        ("value_env: TEST_ADMIN_NONE", "the value of x-admin-key is empty: TEST_ADMIN_NONE"),
        ("value_file: empty", "the value of x-admin-key is empty: empty"),
        (
            "value_env: TEST_ADMIN_UMLAUT",
            "the value of x-admin-key is not ASCII, which headers need: TEST_ADMIN_UMLAUT",
        ),
    ):
        assert refusal(HEAD + f"admin: {{header: x-admin-key, {source}}}")[0].endswith(f"admin: {text}")


@pytest.mark.parametrize(
    "rest",
    [
        "listen: {http: [{bind: '127.0.0.1:80'}, {bind: 'localhost:81'}], grpc: [{bind: '[::1]:82'}]}\n",
        "listen: {http: [{bind: '127.0.0.1:80'}, {bind: '0.0.0.0:81', dialects: [tf_serving, grps]}]}\n",
        "admin: {header: x-admin-key, value_file: cosine.py}\n",
        "auth: {certificates: true}\n",
        "auth: {certificates: true, admins: [anonymous]}\n",
        "auth: {certificates: true, mode: optional, admins: ['*', 'role:ops']}\n",
    ],
)
def test_uploads_are_for_administrators_or_for_this_machine(folder: Path, rest: str) -> None:
    (folder / "cosine.py").write_text("key")
    config = load(HEAD + "model_control: {mode: explicit, allow_uploads: true, trusted: true}\n" + rest)
    assert (config.model_control.allow_uploads, config.model_control.trusted) == (True, True)


def test_a_reload_does_not_open_uploads_either(folder: Path) -> None:
    """What needs a restart stays as it was: the uploads of the one file must not meet the ports or callers of the
    other.
    """
    (folder / "cosine.py").write_text("key")
    uploads = "model_control: {mode: explicit, allow_uploads: true}\n"
    admin = "admin: {header: x-admin-key, value_file: cosine.py}\n"
    before = load(HEAD + uploads + admin)
    assert effective(before, load(HEAD + uploads + admin + "limits: {max_headers: 9}\n")).admin is not None
    with pytest.raises(ConfigError, match=r"model_control\.allow_uploads: whoever reaches 0\.0\.0\.0:8000") as refused:
        effective(before, load(HEAD))
    assert "what only a restart would change" in str(refused.value)
    with pytest.raises(ConfigError, match=r"whoever reaches 0\.0\.0\.0:8000"):
        effective(before, load(HEAD + LOCAL + uploads))


def test_the_command_line_has_the_last_word_on_model_control(folder: Path) -> None:
    config = load(HEAD + LOCAL + "model_control: {mode: explicit, load: [digits], allow_uploads: true}")
    assert with_model_control(config, None, None, None) is config
    assert with_model_control(config, "poll", None, 2.5).model_control == ModelControl(
        mode="poll", poll_seconds=2.5, allow_uploads=True
    )
    assert with_model_control(config, None, ["a", "*"], None).model_control.load == ("a", "*")
    config = load(HEAD + "model_control: {mode: explicit, model_roots: [models]}")
    assert [root.path for root in with_model_control(config, None, ["a"], None).model_control.model_roots] == [
        folder / "models"
    ]
    assert len(with_model_control(config, "poll", None, None).model_control.model_roots) == 1
    assert with_model_control(config, "none", None, None).model_control.model_roots == ()
    for mode, names, seconds, text in (
        ("none", ["digits"], None, "load: only mode explicit chooses the models to load"),
        ("poll", None, 0.0, "poll_seconds: Input should be greater than 0"),
        ("poll", None, float("inf"), "poll_seconds: Input should be a finite number"),
    ):
        with pytest.raises(ConfigError, match=text):
            with_model_control(config, mode, names, seconds)


def test_one_model_is_validated_alone(folder: Path) -> None:
    validate = model_validator(REGISTRIES)
    model = validate({"backend": "onnx", "path": "digits", "versions": [1, 2]}, folder / "models")
    assert model.path is not None
    assert model.path.path == folder / "models/digits"
    for plain, text in (
        ({"backend": "onnx", "path": ".", "instances": 0}, "instances: found 0, expected at least 1"),
        ({"backend": "onnx", "path": ".", "instnces": 1}, "instnces: unknown key; did you mean instances?"),
        ({"backend": "onnx", "path": "nope"}, f"path: no such file or directory: {folder}/nope"),
    ):
        with pytest.raises(ValueError, match=re.escape(text)):
            validate(plain, folder)


def test_repositories(folder: Path) -> None:
    config = load("repositories: [models]")
    assert [each.path for each in config.repositories] == [folder / "models"]
    assert config.models == {}
    assert refusal("repositories: [gone, cosine.py]") == [
        f"1:16: repositories[0]: no such file or directory: {folder}/gone",
        f"1:22: repositories[1]: not a directory: {folder}/cosine.py",
    ]
    assert refusal("repositories: []") == ["1:1: models: missing required key"]
    assert (
        load("repositories: [models]\nroutes: {public: [{model: theirs}]}").routes["public"].targets[0].model
        == "theirs"
    )


FULL = """\
listen:
  http: [{bind: "[::1]:0"}, {bind: "localhost:8000", dialects: [grps, tf_serving]}]
  grpc: []
  metrics: null
models:
  "no": &base
    backend: onnx
    path: models/digits
    versions: {latest: 2}
    device: cuda:1
    threads: 4
    inputs: [{name: x, datatype: BF16, shape: [-1, 3]}, {name: "1", datatype: BYTES, optional: true}]
    outputs: [{name: y, datatype: FP32, shape: []}]
    parameters: {deep: [1, {a: 1e-5}], when: 2026-01-02, none: null}
    example: example.json
    grps: {str_data: text_in}
    preprocess: [{op: normalize, input: x, mean: [1, 0.5], std: [1e-1, 2]}, {op: nothing}]
  other: !!map {backend: python, path: cosine.py}
  b: {<<: *base, versions: [3, 1], grps: {}}
  c: {<<: [{device: cpu}, *base], versions: all}
routes: {"no": [{model: "no", weight: 0}, {model: "no", version: 2}]}
readiness: lenient
drain_seconds: 0.5
metrics: {triton_names: false}
tracing: {file: new.json, level: [TIMESTAMPS], rate: 3, count: 100, log_frequency: 10}
grps: {initially_online: on}
"""


def test_a_full_file(folder: Path) -> None:
    config = load(FULL)
    no, b, c = (config.models[name] for name in ("no", "b", "c"))
    assert [tensor.spec() for tensor in no.inputs] == [
        TensorSpec("x", no.inputs[0].spec().dtype, (-1, 3)),
        TensorSpec("1", np.dtype(object), None, optional=True),
    ]
    assert no.inputs[0].spec().datatype == "BF16"
    assert no.outputs[0].spec(("a", "b")) == TensorSpec("y", np.dtype(np.float32), (), labels=("a", "b"))
    assert no.parameters == {"deep": [1, {"a": 1e-5}], "when": "2026-01-02", "none": None}
    assert no.mappings() == {"grps": GrpsModelOptions(str_data="text_in")}
    assert b.mappings() == {"grps": GrpsModelOptions()}
    assert config.models["other"].mappings() == {}
    assert config.plain()["metrics"]["triton_names"] is False
    assert config.tracing.file == FileRef("new.json", folder / "new.json")
    assert (config.tracing.level, config.tracing.log_frequency) == (("TIMESTAMPS",), 10)
    assert (c.device, c.versions, b.versions) == ("cpu", VersionPolicy(), VersionPolicy(named=(1, 3)))
    assert config.dialects() == {
        "open_inference": Options(),
        "tf_serving": Options(),
        "grps": GrpsOptions(initially_online=True),
    }
    assert [(each.host, each.port) for each in config.listen.http] == [("::1", 0), ("localhost", 8000)]


@pytest.mark.parametrize("text", [SAMPLE, FULL])
def test_plain_data_reads_back_as_the_same(folder: Path, text: str) -> None:
    plain = load(text).plain()
    assert load(yaml.safe_dump(plain)).plain() == plain
    assert load(json.dumps(plain)).plain() == plain


def test_nothing_can_be_changed(folder: Path) -> None:
    config = load(SAMPLE)
    parts: list[Any] = [config, config.models["digits"], config.listen.http[0], config.models["digits"].preprocess[0]]
    for part in parts:
        with pytest.raises(ValueError, match="frozen"):
            part.op = "x"


def test_paths_are_relative_to_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "gateway.yaml").write_text(SAMPLE)
    monkeypatch.chdir("/")
    path = load_config(folder / "gateway.yaml", REGISTRIES).models["digits"].path
    assert path is not None
    assert path.path == folder / "models/digits"


@pytest.mark.parametrize(
    ("yaml_value", "available", "wanted"),
    [
        ("latest", [3, 1, 20], (20,)),
        ("latest", [], ()),
        ("all", [3, 1, 20], (1, 3, 20)),
        ({"latest": 2}, [3, 1, 20], (3, 20)),
        ({"latest": 5}, [3, 1], (1, 3)),
        ([20, 1, 1, 7], [3, 1, 20], (1, 20)),
        ("none", [1], (1,)),
        ([0], [3, 1, 0], (0,)),
        ("latest", [0], (0,)),
    ],
)
def test_version_policy(yaml_value: Any, available: list[int], wanted: tuple[int, ...]) -> None:
    policy = VersionPolicy.parse(yaml_value)
    assert policy.choose(available) == wanted
    assert VersionPolicy.parse(policy.plain()) == policy


@pytest.mark.parametrize(
    "value",
    [
        "Latest",
        "",
        [],
        [-1],
        [2**63],
        [True],
        ["1"],
        {"latest": 0},
        {"latest": True},
        {"latest": 1, "x": 1},
        {},
        1,
        None,
    ],
)
def test_no_version_policy(value: Any) -> None:
    with pytest.raises(ValueError, match="expected latest, all"):
        VersionPolicy.parse(value)


def test_processes(folder: Path) -> None:
    one = load("models: {m: {backend: onnx, path: models/digits}}").processes
    assert (one.count(), one.engine_cores) == (1, None)
    for text, count, cores in (
        ("{doors: 4}", 4, None),
        ("{doors: auto, engine_cores: 2}", usable_cores(), 2),
        ("{doors: 256, engine_cores: [0, 3]}", 256, (0, 3)),
    ):
        found = load(f"models: {{m: {{backend: onnx, path: models/digits}}}}\nprocesses: {text}").processes
        assert (found.count(), found.engine_cores) == (count, cores)


def test_unix_sockets(folder: Path) -> None:
    text = "listen: {http: [{bind: 'unix:/a b.sock', socket_mode: '0660'}]}"
    listener = load("models: {m: {backend: onnx, path: models/digits}}\n" + text).listen.http[0]
    assert (listener.path, listener.file_mode, listener.title) == (Path("/a b.sock"), 0o660, "unix:/a b.sock")
    assert load("models: {m: {backend: onnx, path: models/digits}}").listen.http[0].path is None


@pytest.mark.parametrize(
    ("bind", "parsed"),
    [
        ("0.0.0.0:8000", ("0.0.0.0", 8000)),
        ("[::]:0", ("::", 0)),
        ("[fe80::1%eth0]:65535", ("fe80::1%eth0", 65535)),
        ("my-host.example:80", ("my-host.example", 80)),
    ],
)
def test_bind(bind: str, parsed: tuple[str, int]) -> None:
    assert parse_bind(bind) == parsed


@pytest.mark.parametrize(
    "bind",
    ["", ":80", "host", "host:", "host:x", "host:65536", "::1:80", "[::1]", "[x]:1", "1.2.3:4", "a b:1", "h:٣", 80],
)
def test_no_bind(bind: Any) -> None:
    with pytest.raises(ValueError, match="expected HOST:PORT"):
        parse_bind(bind)


# -------------------------------------------------------------------------------------------------------- broken files

HEAD = """\
models:
  digits:
    backend: onnx
    path: models/digits
"""
"""A good model; what follows it stands on line 5."""
LOCAL = """\
listen:
  http: [{bind: '127.0.0.1:8000'}]
"""

NAMES = "expected a name, not empty, without / and control characters"

_TOO_FAR = 51 if yaml.__version__ in ("6.0.1", "6.0.2", "6.0.3") else 1001
"""Later ones of PyYAML read that far ahead, and no further."""
BROKEN: dict[str, tuple[str | bytes, list[str]]] = {
    # --- not YAML, or not what YAML should be
    "empty": ("", ["1:1: found nothing, expected a mapping"]),
    "comments only": ("# nothing\n\n", ["1:1: found nothing, expected a mapping"]),
    "null": ("~", ["1:1: found ~, expected a mapping"]),
    "a list": ("\n- models", ["2:1: found a list, expected a mapping"]),
    "text": ("models", ['1:1: found "models", expected a mapping']),
    "unclosed quote": (
        'models: "x\n',
        ["2:1: not YAML: while scanning a quoted scalar that starts on line 1, found unexpected end of stream"],
    ),
    "colon too much": (
        "models: a: b\n",
        ["1:10: not YAML: mapping values are not allowed in this context"],
    ),
    "tab": (
        "models:\n\tm: 1\n",
        [
            "2:1: not YAML: while scanning for the next token that starts on line 2, found character that cannot start "
            "any token; YAML indents with spaces, not with tabs"
        ],
    ),
    "undefined alias": ("models: *m\n", ["1:9: not YAML: found undefined alias"]),
    "two documents": (HEAD + "---\nmodels:\n", ["5:1: a second document starts here, expected one"]),
    "control character": (b"models:\n  \xc3\xa9: \x01", ["2:6: not YAML: control characters are not allowed"]),
    "not UTF-8": (b"models:\n  \xc3\xa9: \xff", ["2:6: not UTF-8 text"]),
    "UTF-16": ("models: {}".encode("utf-16"), ["1:1: not UTF-8 text"]),
    "deep flow": ("[" * 100_000, [f"1:{_TOO_FAR}: nested deeper than 50 levels"]),
    "deep blocks": ("- " * 100_000, ["1:101: nested deeper than 50 levels"]),
    "billion laughs": (
        "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
        + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9)),
        ["1:37: more than 100,000 values, aliases written out"],
    ),
    "an alias inside itself": (
        "models: &a {x: *a}",
        ["1:9: nested deeper than 50 levels, or inside itself by an alias"],
    ),
    "a merge of itself": ("models: &a {<<: *a}", ["1:9: a mapping that merges itself"]),
    "a merge of text": (
        "<<: text\n" + HEAD,
        ['1:5: "<<": found "text", expected a mapping to merge, or a list of them'],
    ),
    "an object": (
        HEAD + '    parameters: {x: !!python/object/apply:os.system ["true"], y: !own 1, z: !!int x}',
        [
            "5:21: models.digits.parameters.x: cannot read this as !!python/object/apply:os.system, expected plain "
            "data",
            "5:66: models.digits.parameters.y: cannot read this as !own, expected plain data",
            "5:77: models.digits.parameters.z: cannot read this as !!int, expected plain data",
        ],
    ),
    # --- keys
    "unknown keys": (
        HEAD + "    max_bach_size: 3\n    colour: red\nlimit: 1\nlimits: {size: 1}\n",
        [
            "5:5: models.digits.max_bach_size: unknown key; did you mean max_batch_size?",
            "6:5: models.digits.colour: unknown key",
            "7:1: limit: unknown key; did you mean limits?",
            "8:10: limits.size: unknown key",
        ],
    ),
    "a key of another backend": (
        "models: {m: {backend: python, path: cosine.py, threads: 1}}",
        ["1:48: models.m.threads: unknown key"],
    ),
    "duplicate keys": (
        HEAD + "    path: x\n    grps: {str_data: a, str_data: b}\n  digits: {}\nroutes:\n"
        "  r: [{model: digits}]\n  r: []\nmodels: {}\n",
        [
            "5:5: models.digits.path: this key stands already on line 4",
            "6:25: models.digits.grps.str_data: this key stands already on line 6",
            "7:3: models.digits: a model of this name stands already on line 2",
            "10:3: routes.r: a route of this name stands already on line 9",
            "11:1: models: this key stands already on line 1",
        ],
    ),
    "missing keys": (
        "models:\n  a: {}\n  b: {backend: onnx}\n  c:\n    backend: remote\n    upstream:\n      transport: http\n",
        [
            "2:3: models.a.backend: missing required key; one of onnx, python, remote",
            "3:3: models.b.path: missing required key",
            "6:5: models.c.upstream.dialect: missing required key",
            "6:5: models.c.upstream.address: missing required key",
            "6:5: models.c.upstream.model: missing required key",
        ],
    ),
    "no models": ("readiness: strict", ["1:1: models: missing required key"]),
    "empty models": ("models: {}", ["1:9: models: found an empty mapping, expected at least 1 entry"]),
    "models without value": (
        "models:\nroutes:\n",
        [
            "1:8: models: found nothing, expected a mapping",
            "2:8: routes: found nothing, expected a mapping",
        ],
    ),
    "keys that are no text": (
        "models:\n  no: {backend: onnx, path: models/digits}\n  1: {backend: onnx}\n  ~: 3\n  ? [a]\n  : b\n"
        "  2026-01-02: {backend: onnx, path: models/digits}\n",
        [
            '2:3: models.no: found the key no, which YAML reads as false, expected text; put it in quotes: "no"',
            '3:3: models.1: found the key 1, expected text; put it in quotes: "1"',
            "3:3: models.1.path: missing required key",
            '4:3: models."~": found the key ~, expected text; put it in quotes: "~"',
            '4:6: models."~": found 3, expected a mapping',
            "5:5: models: found a list as a key, expected text",
        ],
    ),
    "names that cannot be": (
        'models:\n  a/b: &m {backend: onnx, path: models/digits}\n  "": *m\n  "a\\n\\u2028b": *m\nroutes: {"/": []}\n',
        [
            f'2:3: models."a/b": found "a/b", {NAMES}',
            f'3:3: models."": found "", {NAMES}',
            f'4:3: models."a\\n\\u2028b": found "a\\n\\u2028b", {NAMES}',
            f'5:10: routes."/": found "/", {NAMES}',
            '5:15: routes."/": found an empty list, expected at least 1 entry or a mapping',
        ],
    ),
    # --- kinds
    "kinds of scalars": (
        HEAD + "    instances: many\n    max_batch_size: 1.5\n    max_queue_size: '2'\n    max_queue_delay_us: yes\n"
        "    device: {cpu: 1}\ngrps: {initially_online: 'true'}\ndrain_seconds: soon\n",
        [
            '5:16: models.digits.instances: found "many", expected an integer',
            "6:21: models.digits.max_batch_size: found 1.5, expected an integer or auto",
            '7:21: models.digits.max_queue_size: found "2", expected an integer; write it without quotes',
            "8:25: models.digits.max_queue_delay_us: found yes, which YAML reads as true, expected an integer",
            "9:13: models.digits.device: found a mapping, expected auto, all, cpu, cuda, cuda:N, "
            "cuda:* or a list of devices",
            '10:26: grps.initially_online: found "true", expected true or false; write it without quotes',
            '11:16: drain_seconds: found "soon", expected a number',
        ],
    ),
    "traces": (
        HEAD + "tracing: {file: nowhere/t.json, level: [SOME], rate: -1, count: -2}\n",
        [
            '5:17: tracing.file: found "nowhere/t.json", expected the name of a file in a folder that exists: '
            "FOLDER/nowhere/t.json",
            '5:41: tracing.level[0]: found "SOME", expected one of TIMESTAMPS, TENSORS',
            "5:54: tracing.rate: found -1, expected at least 0",
            "5:65: tracing.count: found -2, expected at least -1",
        ],
    ),
    "text that YAML takes for something else": (
        HEAD + "    device: off\n    grps: {str_data: 5}\n    signatures: {s: {inputs: {x: yes}, scores: 1e3}}\n"
        "readiness: on\n",
        [
            "5:13: models.digits.device: found off, which YAML reads as false, expected auto, all, cpu, cuda, cuda:N, "
            "cuda:* or a list of devices",
            '6:22: models.digits.grps.str_data: found 5, expected text; put it in quotes: "5"',
            "7:34: models.digits.signatures.s.inputs.x: found yes, which YAML reads as true, expected text; put it in "
            'quotes: "yes"',
            '7:48: models.digits.signatures.s.scores: found 1e3, expected text; put it in quotes: "1e3"',
            "8:12: readiness: found on, which YAML reads as true, expected one of strict, lenient",
        ],
    ),
    "queues and priorities": (
        HEAD + "    max_batch_size: 4\n    preferred_batch_sizes: [2, 8]\n    queue: {timeout_action: drop}\n"
        "    priorities: {levels: 3, default: 4, queue_policies: {'03': {}, '3': {}, '4': {}}}\n",
        [
            "6:32: models.digits.preferred_batch_sizes[1]: more than max_batch_size, 4",
            '7:29: models.digits.queue.timeout_action: found "drop", expected one of reject, delay',
            "8:38: models.digits.priorities.default: there are 3 levels",
            "8:64: models.digits.priorities.queue_policies.03: no priority; there are 3, from 1 on",
        ],
    ),
    "a goal and what it chooses itself": (
        HEAD + "    max_batch_size: 4\n    max_queue_delay_us: 500\n    target_p99_ms: 20\n",
        [
            "7:20: models.digits.target_p99_ms: target_p99_ms chooses itself how long a batch waits; leave out "
            "max_queue_delay_us, or have the delay and no target",
        ],
    ),
    "a goal and what does not go with it": (
        HEAD + "    max_batch_size: 4\n    target_p99_ms: 20\n    preferred_batch_sizes: [2]\n"
        "    send_on_mismatch: true\n    sequences: {}\n",
        [
            "7:28: models.digits.preferred_batch_sizes: target_p99_ms chooses batches itself; leave out "
            "preferred_batch_sizes, or the target",
            "8:23: models.digits.send_on_mismatch: target_p99_ms chooses batches itself; leave out send_on_mismatch, "
            "or the target",
            "9:16: models.digits.sequences: target_p99_ms chooses batches itself; leave out sequences, or the target",
        ],
    ),
    "a goal beside shares": (
        HEAD + "    target_p99_ms: 20\nshares: {by: listener}\n",
        [
            "5:20: models.digits.target_p99_ms: who is due first goes first with a goal, and who has had least with "
            "shares; leave out one of them",
        ],
    ),
    "a goal below zero": (
        HEAD + "    target_p99_ms: 0\n",
        ["5:20: models.digits.target_p99_ms: found 0, expected more than 0"],
    ),
    "sequences": (
        HEAD + "    inputs: [{name: x, datatype: FP32}]\n    priorities: {levels: 2, default: 1}\n"
        "    sequences: {controls: [{input: s, kind: begin}, {input: e, kind: end, datatype: BYTES},\n"
        "      {input: i, kind: correlation_id, datatype: FP32}], states: [{input: t, output: u, datatype: FP32,\n"
        "      shape: [1], initial: gone.bin}]}\n",
        [
            '7:45: models.digits.sequences.controls[0].kind: found "begin", '
            "expected one of start, ready, end, correlation_id",
            "7:85: models.digits.sequences.controls[1].datatype: yes and no are numbers",
            "8:50: models.digits.sequences.controls[2].datatype: a correlation id is one of UINT64, INT64, UINT32, "
            "INT32, BYTES",
            "9:28: models.digits.sequences.states[0].initial: no such file or directory: FOLDER/gone.bin",
        ],
    ),
    "sequences beside what is declared": (
        HEAD + "    inputs: [{name: x, datatype: FP32}]\n    outputs: [{name: y, datatype: FP32}]\n"
        "    sequences: {states: [{input: t, output: y, datatype: FP32, shape: [1]}]}\n",
        [
            '7:45: models.digits.sequences.states[0].output: "y" stands already among outputs',
        ],
    ),
    "sequences with priorities": (
        HEAD + "    priorities: {levels: 2, default: 1}\n    sequences: {}\n",
        [
            "6:16: models.digits.sequences: requests of a sequence keep their order, so that the model can have no "
            "priorities",
        ],
    ),
    "a control twice": (
        HEAD + "    sequences: {controls: [{input: s, kind: start}],\n"
        "      states: [{input: s, output: u, datatype: FP32, shape: [1]}]}\n",
        [
            '6:24: models.digits.sequences.states[0].input: "s" stands already among controls and states',
        ],
    ),
    "numbers that are not what they seem": (
        HEAD + "    instances: 010\n    parameters: {at: 12:30, zip: 01234}\n",
        [
            "5:16: models.digits.instances: found 010, which YAML reads as 8; write 8, or put it in quotes if text is "
            "meant",
            "6:22: models.digits.parameters.at: found 12:30, which YAML reads as 750; write 750, or put it in quotes "
            "if text is meant",
            "6:34: models.digits.parameters.zip: found 01234, which YAML reads as 668; write 668, or put it in quotes "
            "if text is meant",
        ],
    ),
    "lists and mappings": (
        HEAD + "    inputs: {x: FP32}\n    labels: [1]\n    preprocess: [cast, [cast]]\nlisten: 8000\n",
        [
            "5:13: models.digits.inputs: found a mapping, expected a list",
            "6:13: models.digits.labels: found a list, expected a mapping",
            '7:18: models.digits.preprocess[0]: found "cast", expected a mapping',
            "7:24: models.digits.preprocess[1]: found a list, expected a mapping",
            "8:9: listen: found 8000, expected a mapping",
        ],
    ),
    "bounds": (
        HEAD + "    instances: 0\n    max_queue_delay_us: -1\n    labels: {a: -1, zero: 0}\n    threads: 65\n"
        "limits: {max_body_bytes: 0, max_json_depth: 0}\ndrain_seconds: -0.5\n",
        [
            "5:16: models.digits.instances: found 0, expected at least 1",
            "6:25: models.digits.max_queue_delay_us: found -1, expected at least 0",
            "7:17: models.digits.labels.a: found -1, expected at least 0",
            "8:14: models.digits.threads: found 65, expected at most 64",
            "9:26: limits.max_body_bytes: found 0, expected at least 1",
            "9:45: limits.max_json_depth: found 0, expected at least 1",
            "10:16: drain_seconds: found -0.5, expected at least 0",
        ],
    ),
    "not finite": (HEAD + "drain_seconds: .inf\n", ["5:16: drain_seconds: found .inf, expected a finite number"]),
    "a union": (
        "models:\n  m: {backend: python, path: cosine.py, sizes: x}\n"
        "  n: {backend: python, path: cosine.py, sizes: [x]}\n",
        [
            '2:48: models.m.sizes: found "x", expected a number or a list',
            '3:49: models.n.sizes[0]: found "x", expected a number',
        ],
    ),
    # --- choices
    "backends": (
        "models:\n  a: {backend: onxx}\n  b: {backend: [onnx]}\n  c: {backend: 1}\n  d: {backend: }\n  e:\n  f: [1]\n",
        [
            '2:16: models.a.backend: found "onxx", expected one of onnx, python, remote; did you mean onnx?',
            "3:16: models.b.backend: found a list, expected one of onnx, python, remote",
            "4:16: models.c.backend: found 1, expected one of onnx, python, remote",
            "5:16: models.d.backend: found nothing, expected one of onnx, python, remote",
            "6:5: models.e: found nothing, expected a mapping",
            "7:6: models.f: found a list, expected a mapping",
        ],
    ),
    "ops": (
        HEAD + "    postprocess:\n      - {op: sofmax}\n      - {op: cast, input: 1}\n      - {}\n"
        "      - {op: softmax, input: a, outptu: b}\n      - {op: normalize, input: x, mean: 1, std: [a, '1']}\n",
        [
            '6:14: models.digits.postprocess[0].op: found "sofmax", expected one of cast, normalize, nothing, softmax; '
            "did you mean softmax?",
            "7:9: models.digits.postprocess[1].to: missing required key",
            '7:27: models.digits.postprocess[1].input: found 1, expected text; put it in quotes: "1"',
            "8:9: models.digits.postprocess[2].op: missing required key; one of cast, normalize, nothing, softmax",
            "9:9: models.digits.postprocess[3].output: missing required key",
            "9:33: models.digits.postprocess[3].outptu: unknown key; did you mean output?",
            "10:41: models.digits.postprocess[4].mean: found 1, expected a list",
            '10:50: models.digits.postprocess[4].std[0]: found "a", expected a number',
            '10:53: models.digits.postprocess[4].std[1]: found "1", expected a number; write it without quotes',
        ],
    ),
    "sizes of memory": (
        HEAD + "    memory_limit_bytes: 2 GB\n  b: {backend: onnx, path: models, memory_limit_bytes: 0}\n"
        "cpu: {threads: 0}\n",
        [
            '5:25: models.digits.memory_limit_bytes: found "2 GB", expected a number of bytes, or text like 2GiB or '
            "512MiB",
            "6:56: models.b.memory_limit_bytes: found 0, expected a number of bytes, or text like 2GiB or 512MiB",
            "7:16: cpu.threads: found 0, expected at least 1",
        ],
    ),
    "devices and versions": (
        HEAD + "    device: gpu\n    versions: newest\n"
        "  b: {backend: onnx, path: models, device: 'cuda:', versions: [1, -1], labels: {a: 7}}\n"
        "  c: {backend: onnx, path: models, versions: [1, 3], labels: {a: 1, b: 2}}\n",
        [
            '5:13: models.digits.device: found "gpu", expected auto, all, cpu, cuda, cuda:N, cuda:* or a list of '
            "devices",
            '6:15: models.digits.versions: found "newest", expected latest, all, none, a list of versions like [1, '
            "3], or {latest: 2}",
            '7:44: models.b.device: found "cuda:", expected auto, all, cpu, cuda, cuda:N, cuda:* or a list of devices',
            "7:63: models.b.versions: found a list, expected latest, all, none, a list of versions like "
            "[1, 3], or {latest: 2}",
            "8:72: models.c.labels.b: version 2 is not among the versions of this model",
        ],
    ),
    "tensors": (
        HEAD + "    inputs:\n      - {name: a, datatype: fp32}\n      - {name: '', datatype: FP32, shape: [-2, x]}\n"
        "      - {datatype: FP32, shape: 3}\n    outputs: [{name: a, datatype: BYTES, optional: true}]\n",
        [
            '6:29: models.digits.inputs[0].datatype: found "fp32", expected one of BOOL, UINT8, UINT16, UINT32, '
            "UINT64, INT8, INT16, INT32, INT64, FP16, BF16, FP32, FP64, BYTES; did you mean FP32?",
            '7:16: models.digits.inputs[1].name: found "", expected at least 1 character',
            "7:44: models.digits.inputs[1].shape[0]: found -2, expected at least -1",
            '7:48: models.digits.inputs[1].shape[1]: found "x", expected an integer',
            "8:9: models.digits.inputs[2].name: missing required key",
            "8:33: models.digits.inputs[2].shape: found 3, expected a list",
            "9:42: models.digits.outputs[0].optional: unknown key; known are datatype, name, shape",
        ],
    ),
    "tensors of one name": (
        HEAD + "    outputs: [{name: b, datatype: FP32}, {name: a, datatype: FP32}, {name: b, datatype: BOOL}]\n",
        ['5:76: models.digits.outputs[2].name: "b" stands already at [0]'],
    ),
    "signatures": (
        HEAD + "    signatures: {a: {method: guess, inputs: [x]}, b: predict}\n",
        [
            '5:30: models.digits.signatures.a.method: found "guess", expected one of predict, classify, regress; did '
            "you mean regress?",
            "5:45: models.digits.signatures.a.inputs: found a list, expected a mapping",
            '5:54: models.digits.signatures.b: found "predict", expected a mapping',
        ],
    ),
    "methods of signatures": (
        HEAD + "    signatures:\n"
        "      a: {method: classify}\n"
        "      b: {method: classify, scores: y, outputs: {scores: y}}\n"
        "      c: {scores: y}\n"
        "      d: {method: regress, classes: y, outputs: {value: y}}\n"
        "      e: {inputs: {x: x}, examples: x}\n"
        "      f: {method: regress, inputs: {x: x}, examples: x}\n"
        "      g: {method: classify, scores: ''}\n",
        [
            "6:10: models.digits.signatures.a: a classify signature needs scores, or classes, or both",
            "7:49: models.digits.signatures.b.outputs: a classify signature names its outputs in scores and classes",
            "8:19: models.digits.signatures.c.scores: only a classify signature has scores and classes",
            "9:37: models.digits.signatures.d.classes: only a classify signature has scores and classes",
            "9:49: models.digits.signatures.d.outputs: a regress signature has one output, {outputs: NAME}",
            "10:37: models.digits.signatures.e.examples: only classify and regress take examples; a predict signature "
            "names the input in inputs",
            "11:54: models.digits.signatures.f.examples: a signature has inputs or examples, not both",
            '12:37: models.digits.signatures.g.scores: found "", expected at least 1 character',
        ],
    ),
    # --- files
    "files": (
        "models:\n  a: {backend: onnx, path: nope}\n  b: {backend: python, path: 'nope.py:Class'}\n"
        "  c: {backend: onnx, path: '', class_labels: {x: labels.text}, example: models}\n"
        "  d: {backend: remote, path: models, upstream: {dialect: a, address: b, model: c}}\n"
        '  e: {backend: onnx, path: "a\\0b"}\n',
        [
            "2:28: models.a.path: no such file or directory: FOLDER/nope",
            "3:30: models.b.path: no such file or directory: FOLDER/nope.py",
            '4:28: models.c.path: found "", expected at least 1 character',
            "4:50: models.c.class_labels.x: no such file or directory: FOLDER/labels.text",
            "4:73: models.c.example: a directory, expected a file: FOLDER/models",
            '5:30: models.d.path: found "models", expected null',
            "6:28: models.e.path: embedded null byte",
        ],
    ),
    # --- listeners
    "binds": (
        HEAD + "listen:\n  http:\n    - {bind: 8000}\n    - {bind: ':80'}\n    - {bind: 1.2.3:80}\n    - {}\n"
        "    - {bind: 'a:1', dialects: []}\n    - {bind: 'a:2', dialects: [no, tf_servin]}\n"
        "  metrics: {bind: 'a:3', dialects: null}\n",
        [
            '7:14: listen.http[0].bind: found 8000, expected HOST:PORT in quotes, like "0.0.0.0:8000" or "[::]:8000"',
            '8:14: listen.http[1].bind: found ":80", expected HOST:PORT in quotes, like "0.0.0.0:8000" or "[::]:8000"',
            '9:14: listen.http[2].bind: found "1.2.3:80", expected HOST:PORT in quotes; 1.2.3 is no IP address',
            "10:7: listen.http[3].bind: missing required key",
            "11:31: listen.http[4].dialects: found an empty list, expected at least 1 entry",
            "12:32: listen.http[5].dialects[0]: found no, which YAML reads as false, expected one of open_inference, "
            "tf_serving, grps",
            '12:36: listen.http[5].dialects[1]: found "tf_servin", expected one of open_inference, tf_serving, grps; '
            "did you mean tf_serving?",
            "13:26: listen.metrics.dialects: unknown key; known are auth, bind, socket_mode, tls",
        ],
    ),
    "model control": (
        HEAD + "model_control: {mode: none, load: [digits], poll_seconds: 0, model_roots: [models]}\n"
        "admin: {header: 'x key', value_env: ''}\nrepositories: [cosine.py]\n",
        [
            "5:35: model_control.load: only mode explicit chooses the models to load",
            "5:59: model_control.poll_seconds: found 0, expected more than 0",
            "5:75: model_control.model_roots: mode none lets nobody reload",
            '6:17: admin.header: found "x key", expected text that matches ^[A-Za-z0-9_-]+$',
            '6:37: admin.value_env: found "", expected at least 1 character',
            "7:16: repositories[0]: not a directory: FOLDER/cosine.py",
        ],
    ),
    "uploads, on the ports that there are where none are named": (
        HEAD + "model_control: {mode: explicit, allow_uploads: true}\n",
        [
            "5:48: model_control.allow_uploads: whoever reaches 0.0.0.0:8000 could bring models of their own: needs "
            "admin or auth, or a port of 127.0.0.1"
        ],
    ),
    "uploads by gRPC": (
        HEAD + LOCAL + "  grpc: [{bind: 'gpu7.lan:80', dialects: [grps, open_inference]}]\n"
        "model_control: {mode: poll, allow_uploads: true, trusted: true}\n",
        [
            "8:44: model_control.allow_uploads: whoever reaches gpu7.lan:80 could bring models of their own: needs "
            "admin or auth, or a port of 127.0.0.1"
        ],
    ),
    "uploads of anybody among the administrators": (
        HEAD + "model_control: {mode: explicit, allow_uploads: true}\n"
        "listen: {http: [{bind: '[::]:80', auth: 'off'}]}\nauth: {certificates: true, admins: [anonymous]}\n",
        [
            "5:48: model_control.allow_uploads: auth.admins has anonymous: whoever reaches [::]:80 could bring models "
            "of their own"
        ],
    ),
    "ports": (
        HEAD + "listen:\n  http: [{bind: '0.0.0.0:80'}, {bind: 'a:81'}, {bind: 'b:81'}, {bind: 'a:0'}, {bind: 'a:0'}]\n"
        "  grpc: [{bind: '127.0.0.1:80'}, {bind: '[::]:81'}]\n  metrics: {bind: 'a:81', x: 1}\n",
        [
            "7:17: listen.grpc[0].bind: port 80 is taken by listen.http[0]",
            "7:41: listen.grpc[1].bind: port 81 is taken by listen.http[1]",
            "8:19: listen.metrics.bind: port 81 is taken by listen.http[1]",
            "8:27: listen.metrics.x: unknown key; known are auth, bind, socket_mode, tls",
        ],
    ),
    "Unix sockets": (
        HEAD + "listen:\n"
        "  http: [{bind: 'unix:a'}, {bind: 'unix:/a', socket_mode: '9'}, {bind: 'a:1', socket_mode: '660'}]\n"
        f"  grpc: [{{bind: 'unix:/a'}}, {{bind: 'unix:/{'a' * 107}'}}, {{bind: 'unix:/b', socket_mode: 660}}]\n",
        [
            '6:17: listen.http[0].bind: found "unix:a", expected an absolute path after unix:',
            '6:59: listen.http[1].socket_mode: found "9", expected text that matches ^0?[0-7]{3}$',
            "6:92: listen.http[2].socket_mode: only a Unix socket, bind: unix:/PATH, has a mode",
            "7:17: listen.grpc[0].bind: the path is taken by listen.http[1]",
            "7:36: listen.grpc[1].bind: the path of a Unix socket has 107 bytes at most",
            '7:185: listen.grpc[2].socket_mode: found 660, expected text; put it in quotes: "660"',
        ],
    ),
    "doors": (HEAD + "processes: {doors: 300}\n", ["5:20: processes.doors: found 300, expected at most 256 or auto"]),
    "no doors": (HEAD + "processes: {doors: 0}\n", ["5:20: processes.doors: found 0, expected at least 1 or auto"]),
    "cores": (
        HEAD + "processes: {engine_cores: [1, -1]}\n",
        ["5:31: processes.engine_cores[1]: found -1, expected at least 0"],
    ),
    "no cores": (
        HEAD + "processes: {engine_cores: []}\n",
        ["5:27: processes.engine_cores: found an empty list, expected an integer or at least 1 entry"],
    ),
    # --- routes
    "routes": (
        HEAD + "    labels: {stable: 1}\n  other: {backend: onnx}\nroutes:\n  a: []\n  b: [{model: digit}]\n"
        "  c: [{model: digits, label: stabel}, {model: digits, label: stable, version: 1}]\n"
        "  d: [{model: digits, weight: 0}, {model: other, weight: 0, version: -1}]\n  e: [{model: other, weight: 0}]\n"
        "  digits: [{model: digits}, {model: other, weight: -1}]\n  f: {model: digits}\n  g: [{}]\n",
        [
            "6:3: models.other.path: missing required key",
            "8:6: routes.a: found an empty list, expected at least 1 entry or a mapping",
            '9:15: routes.b[0].model: no model "digit"; did you mean digits?',
            '10:30: routes.c[0].label: the model digits has no label "stabel"; did you mean stable?',
            "10:62: routes.c[1].label: a target has a version or a label, not both",
            "11:70: routes.d[1].version: found -1, expected at least 0",
            "12:6: routes.e: all weights are 0; one target at least must take requests",
            "13:37: routes.digits[1].model: a route named like the model digits can lead only to it",
            "13:52: routes.digits[1].weight: found -1, expected at least 0",
            "14:3: routes.f.targets: missing required key",
            "14:7: routes.f.model: unknown key; known are fallback, fallback_on_overload, match, max_concurrent, "
            "mirror, sticky, targets, timeout_ms",
            "15:7: routes.g[0].model: missing required key",
        ],
    ),
    "shares of nobody": (
        """\
listen: {http: [{bind: 'a:1', name: front}]}
models: {m: {backend: onnx, path: models}}
shares: {weights: {alice: 2}}
""",
        ["3:9: shares: by: caller needs auth, without which nobody has a name; or say by: header or by: listener"],
    ),
    "shares of ports": (
        """\
listen: {http: [{bind: 'a:1', name: front}]}
models: {m: {backend: onnx, path: models}}
shares:
  by: listener
  weights: {frnt: 2, anonymous: 1}
""",
        ['5:19: shares.weights.frnt: no listener has the name or the bind "frnt"; did you mean front?'],
    ),
    "shares by a header without its name": (
        """\
models: {m: {backend: onnx, path: models}}
shares: {by: header, weights: {a: 0}}
""",
        ["2:35: shares.weights.a: found 0, expected more than 0"],
    ),
    "long routes": (
        """\
listen: {http: [{bind: 'a:1', name: front}]}
models:
  digits:
    backend: onnx
    path: models/digits
    labels: {canary: 1}
routes:
  a:
    targets: [{model: digits, label: cannary}]
    match:
      - {to: [{model: digits}]}
      - {listener: frnt, header: {'a b': x}, to: [{model: digit}]}
      - {header: {x: []}, transport: udp, to: []}
    sticky: {}
    fallback: [{model: digits, weight: 5}]
    timeout_ms: -1
""",
        [
            '9:38: routes.a.targets[0].label: the model digits has no label "cannary"; did you mean canary?',
            "11:9: routes.a.match[0]: a rule without a condition takes every request: write its targets as the route's "
            "own",
            '12:20: routes.a.match[1].listener: no listener has the name or the bind "frnt"; did you mean front?',
            '12:42: routes.a.match[1].header."a b": found "x", expected text that matches '
            "^[A-Za-z0-9!#$%&'*+.^_`|~-]+$",
            '12:59: routes.a.match[1].to[0].model: no model "digit"; did you mean digits?',
            "13:22: routes.a.match[2].header.x: found an empty list, expected text or at least 1 entry",
            '13:38: routes.a.match[2].transport: found "udp", expected one of http, grpc',
            "13:47: routes.a.match[2].to: found an empty list, expected at least 1 entry",
            "14:13: routes.a.sticky: needs header, parameter or caller, one of them",
            "15:40: routes.a.fallback[0].weight: a fallback has no share: the first that is ready takes all",
            "16:17: routes.a.timeout_ms: found -1, expected at least 0",
        ],
    ),
    # --- aliases and merges
    "a mistake in an alias": (
        "models:\n  a: &a {backend: onnx, path: models, instances: x}\n  b: *a\n"
        "  c: {<<: *a, instances: 1, threads: 0}\n",
        [
            '2:50: models.a.instances: found "x", expected an integer',
            '2:50: models.b.instances: found "x", expected an integer',
            "4:38: models.c.threads: found 0, expected at least 1",
        ],
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken(folder: Path, case: str) -> None:
    text, lines = BROKEN[case]
    assert refusal(text) == [line.replace("FOLDER", str(folder)) for line in lines]


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("nope.yaml", "nope.yaml: no such file or directory"),
        ("models", "models: is a directory"),
        ("cosine.py/x", "cosine.py/x: not a directory"),
    ],
)
def test_unreadable(folder: Path, path: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(Path(path), REGISTRIES)
    assert str(caught.value) == line


def test_too_large(folder: Path) -> None:
    (folder / "big.yaml").write_bytes(b"#" * (4 << 20) + b"\n")
    with pytest.raises(ConfigError, match=r"big\.yaml: larger than 4 MiB"):
        load_config(Path("big.yaml"), REGISTRIES)


# ---------------------------------------------------------------------------------------------------------- properties

WORDS = ["models", "m", "backend", "onnx", "python", "path", "models/digits", "routes", "listen", "http", "bind", "a:1"]
WORDS += [
    "versions",
    "labels",
    "latest",
    "preprocess",
    "op",
    "cast",
    "input",
    "grps",
    "<<",
    "model",
    "weight",
    "",
    "no",
]
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(WORDS) | st.text(max_size=8)
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(WORDS) | SCALARS, inner, max_size=5),
    max_leaves=30,
)
TOKENS = st.lists(
    st.sampled_from(
        [*WORDS, *"\n:-[]{},&*!'\"|>%@#?~", "\n  ", ": ", "- ", "&a ", "*a", "!!int ", "\t", "\x00", "12:30", "é"]
    ),
    max_size=40,
).map("".join)
PROPERTY = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def classes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory of `folder`, and the classes of REGISTRIES made once for all examples."""
    made = config_class(REGISTRIES)
    monkeypatch.setattr("tensorgate.gateway.config.file.config_class", lambda registries: made)


def loads_or_says_why(text: str | bytes) -> None:
    """A Config, or a ConfigError whose lines are sorted, one per problem; nothing else."""
    problems: tuple[Problem, ...] | None = None
    lines: list[str] = []
    try:
        load(text)
    except ConfigError as error:
        problems, lines = error.problems, str(error).splitlines()
    assert problems != ()
    assert lines == [str(problem) for problem in problems or ()]
    spots = [(problem.line, problem.column) for problem in problems or ()]
    assert spots == sorted(spots)


@given(st.binary(max_size=60))
@PROPERTY
def test_garbage_bytes(classes: None, content: bytes) -> None:
    loads_or_says_why(content)


@given(TOKENS)
@PROPERTY
def test_garbage_tokens(classes: None, text: str) -> None:
    loads_or_says_why(text)


@given(st.dictionaries(st.sampled_from([*WORDS, "drain_seconds", "limits", "readiness"]), VALUES, max_size=5))
@PROPERTY
def test_garbage_data(classes: None, data: dict[str, Any]) -> None:
    loads_or_says_why(yaml.safe_dump(data, allow_unicode=True))


@given(st.data())
@PROPERTY
def test_a_good_file_with_one_value_replaced(classes: None, data: st.DataObject) -> None:
    plain = yaml.safe_load(data.draw(st.sampled_from([SAMPLE, FULL])))
    inside = plain
    while isinstance(inside, dict | list) and inside:
        key = data.draw(st.sampled_from(list(inside) if isinstance(inside, dict) else range(len(inside))))
        if not isinstance(inside[key], dict | list) or data.draw(st.booleans()):
            inside[key] = data.draw(VALUES)
            break
        inside = inside[key]
    loads_or_says_why(yaml.safe_dump(plain))


# --------------------------------------------------------------------------------------------------------- JSON schema


SCHEMA = json_schema(REGISTRIES)


def schema_says(text: str | bytes) -> bool:
    """Whether the JSON schema accepts a file."""
    import jsonschema  # who tests something else may have none

    data = yaml.safe_load(text)
    return bool(jsonschema.Draft202012Validator(SCHEMA).is_valid(json.loads(json.dumps(data, default=str))))


def test_the_schema_is_one() -> None:
    import jsonschema

    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("text", [SAMPLE, FULL.replace("1e-1", "0.1").replace("1e-5", "0.00001"), HEAD])
def test_the_schema_accepts(text: str) -> None:
    assert schema_says(text)


ONLY_CODE_KNOWS = {
    "duplicate keys",  # a schema sees the data after the last has won
    "keys that are no text",  # as JSON they are
    "numbers that are not what they seem",
    "not finite",
    "tensors of one name",
    "ports",
    "uploads by gRPC",
    "uploads of anybody among the administrators",
    "uploads, on the ports that there are where none are named",
    "sequences beside what is declared",
    "sequences with priorities",
    "a goal and what it chooses itself",
    "a goal and what does not go with it",
    "a goal beside shares",
    "a control twice",
    "shares of nobody",
    "shares of ports",
}
NOT_DATA = {case for case in BROKEN if "not YAML" in BROKEN[case][1][0]} | {
    "empty", "comments only", "two documents", "not UTF-8", "UTF-16", "deep flow", "deep blocks", "billion laughs",
    "an alias inside itself", "a merge of itself", "a merge of text", "an object",
}  # fmt: skip


@pytest.mark.parametrize("case", sorted(BROKEN.keys() - NOT_DATA - ONLY_CODE_KNOWS))
def test_the_schema_refuses(case: str) -> None:
    assert not schema_says(BROKEN[case][0])


def test_the_schema_describes_every_key_of_ours() -> None:
    schema = SCHEMA
    sections = ("Listener", "Limits", "RouteTarget", "SharedMemoryConfig", "SignatureConfig")
    keys = ("listen", "models", "routes", "limits", "readiness", "shared_memory")
    ours = [schema["$defs"][name]["properties"] for name in sections]
    ours.append({key: schema["properties"][key] for key in keys})
    assert [key for properties in ours for key, value in properties.items() if "description" not in value] == []


def test_a_section_with_required_keys_is_required() -> None:
    registries = Registries({"x": DialectKind(Upstream, nothing)}, REGISTRIES.backends, REGISTRIES.ops)
    assert config_class(registries).model_fields["x"].is_required()
