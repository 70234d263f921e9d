"""rename and select: tensors under other names, and fewer of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from tensorgate.backends.ops.rename import KIND as RENAME
from tensorgate.backends.ops.select import KIND as SELECT
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.operator import Op, OpKind
from tensorgate.gateway.contract.tensor import DTYPES, TensorSpec


def make(kind: OpKind, **options: Any) -> Op:
    return kind.make(kind.options(**options))


SPECS = {name: TensorSpec(name, DTYPES["FP32"], (-1, size)) for size, name in enumerate("abc")}
TENSORS = {name: np.zeros(size) for size, name in enumerate("abc")}


def test_rename() -> None:
    op = make(RENAME, op="rename", names={"a": "b", "b": "a", "c": "d"})
    after = op.specs(SPECS)
    assert [(name, spec.name, spec.shape) for name, spec in after.items()] == [
        ("b", "b", (-1, 0)),
        ("a", "a", (-1, 1)),
        ("d", "d", (-1, 2)),
    ]
    got = op(TENSORS, np)
    assert {
        name: array is TENSORS[old] for (name, array), old in zip(got.items(), "abc", strict=True)
    } == dict.fromkeys("bad", True)
    assert [*op({"c": 1}, np)] == ["d"]  # an optional input that was left out


def test_rename_refuses() -> None:
    with pytest.raises(ValueError, match="rename: there is no tensor 'x' at this point, but a, b, c"):
        make(RENAME, op="rename", names={"x": "y"}).specs(SPECS)
    with pytest.raises(ValueError, match="rename: there is a tensor 'b' already"):
        make(RENAME, op="rename", names={"a": "b"}).specs(SPECS)
    with pytest.raises(ValidationError, match="two tensors would have the same name"):
        make(RENAME, op="rename", names={"a": "x", "b": "x"})


def test_select() -> None:
    op = make(SELECT, op="select", keep=("c", "a"))
    assert op.specs(SPECS) == {"c": SPECS["c"], "a": SPECS["a"]}
    assert op(TENSORS, np) == {"c": TENSORS["c"], "a": TENSORS["a"]}
    with pytest.raises(ValueError, match="there is no tensor 'x'"):
        make(SELECT, op="select", keep=("x",)).specs(SPECS)
    with pytest.raises(InvalidArgument, match="select needs 'a', which is missing"):
        op({"c": 1}, np)
