"""quantize and dequantize against ONNX's reference evaluator, to the bit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from pydantic import ValidationError

from tensorgate.backends.ops.dequantize import KIND as DEQUANTIZE
from tensorgate.backends.ops.quantize import KIND as QUANTIZE
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.operator import Op, OpKind
from tensorgate.gateway.contract.tensor import DTYPES, TensorSpec


def make(kind: OpKind, **options: Any) -> Op:
    return kind.make(kind.options(**options))


def spec(datatype: str, *shape: int) -> dict[str, TensorSpec]:
    return {"x": TensorSpec("x", DTYPES[datatype], shape)}


def by_onnx(op_type: str, x: Any, scale: Any, zero: Any, axis: int) -> Any:
    node = onnx.helper.make_node(op_type, ["x", "s", "z"], ["y"], axis=axis)
    feed = {"x": x, "s": np.asarray(scale, np.float32), "z": zero}
    kinds = {name: onnx.helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in feed.items()}
    takes = [onnx.helper.make_tensor_value_info(name, kind, None) for name, kind in kinds.items()]
    gives = [onnx.helper.make_tensor_value_info("y", 0, None)]
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", takes, gives))
    return ReferenceEvaluator(model).run(None, feed)[0]


FORMS: dict[str, tuple[Any, Any]] = {
    "one for all": (0.1, 0),
    "one for all, shifted": (0.037, 7),
    "one each": ((0.1, 0.5, 2.0), (0, 3, 100)),
    "one scale each": ((0.1, 0.5, 2.0), 5),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("datatype", ["INT8", "UINT8", "INT16", "UINT16"])
def test_as_onnx(datatype: str, form: str) -> None:
    scale, zero = FORMS[form]
    zeros = np.full(np.shape(scale), zero, DTYPES[datatype])
    x = (np.random.default_rng(0).standard_normal((4, 3, 50)) * 30).astype(np.float32)
    x[0, :, :6] = [0.25, 0.75, -0.25, 1e6, -1e6, 0]
    op = make(QUANTIZE, op="quantize", input="x", scale=scale, zero_point=zero, datatype=datatype)
    got = op({"x": x}, np)["x"]
    assert got.dtype == op.specs(spec("FP32", -1, 3, 50))["x"].dtype == DTYPES[datatype]
    np.testing.assert_array_equal(got, by_onnx("QuantizeLinear", x, scale, zeros, 1))
    back = make(DEQUANTIZE, op="dequantize", input="x", scale=scale, zero_point=zero)
    again = back({"x": got}, np)["x"]
    assert again.dtype == back.specs(spec(datatype, -1, 3, 50))["x"].dtype == np.float32
    np.testing.assert_array_equal(again, by_onnx("DequantizeLinear", got, scale, zeros, 1))


def test_halves_go_to_the_even_neighbour_and_ends_hold() -> None:
    op = make(QUANTIZE, op="quantize", input="x", scale=2.0, zero_point=1)
    x = np.array([1, 3, 5, -1, -3, math.inf, -math.inf, math.nan], np.float64)
    assert op({"x": x}, np)["x"].tolist() == [1, 3, 3, 1, -1, 127, -128, 1]
    assert op({"x": x.astype(np.float16)}, np)["x"].tolist() == [1, 3, 3, 1, -1, 127, -128, 1]


def test_dequantize_int32_and_half() -> None:
    op = make(DEQUANTIZE, op="dequantize", input="x", scale=0.5, zero_point=1, datatype="FP16")
    ends = np.array([-(2**31), 2**31 - 1, 3], np.int32)
    with np.errstate(over="ignore"):  # as a pipeline runs it
        got = op({"x": ends}, np)["x"]
    assert got.tolist() == [-math.inf, math.inf, 1]
    assert op.specs(spec("INT32", -1))["x"].datatype == "FP16"
    with pytest.raises(ValueError, match="'x' is INT64, expected INT8"):
        op.specs(spec("INT64", -1))
    with pytest.raises(ValueError, match="zero_point 300 is no int8, which goes from -128 to 127"):
        make(DEQUANTIZE, op="dequantize", input="x", scale=1.0, zero_point=300).specs(spec("INT8", -1))


def test_refusals() -> None:
    with pytest.raises(ValueError, match="zero_point -1 is no uint8"):
        make(QUANTIZE, op="quantize", input="x", scale=1.0, zero_point=-1, datatype="UINT8")
    with pytest.raises(ValidationError, match="scale has 2 numbers and zero_point has 3"):
        make(QUANTIZE, op="quantize", input="x", scale=(1.0, 2.0), zero_point=(1, 2, 3))
    op = make(QUANTIZE, op="quantize", input="x", scale=(1.0, 2.0))
    with pytest.raises(ValueError, match="cast it to FP32 first"):
        op.specs(spec("INT8", -1, 2))
    with pytest.raises(ValueError, match="axis 1 of 'x' has 3 entries, but 2 numbers are given"):
        op.specs(spec("FP32", -1, 3))
    with pytest.raises(InvalidArgument, match="axis 1 of 'x' has 3 entries, expected 2"):
        op({"x": np.zeros((1, 3), np.float32)}, np)
    with pytest.raises(InvalidArgument, match="has no axis 1"):
        op({"x": np.zeros(3, np.float32)}, np)
