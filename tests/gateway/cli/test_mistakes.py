"""What people get wrong first, and what they are told: file, line, key, what was found, and what to do."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import pytest

from tensorgate.gateway.cli.main import main

ROOT = Path(__file__).parents[3]
IO = "inputs: [{name: x, datatype: FP32, shape: [1]}], outputs: [{name: x, datatype: FP32, shape: [1]}]"


def onnx(path: str, more: str = "") -> str:
    return f"models: {{a: {{backend: onnx, path: {path}{', ' * bool(more)}{more}}}}}\n"


def python(member: str, tensors: str = IO) -> str:
    return f"models: {{a: {{backend: python, path: {member}{', ' * bool(tensors)}{tensors}}}}}\n"


def listen(**listeners: str) -> str:
    return HALF + "listen: {" + ", ".join(f"{name}: [{each}]" for name, each in listeners.items()) + "}"


HALF = onnx("half")
CLASSES = """
class Raises:
    def __init__(self, context):
        raise RuntimeError("no weights")

    def infer(self, inputs, request):
        return inputs

class Plain:
    def infer(self, inputs, request):
        return inputs

class Nothing:
    pass
"""

TEXTS: Final[list[tuple[str, str, str]]] = [
    # ---------------------------------------------------------------- the file
    ("a tab", "models:\n\ta: {}", "g.yaml:2:1: not YAML"),
    ("a tab, the remedy", "models:\n\ta: {}", "YAML indents with spaces, not with tabs"),
    ("plain text", "just text", 'g.yaml:1:1: found "just text", expected a mapping'),
    ("no models", "listen: {}", "models: missing required key"),
    ("a section's name", "model: {}", "model: unknown key; did you mean models?"),
    ("a key's name", onnx("half", "max_batchsize: 3"), "did you mean max_batch_size?"),
    (
        "a key cut short",
        listen(http='{bind: "0.0.0.0:1", tls: {cert: c.pem}}'),
        "did you mean certificate?",
    ),
    ("a key twice", "models:\n  a: {backend: onnx, path: half}\n  a: {}", "stands already on line 2"),
    ("an empty entry", "models: {a: }", "models.a: found nothing, expected a mapping"),
    ("text for a flag", onnx("half", "batching: 'yes'"), "expected true or false"),
    ("a size", onnx("half", "max_memory_bytes: 2G"), "text like 2GiB or 512MiB"),
    (
        "a time",
        onnx("half", "max_queue_delay_us: 2ms"),
        'max_queue_delay_us: found "2ms", expected an integer of microseconds: 2000',
    ),
    ("a time in seconds", HALF + "drain_seconds: 1.5 min", 'found "1.5 min", expected a number of seconds: 90'),
    ("a mode", HALF + "model_control: {mode: explizit}", "did you mean explicit?"),
    # --------------------------------------------------------------- addresses
    (
        "a port twice",
        listen(http='{bind: "0.0.0.0:80"}], grpc: [{bind: "0.0.0.0:80"}'),
        "80 is taken by listen.",
    ),
    (
        "a port too high",
        listen(http='{bind: "0.0.0.0:80000"}'),
        'expected HOST:PORT in quotes, like "0.0.0.0:8',
    ),
    ("no port", listen(http='{bind: "localhost"}'), "g.yaml:2:24: listen.http[0].bind: found"),
    (
        "a certificate without its key",
        listen(http='{bind: "0.0.0.0:1", tls: {certificate: m.py}}'),
        "listen.http[0].tls.key: missing required key",
    ),
    (
        "a URL over gRPC",
        'models: {a: {backend: remote, upstream: {dialect: open_inference, address: "http://h:9"}}}',
        "expected HOST:PORT over gRPC",
    ),
    (
        "all models of a server that cannot name them",
        'upstreams: {a: {dialect: grps, address: "h:9"}}',
        "upstreams.a: grps has no word for which models there are: name them in models",
    ),
    # ------------------------------------------------------------------ models
    (
        "a path",
        onnx("nowhere"),
        "g.yaml:1:35: models.a.path: no such file or directory: ",
    ),
    ("a path at home", onnx("~nobody-is-called-so/x"), "models.a.path: "),
    ("a backend", "models: {a: {backend: onx, path: half}}", "did you mean onnx?"),
    ("a version", onnx("half", "versions: [3]"), "found 1, but versions names 3"),
    ("a label", onnx("half", "labels: {stable: 9}"), "no version 9 is served, but 1"),
    ("a version's folder", onnx("half/1"), "versions: none takes the folder itself"),
    ("an empty file", onnx("empty"), "model.onnx is empty, and no ONNX file"),
    ("a file cut short", onnx("short"), "model.onnx is cut short, or no ONNX file"),
    ("a pointer of LFS", onnx("pointer"), "git lfs pull fetches that"),
    (
        "NumPy's dtype",
        python("m.py:Plain", IO.replace("FP32", "float32")),
        "did you mean FP32?",
    ),
    (
        "TensorFlow's dtype",
        python("m.py:Plain", IO.replace("FP32", "DT_STRING")),
        "did you mean BYTES?",
    ),
    (
        "letters of a dtype",
        python("m.py:Plain", IO.replace("FP32", "int32")),
        "did you mean INT32?",
    ),
    (
        "a name twice",
        python("m.py:Plain").replace("[{", "[{name: x, datatype: BOOL, shape: [1]}, {"),
        '"x" stands already at [0]',
    ),
    (
        "an input",
        onnx("half", "inputs: [{name: z, datatype: FP32, shape: [-1]}]"),
        "an input 'x', but got 'z'",
    ),
    (
        "no tensors",
        python("m.py:Plain", ""),
        "inputs: [{name: x, datatype: FP32, shape: [-1]}]",
    ),
    ("no class", python("m.py"), "must name a class in the file, too: m.py:"),
    (
        "another class",
        python("m.py:Plane"),
        "has no class Plane; found Raises, Plain",
    ),
    (
        "a class that is no model",
        python("m.py:Nothing"),
        "has no method infer(self, inputs, request)",
    ),
    (
        "a class that raises",
        python("m.py:Raises"),
        "RuntimeError: no weights (",
    ),
    ("a library", python("imports.py:M"), "No module named 'nosuchlib' ("),
    ("a GPU", onnx("half", "device: 'cuda:0'"), "say device: auto to use what is there"),
    (
        "an operator",
        onnx("half", "preprocess: [{op: normalise, input: x}]"),
        "did you mean normalize?",
    ),
    (
        "an operator's input",
        onnx("half", "preprocess: [{op: softmax, input: z}]"),
        "there is no tensor 'z' at this point, but x",
    ),
    # ------------------------------------------------------------------ routes
    (
        "a route's model",
        HALF + "routes: {r: [{model: b}]}",
        'g.yaml:2:22: routes.r[0].model: no model "b"; known are a',
    ),
    ("a route's weight", HALF + "routes: {r: [{model: a, weight: -1}]}", "found -1, expected at least 0"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    model = ROOT / "config/demo/models/half_plus_two"
    for name in ("half", "empty", "short", "pointer"):
        shutil.copytree(model, name)
    Path("empty/1/model.onnx").write_bytes(b"")
    Path("short/1/model.onnx").write_bytes((model / "1/model.onnx").read_bytes()[:60])
    Path("pointer/1/model.onnx").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    Path("m.py").write_text(CLASSES)
    Path("imports.py").write_text("import nosuchlib\n")
    return tmp_path


@pytest.mark.parametrize(("text", "words"), [row[1:] for row in TEXTS], ids=[row[0] for row in TEXTS])
def test_a_mistake_in_the_file(text: str, words: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("g.yaml").write_text(text)
    assert main(["check", "g.yaml", "--load"]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.startswith("g.yaml:")
    assert "Traceback" not in said
