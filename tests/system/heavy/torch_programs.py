"""PyTorch's programs in one process with torch: names, datatypes, memory, what is refused.

Runs in .venv-torch with one argument: a folder that torch_models.py has filled.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import checks
import numpy as np

from tensorgate.backends.execution.device import Device
from tensorgate.backends.torch_model import KIND
from tensorgate.backends.torch_model.failures import public_error
from tensorgate.backends.torch_model.tensor_bridge import TensorBridge
from tensorgate.gateway.contract.backend import ModelSource
from tensorgate.gateway.contract.errors import DeviceLost, InvalidArgument, ModelFailed, OutOfMemory
from tensorgate.gateway.contract.tensor import DTYPES, TensorSpec

Array = np.ndarray[Any, Any]
Spec = tuple[Any, ...]
X, Y = ("x", "FP32"), ("y", "FP32")
PAIR = (("INPUT0", "FP32", -1, 3), ("INPUT1", "FP32", -1, 3))
ONE = np.array([[1, -2, 3], [4, 5, -6]], np.float32)


def load(
    folder: str, name: str, inputs: Sequence[Spec] = (), outputs: Sequence[Spec] = (), rows: Any = 0, **options: Any
) -> Any:
    def made(found: Sequence[Spec]) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(each[0], DTYPES[each[1]], each[2:] or None) for each in found)

    path = Path(folder) / name / "1"
    return KIND.load(ModelSource(name, 1, path, "cpu", made(inputs), made(outputs), rows, KIND.options(**options)))


def run(backend: Any, tensors: dict[str, Array], *outputs: str) -> dict[str, Array]:
    wanted = outputs or tuple(spec.name for spec in backend.outputs)
    (results,) = backend.infer(tensors, wanted, [])
    assert tuple(results) == wanted
    return dict(results)


def refused(folder: str, name: str, *declared: Any, **options: Any) -> str:
    return str(checks.raised(ValueError, lambda: load(folder, name, *declared, **options)))


def shown(tensors: tuple[TensorSpec, ...]) -> list[tuple[Any, ...]]:
    return [(spec.name, spec.datatype, *(spec.shape or ())) for spec in tensors]


# --------------------------------------------------------------------------------------------------------------- names


def check_names_are_arguments_or_numbers_or_in_order(folder: str) -> None:
    inputs = {
        ("INPUT0", "INPUT1"): (0, 1),
        ("INPUT1", "INPUT0"): (1, 0),
        ("a", "b"): (0, 1),
        ("IN__1", "IN__0"): (1, 0),
    }
    outputs = {("sum", "difference"): (0, 1), ("OUTPUT__1", "OUTPUT__0"): (1, 0), ("x__0", "y__1"): (0, 1)}
    for model in ("add_sub", "compiled"):
        for names, places in inputs.items():
            if model == "compiled" and names == ("INPUT1", "INPUT0"):
                continue  # a package does not know its arguments' names
            for given, order in outputs.items():
                backend = load(
                    folder,
                    model,
                    [(name, "FP32", -1, 3) for name in names],
                    [(name, "FP32", -1, 3) for name in given],
                    8,
                    trusted=True,
                )
                tensors = {name: ONE * (place + 1) for name, place in zip(names, places, strict=True)}
                results = run(backend, tensors)
                want = (ONE + ONE * 2, ONE - ONE * 2)
                for name, place in zip(given, order, strict=True):
                    assert np.array_equal(results[name], want[place]), (model, names, given)
        wrong = [("INPUT0", "FP32"), ("b", "FP32")]
        if model == "add_sub":
            assert "the program has 'INPUT0', 'INPUT1'" in refused(folder, model, wrong, [Y])


def check_results_are_named_by_what_holds_them(folder: str) -> None:
    both = run(load(folder, "bounds", [X], [("high", "FP32"), ("low", "FP32")]), {"x": ONE})
    assert {name: array.tolist() for name, array in both.items()} == {"high": [3, 5], "low": [-2, -6]}
    backend = load(folder, "by_name", [("b", "FP32"), ("a", "FP32")], [("none", "FP32"), ("difference", "FP32")])
    named = run(backend, {"a": ONE, "b": ONE * 2})
    assert named["difference"].tolist() == (-ONE).tolist()
    assert named["none"].shape == (0, 3)
    several = load(folder, "several", [("b__1", "FP32"), ("a__0", "FP32")], [("first", "FP32"), ("second", "FP32")])
    listed = run(several, {"a__0": ONE, "b__1": ONE * 2})
    assert (listed["first"].tolist(), listed["second"].tolist()) == ((-ONE).tolist(), (ONE * 4).tolist())


def check_results_that_are_not_there(folder: str) -> None:
    backend = load(folder, "add_sub", PAIR, [("a", "FP32"), ("b", "FP32"), ("c", "FP32")])
    error = checks.raised(ModelFailed, lambda: run(backend, {"INPUT0": ONE, "INPUT1": ONE}))
    assert "the program has 'output__0', 'output__1'" in error.text
    backend = load(folder, "add_sub", PAIR, [("a", "FP64"), ("b", "FP32")])
    error = checks.raised(ModelFailed, lambda: run(backend, {"INPUT0": ONE, "INPUT1": ONE}))
    assert error.text == "output 'a' is float32, but FP64 is declared"
    assert list(run(backend, {"INPUT0": ONE, "INPUT1": ONE}, "b")) == ["b"]


def check_numbers_and_what_may_be_left_out(folder: str) -> None:
    by, plus = ("by", "FP64"), ("plus", "FP32")
    backend = load(folder, "scale", [X, by], [Y])
    assert run(backend, {"x": ONE, "by": np.array([0.5])})["y"].tolist() == (ONE / 2).tolist()
    error = checks.raised(InvalidArgument, lambda: run(backend, {"x": ONE, "by": np.ones(2)}))
    assert "input 'by' must have one element" in error.text
    whole = load(folder, "scale", [X, by, ("times", "INT32"), plus], [Y])
    tensors = {"x": ONE, "by": np.array(2.0), "times": np.array(3, np.int32), "plus": ONE}
    assert run(whole, tensors)["y"].tolist() == (ONE * 7).tolist()
    assert "forward cannot do without 'by'" in refused(folder, "scale", [X], [Y])
    assert "max_batch_size must be 0" in refused(folder, "scale", [("x", "FP32", -1, 3), ("by", "FP64", -1)], [Y], 4)
    assert "declared: the file does not tell" in refused(folder, "scale")
    assert "'y' is BYTES" in refused(folder, "scale", [X, by], [("y", "BYTES")])


def check_an_exported_program_tells_its_own(folder: str) -> None:
    backend = load(folder, "classifier", rows="auto")
    assert shown(backend.inputs) == [("image", "FP32", -1, 3, 8, 8), ("scale", "FP32", -1)]
    assert shown(backend.outputs) == [("logits", "FP32", -1, 4), ("pooled", "FP32", -1, 8)]
    assert backend.max_batch_size == 4
    assert load(folder, "classifier", rows=16).max_batch_size == 16
    assert "exported for at most 16 rows" in refused(folder, "classifier", (), (), 17)
    assert "does not support batching" in refused(folder, "nested", (), (), 4)
    renamed = load(folder, "classifier", [("IN__1", "FP32"), ("IN__0", "FP32")], [("a", "FP32"), ("b", "FP32")])
    assert [spec.name for spec in (*renamed.inputs, *renamed.outputs)] == ["IN__0", "IN__1", "a", "b"]
    image = np.random.default_rng(1).random((3, 3, 8, 8), np.float32)
    want = run(backend, {"image": image, "scale": np.ones(3, np.float32)}, "pooled")["pooled"]
    for options in ({"channels_last": True}, {"autocast": "BF16"}):
        other = load(folder, "classifier", **options)
        if "autocast" in options:
            error = checks.raised(
                ModelFailed, lambda o=other: run(o, {"image": image, "scale": np.ones(3, np.float32)})
            )
            assert "is bfloat16, but FP32 is declared" in error.text
        else:
            got = run(other, {"image": image, "scale": np.ones(3, np.float32)}, "pooled")["pooled"]
            assert np.allclose(got, want, atol=1e-5)


def check_nested_arguments_and_sizes(folder: str) -> None:
    nested = load(folder, "nested")
    assert [spec.name for spec in nested.inputs] == ["both_a", "both_b", "rest__0"]
    assert [spec.name for spec in nested.outputs] == ["output__0", "output__1_rest"]
    results = run(nested, {"both_a": ONE, "both_b": ONE, "rest__0": ONE * 2})
    assert results["output__0"].tolist() == (ONE * 6).tolist()
    lengths = load(folder, "lengths")
    assert shown(lengths.inputs) == [("x", "FP32", -1, -1), ("k", "INT64")]
    results = run(lengths, {"x": ONE, "k": np.array(2)})
    assert results["output__0"].tolist() == (np.concatenate([ONE, ONE], 1) * 2).tolist()
    assert results["output__1"].dtype == DTYPES["BF16"]
    wide = np.ones((1, 65), np.float32)
    error = checks.raised(InvalidArgument, lambda: run(lengths, {"x": wide, "k": np.array(2)}))
    assert "to be <= 64, but got 65" in error.text


def check_compiled_by_torch(folder: str) -> None:
    backend = load(folder, "add_sub_export", rows=8, compile=True)
    for rows in (1, 2, 5):
        x = np.full((rows, 3), rows, np.float32)
        assert run(backend, {"INPUT0": x, "INPUT1": x})["output__0"].tolist() == (x + x).tolist()
    assert "compile is for exported programs" in refused(folder, "add_sub", PAIR, [Y], compile=True)


# -------------------------------------------------------------------------------------------------------------- memory


def check_every_datatype_and_layout_there_and_back(folder: str) -> None:
    for kind, dtype in DTYPES.items():
        if kind == "BYTES":
            continue
        backend = load(folder, "identity", [("x", kind)], [("y", kind)])
        for array in (np.zeros(()), np.arange(2), np.zeros((0, 3)), np.arange(12).reshape(3, 4).T, np.arange(6)[::-2]):
            x = array.astype(dtype)
            y = run(backend, {"x": x})["y"]
            assert (y.dtype, y.shape, y.tobytes()) == (dtype, x.shape, x.tobytes()), (kind, array.shape)


def check_nothing_is_copied_that_need_not_be(folder: str) -> None:
    exchange = TensorBridge(importlib.import_module("torch"), Device())
    for kind in ("FP32", "BF16", "BOOL", "UINT16"):
        x = np.ones((2, 3), DTYPES[kind])
        x.flags.writeable = False
        tensor = exchange.given(x, copy=False)
        assert tensor.data_ptr() == x.ctypes.data
        assert exchange.taken(TensorSpec("y", x.dtype), tensor).ctypes.data == x.ctypes.data
    swapped = np.ones(3, ">f4")
    assert checks.raised(KeyError, lambda: exchange.given(swapped, copy=False))


def check_memory_anywhere_will_do(folder: str) -> None:
    """As a request's tensor lies anywhere in its body."""
    backend = load(folder, "product", [("a", "FP32"), ("b", "FP32")], [Y])
    for offset in range(70):
        raw = np.zeros(4 * 17 * 33 + 80, np.uint8)
        a = raw[offset : offset + 4 * 17 * 33].view(np.float32).reshape(17, 33)
        a[...] = 1
        a.flags.writeable = False
        assert run(backend, {"a": a, "b": np.ones((33, 5), np.float32)})["y"].tolist() == [[33.0] * 5] * 17


