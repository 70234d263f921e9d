"""What of PyTorch's programs can be seen without torch: which file is which, names, options, texts of errors."""

import pickle
import sys
import zipfile
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from tensorgate.backends.torch_model import KIND
from tensorgate.backends.torch_model.archive import _objections, form_of
from tensorgate.backends.torch_model.backend import TorchBackend
from tensorgate.backends.torch_model.failures import plain, public_error
from tensorgate.backends.torch_model.names import ProgramOutputs, leaves, places
from tensorgate.gateway.contract.backend import ModelSource
from tensorgate.gateway.contract.errors import InvalidArgument, ModelFailed, OutOfMemory
from tensorgate.gateway.contract.tensor import DTYPES, TensorSpec

FORMS = {
    "script": ["m/data.pkl", "m/constants.pkl", "m/code/__torch__.py"],
    "exported": ["m/models/model.json", "m/archive_format", "m/data/sample_inputs/model.pt"],
    "compiled": ["m/archive_format", "m/data/aotinductor/model/cabc.so"],
}


def archive(path: Path, records: list[str]) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for record in records:
            file.writestr(record, b"")
    return path


def source(path: Path, **options: Any) -> ModelSource:
    return ModelSource("m", 1, path, "cpu", (), (), 0, KIND.options(**options))


@pytest.mark.parametrize("form", FORMS)
def test_a_file_is_known_by_what_it_holds(tmp_path: Path, form: str) -> None:
    assert form_of(archive(tmp_path / "model.pt", FORMS[form])) == form


@pytest.mark.parametrize(
    ("records", "words"),
    [
        (["m/data.pkl", "m/data/0"], "was written by torch.save: it is a pickle, and pickles are never read: save the"),
        (["version", "serialized_state_dict.pt"], "has neither TorchScript nor an exported program of torch 2.9"),
        ([], "has neither TorchScript nor"),
    ],
)
def test_other_archives_are_refused(tmp_path: Path, records: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        form_of(archive(tmp_path / "model.pt", records))


@pytest.mark.parametrize("content", [pickle.dumps({"a": 1}), b"", b"PK\x03\x04 and no more"])
def test_what_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.pt").write_bytes(content)
    with pytest.raises(ValueError, match=r"pickles are never read: save the model with torch\.export\.save"):
        KIND.load(source(tmp_path))


@pytest.mark.parametrize(("file", "options"), [("model.pt", {}), ("model.pt2", {}), ("my.bin", {"file": "my.bin"})])
def test_without_torch_the_error_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, options: dict[str, Any]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    archive(tmp_path / file, FORMS["script"])
    with pytest.raises(ValueError, match=r"programs need torch: pip install 'torch>=2.9'"):
        KIND.load(source(tmp_path, **options))


def test_machine_code_needs_trust_and_a_file_has_to_be_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"no such file: {tmp_path}/model.pt"):
        KIND.load(source(tmp_path))
    archive(tmp_path / "model.pt2", FORMS["compiled"])
    with pytest.raises(ValueError, match="is machine code, compiled by AOTInductor; say trusted: true"):
        KIND.load(source(tmp_path))


@pytest.mark.parametrize(
    "wrong", [{"autocast": "FP64"}, {"intra_op_threads": -1}, {"trusted": "yes"}, {"model_inputs": ({"name": "x"},)}]
)
def test_options_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        KIND.options(**wrong)


# --------------------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("declared", "own", "expected"),
    [
        (["b", "a"], ["a", "b"], [1, 0]),
        (["IN__1", "IN__0"], ["a", "b"], [1, 0]),
        (["x", "y"], ["a", "b"], [0, 1]),
        (["x__1", "y"], ["a", "b"], [0, 1]),
        (["b"], ["a", "b"], [1]),
        ([], ["a"], []),
    ],
)
def test_names_mean_places(declared: list[str], own: list[str], expected: list[int]) -> None:
    assert places("inputs", declared, own) == expected


@pytest.mark.parametrize("declared", [["a", "x"], ["x", "y", "z"], ["x__0", "y__0"], ["x__2"]])
def test_names_that_mean_nothing_are_refused(declared: list[str]) -> None:
    with pytest.raises(
        ValueError, match=r"inputs are declared as .*, but the program has 'a', 'b': use these names, or"
    ):
        places("inputs", declared, ["a", "b"])


def test_results_are_named_by_what_holds_them() -> None:
    pair = namedtuple("pair", "low high")
    assert list(leaves(1)) == [("output", 1)]
    assert list(leaves((1, [2, 3]))) == [("output__0", 1), ("output__1__0", 2), ("output__1__1", 3)]
    assert list(leaves({"a": 1, "b": {"c": 2}})) == [("a", 1), ("b_c", 2)]
    assert list(leaves(pair(1, 2))) == [("low", 1), ("high", 2)]
    results = ProgramOutputs(["high"])
    assert [results.of(each) for each in (pair(1, 2), {"high": 3, "low": 4}, [5])] == [
        {"high": 2},
        {"high": 3},
        {"high": 5},
    ]
    with pytest.raises(ModelFailed, match="outputs are declared as 'a', 'b'"):
        ProgramOutputs(["a", "b"]).of(1)


