"""Makes benchmarks/models/identity/1/model.onnx: FP32 x [N, M] -> y, the same. Needs the extra `[demo]`.

A model that computes nothing leaves the cost of the way in and the way out.
"""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper


def identity() -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", "M"]) for name in ("x", "y"))
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "identity", [x], [y])
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=8, producer_name="tensorgate")
    onnx.checker.check_model(model, full_check=True)
    return model


if __name__ == "__main__":
    path = Path(__file__).parent / "models/identity/1/model.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(identity().SerializeToString(deterministic=True))