def check_inputs_are_not_written_to(folder: str) -> None:
    declared: Any
    for name, declared in (("careless", ([X], [Y])), ("careless_export", ())):
        x = ONE.copy()
        (y,) = run(load(folder, name, *declared), {"x": x}).values()
        assert (x.tolist(), y.tolist()) == (ONE.tolist(), (ONE + 1).tolist())
    for name, declared in (("add_sub", (PAIR, [Y])), ("add_sub_export", ()), ("classifier", ())):
        assert not load(folder, name, *declared)._program.writes


def check_a_models_own_memory_is_not_given_away(folder: str) -> None:
    for name, declared in (("counter", ([X], [Y])), ("counter_export", ())):
        backend = load(folder, name, *declared)
        answers = [next(iter(run(backend, {"x": np.ones((2, 3), np.float32)}).values())) for _ in range(3)]
        assert [answer.tolist() for answer in answers] == [[6.0], [12.0], [18.0]], name


def check_closing_gives_memory_back(folder: str) -> None:
    for name, declared in (("ballast", ([X], [Y])), ("classifier", ())):
        backend = load(folder, name, *declared)
        gone = [weakref.ref(backend._program), weakref.ref(backend._program.module)]
        backend.close()
        gc.collect()
        assert [each() for each in gone] == [None, None], name


