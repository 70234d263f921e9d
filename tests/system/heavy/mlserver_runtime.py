"""Runtimes of MLServer whose behaviour `tensorgate conform` knows; run in .venv-mlserver by `mlserver start`."""

from __future__ import annotations

from typing import Any

from mlserver import MLModel
from mlserver.codecs import NumpyCodec, StringCodec
from mlserver.types import InferenceRequest, InferenceResponse, ResponseOutput


class _Computing(MLModel):  # type: ignore[misc]
    async def load(self) -> bool:
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        outputs = self.compute({each.name: each for each in payload.inputs})
        return InferenceResponse(model_name=self.name, model_version=self.version, id=payload.id, outputs=outputs)

    def compute(self, inputs: dict[str, Any]) -> list[ResponseOutput]:
        raise NotImplementedError


class Identity(_Computing):
    """`IN` as `OUT`."""

    def compute(self, inputs: dict[str, Any]) -> list[ResponseOutput]:
        given = inputs["IN"]
        codec = StringCodec if given.datatype == "BYTES" else NumpyCodec
        return [codec.encode_output("OUT", codec.decode_input(given))]


class AddSub(_Computing):
    """`INPUT0` and `INPUT1` -> sum and difference."""

    def compute(self, inputs: dict[str, Any]) -> list[ResponseOutput]:
        a, b = (NumpyCodec.decode_input(inputs[name]) for name in ("INPUT0", "INPUT1"))
        return [NumpyCodec.encode_output("OUTPUT0", a + b), NumpyCodec.encode_output("OUTPUT1", a - b)]
