"""KServe's own model server, with models whose behaviour `tensorgate conform` knows: HTTP's port, gRPC's port and
datatypes as arguments. Run in .venv-heavy.
"""

from __future__ import annotations

import sys
from typing import Any

from kserve import InferOutput, InferRequest, InferResponse, Model, ModelServer
from kserve.utils.utils import generate_uuid


class _Computing(Model):  # type: ignore[misc]
    def __init__(self, name: str, inputs: list[dict[str, Any]], outputs: list[dict[str, Any]]) -> None:
        super().__init__(name)
        self._inputs, self._outputs = inputs, outputs
        self.ready = True

    async def get_input_types(self) -> list[dict[str, Any]]:
        return self._inputs

    async def get_output_types(self) -> list[dict[str, Any]]:
        return self._outputs

    async def predict(self, payload: InferRequest, headers: Any = None, response_headers: Any = None) -> InferResponse:
        answered = []
        arrays = self.compute({each.name: each.as_numpy() for each in payload.inputs})
        for spec, array in zip(self._outputs, arrays, strict=True):
            output = InferOutput(spec["name"], list(array.shape), spec["datatype"])
            output.set_data_from_numpy(array, binary_data=payload.from_grpc)
            answered.append(output)
        return InferResponse(
            payload.id or generate_uuid(),
            self.name,
            answered,
            use_binary_outputs=payload.use_binary_outputs,
            requested_outputs=payload.request_outputs,
        )

    def compute(self, inputs: dict[str, Any]) -> list[Any]:
        raise NotImplementedError


class Identity(_Computing):
    """`IN` as `OUT`."""

    def compute(self, inputs: dict[str, Any]) -> list[Any]:
        return [inputs["IN"]]


class AddSub(_Computing):
    """`INPUT0` and `INPUT1` -> sum and difference."""

    def compute(self, inputs: dict[str, Any]) -> list[Any]:
        a, b = inputs["INPUT0"], inputs["INPUT1"]
        return [a + b, a - b]


def specs(names: tuple[str, ...], datatype: str, shape: list[int]) -> list[dict[str, Any]]:
    return [{"name": name, "datatype": datatype, "shape": shape} for name in names]


if __name__ == "__main__":
    http, grpc, *datatypes = sys.argv[1:]
    models = [
        Identity(f"conform_identity_{each.lower()}", specs(("IN",), each, [-1]), specs(("OUT",), each, [-1]))
        for each in datatypes
    ]
    sums = [specs(names, "INT32", [-1, 4]) for names in (("INPUT0", "INPUT1"), ("OUTPUT0", "OUTPUT1"))]
    sys.argv[1:] = []
    ModelServer(http_port=int(http), grpc_port=int(grpc), workers=1).start([*models, AddSub("conform_add_sub", *sums)])