# ------------------------------------------------------------------------------------------- what a file would have run


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("target", "torch.ops.aten.linear.default"),
        ("target", "torch.ops.aten.__and__.Tensor"),
        ("target", "torch.ops.torchvision.nms.default"),
        ("target", "torch.ops.higher_order.cond"),
        ("target", "_operator.getitem"),
        ("target", "torch.sym_max"),
        ("expr_str", "Symbol('s31', positive=True, integer=True)"),
        ("expr_str", "Add(Mul(Integer(2), Symbol('s0', integer=True)), Integer(-1))"),
        ("expr_str", "FloorDiv(s0, 2) + Max(1, s1)*3"),
        ("expr_str", "Float('1.5', precision=53)"),
        ("name", "p_layer_0_weight"),
        ("name", ""),
        ("stack_trace", "anything ( at ' all"),
    ],
)
def test_what_torch_writes_itself_is_taken(key: str, value: str) -> None:
    assert list(_objections("models/model.json", {"graph": [{key: value}]})) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("target", "torch.os.system"),
        ("target", "torch.ops.aten.add.__globals__"),
        ("target", "torch.ops.load_library"),
        ("target", "torch.ops.higher_order.call_torchbind"),
        ("target", "_operator.__class__"),
        ("as_operator", "torch.hub.load"),
        ("expr_str", "__import__('os').system('id')"),
        ("expr_str", "Symbol('a').__class__"),
        ("expr_str", "preview(x)"),
        ("expr_str", "Symbol('a', positive=exit())"),
        ("expr_str", "s0.is_integer"),
        ("expr_str", "[s0]"),
        ("name", "x=exit()"),
        ("name", "x: exit()"),
        ("anything", '{"__enum__": true, "fqn": "os:x"}'),
    ],
)
def test_what_could_run_code_is_refused(key: str, value: str) -> None:
    assert len(list(_objections("models/model.json", {"graph": [{key: value}]}))) == 1


def test_weights_that_are_pickles_are_refused() -> None:
    config = {"config": {"w": {"path_name": "weight_0", "use_pickle": True}}}
    assert list(_objections("data/weights/model_weights_config.json", config)) == ["'w' as a pickle"]


# --------------------------------------------------------------------------------------------------------------- errors

SCRIPT = """The following operation failed in the TorchScript interpreter.
Traceback of TorchScript (most recent call last):
  File "/home/somebody/train.py", line 7, in forward
        return torch.mm(x, y)
               ~~~~~~~~ <--- HERE
"""


@pytest.mark.parametrize(
    ("said", "plainly"),
    [
        ("mat1 and mat2 shapes cannot be multiplied", "mat1 and mat2 shapes cannot be multiplied"),
        (SCRIPT + "RuntimeError: mat1 and mat2\n", "mat1 and mat2"),
        (SCRIPT + "builtins.ValueError: no negative sums\n", "ValueError: no negative sums"),
        (SCRIPT + "RuntimeError: AssertionError: too large\n", "AssertionError: too large"),
        (
            "it failed\nException raised from check at /pytorch/aten/x.cpp:3 (most recent call first):\nframe",
            "it failed",
        ),
        ("one\ntwo", "one two"),
        ("x" * 5000, "x" * 1024 + "..."),
    ],
)
def test_callers_are_told_what_happened_and_not_where(said: str, plainly: str) -> None:
    assert plain(said) == plainly


def test_errors_have_their_kinds() -> None:
    sizes = "Expected input at *args[0].shape[0] to be <= 8, but got 20"
    assert isinstance(public_error(RuntimeError(sizes), "m"), InvalidArgument)
    assert isinstance(public_error(RuntimeError("anything else"), "m"), ModelFailed)
    assert isinstance(public_error(MemoryError(), "m"), OutOfMemory)
    own = InvalidArgument("as it is")
    assert public_error(own, "m") is own


@pytest.mark.parametrize(("given", "text"), [((2, 3), ""), ((2, 4), "[2, 4], but [-1, 3]"), ((6,), "[6], but [-1, 3]")])
def test_a_program_is_held_to_the_shapes_that_are_declared(given: tuple[int, ...], text: str) -> None:
    backend: Any = TorchBackend.__new__(TorchBackend)
    backend._bridge = SimpleNamespace(given=lambda array, copy: array, taken=lambda spec, tensor: tensor)
    backend._program = SimpleNamespace(writes=())
    backend._channels_last, backend._state, backend._name = False, frozenset(), "m"
    backend._torch = SimpleNamespace(Tensor=())
    backend._results = ProgramOutputs(("y",))
    backend._specs = {"y": TensorSpec("y", DTYPES["FP32"], (-1, 3))}
    backend._call = lambda tensors: {"y": np.zeros(given, np.float32)}
    if not text:
        assert backend._run({}, ["y"])["y"].shape == given
        return
    with pytest.raises(ModelFailed) as caught:
        backend._run({}, ["y"])
    assert caught.value.text == f"output 'y' of model 'm' has shape {text} is declared"
