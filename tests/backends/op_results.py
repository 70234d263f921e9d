"""What operators give, held to what they said, and what ONNX's reference evaluator gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from tensorgate.gateway.contract.operator import Op
from tensorgate.gateway.contract.tensor import TensorSpec


def by_onnx(op_type: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> list[Any]:
    names = [f"i{index}" for index in range(len(inputs))]
    results = [f"o{index}" for index in range(outputs)]
    node = onnx.helper.make_node(op_type, names, results, **attributes)
    kinds = [onnx.helper.np_dtype_to_tensor_dtype(np.asarray(each).dtype) for each in inputs]
    takes = [onnx.helper.make_tensor_value_info(name, kind, None) for name, kind in zip(names, kinds, strict=True)]
    gives = [onnx.helper.make_tensor_value_info(name, 0, None) for name in results]
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", takes, gives))
    feed = dict(zip(names, map(np.asarray, inputs), strict=True))
    return list(ReferenceEvaluator(model).run(None, feed))


def checked(op: Op, specs: dict[str, TensorSpec], tensors: dict[str, Any]) -> dict[str, Any]:
    """What an op gives, held to what it said that it would give."""
    after = op.specs(specs)
    results = dict(op(tensors, np))
    assert set(results) == set(after)
    for name, array in results.items():
        assert array.dtype == after[name].dtype, name
        assert after[name].accepts(array.shape), (name, after[name].shape, array.shape)
    return results