# -------------------------------------------------------------------------------------------------- what goes wrong


def check_errors_are_told_plainly(folder: str) -> None:
    product = load(folder, "product", [("a", "FP32"), ("b", "FP32")], [Y])
    error = checks.raised(ModelFailed, lambda: run(product, {"a": ONE, "b": ONE}))
    assert error.text == "mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)"
    rows = load(folder, "rows", [X], [("sum", "FP32"), ("rows", "INT64")])
    error = checks.raised(ModelFailed, lambda: run(rows, {"x": ONE}))
    assert error.text == "ValueError: x must not be negative"
    torch = importlib.import_module("torch")
    assert isinstance(
        public_error(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "m"), OutOfMemory
    )
    lost = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
    assert isinstance(public_error(lost, "m"), DeviceLost)


def check_pickles_and_code_are_never_run(folder: str) -> None:
    mark = Path(folder) / "EXECUTED"
    said = {
        "bad_pickle": "was written by torch.save: it is a pickle, and pickles are never read: save the model with",
        "bad_module": "was written by torch.save: it is a pickle, and pickles are never read: save the model with",
        "bad_old": "is no archive of PyTorch's; pickles are never read: save the model with torch.export.save",
        "bad_cut": "is no archive of PyTorch's; pickles are never read",
        "bad_sample": "holds a pickle (data/sample_inputs/model.pt), by which it could run code of its own",
        "bad_target": "holds target 'torch.os.system', by which it could run code",
        "bad_size": "holds expr_str '__import__(",
        "bad_name": "holds name 'x=__import__(",
        "compiled": "is machine code, compiled by AOTInductor; say trusted: true",
    }
    for name, text in said.items():
        error = refused(folder, name, PAIR, [Y])
        assert text in error, (name, error)
        assert not mark.exists(), name


def check_the_refused_files_are_no_scarecrows(folder: str) -> None:
    """Where the operator trusts them, torch does run what two of them hold."""
    mark = Path(folder) / "EXECUTED"
    for name in ("bad_sample", "bad_size"):
        with contextlib.suppress(ValueError):
            load(folder, name, trusted=True)
        assert mark.exists(), name
        mark.unlink()


if __name__ == "__main__":
    checks.main(globals())
