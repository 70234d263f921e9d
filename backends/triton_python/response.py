"""pb_utils.InferenceResponse, and what becomes of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tensorgate.backends.triton_python.errors import TritonError, TritonModelException, gateway_error
from tensorgate.backends.triton_python.load_report import with_report
from tensorgate.backends.triton_python.tensor import TritonTensor
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse
from tensorgate.gateway.contract.errors import GatewayError, ModelFailed
from tensorgate.gateway.contract.tensor import NOTHING, ParameterValue, TensorSpec, hold_to


class InferenceResponse:
    """Outputs or an error. A model makes them, and gets them from other models that it calls."""

    def __init__(
        self,
        output_tensors: Sequence[TritonTensor] = (),
        error: TritonError | None = None,
        parameters: Mapping[str, ParameterValue] | None = None,
    ) -> None:
        for tensor in output_tensors:
            if not isinstance(tensor, TritonTensor):
                raise TritonModelException(f"output_tensors has a {type(tensor).__name__} among its tensors")
        if error is not None and not isinstance(error, TritonError):
            raise TypeError(f"error is a TritonError, not a {type(error).__name__}")
        self._tensors = list(output_tensors)
        self._error = error
        self._parameters = checked_parameters(parameters)
        self._id = ""
        self._is_last = True

    @classmethod
    def heard(
        cls, id: str, tensors: Sequence[TritonTensor], parameters: Mapping[str, ParameterValue], *, last: bool
    ) -> InferenceResponse:
        """What another model has answered."""
        response = cls(tensors)
        response._parameters = parameters
        response._id = id
        response._is_last = last
        return response

    def output_tensors(self) -> list[TritonTensor]:
        return self._tensors

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error

    def parameters(self) -> str:
        """A JSON object."""
        return json.dumps(dict(self._parameters))

    def id(self) -> str:
        return self._id

    def is_last_response(self) -> bool:
        return self._is_last


def checked_parameters(parameters: Mapping[str, Any] | None) -> Mapping[str, ParameterValue]:
    """Raises TritonModelException where Triton does."""
    if not parameters:
        return NOTHING
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException(f"Expect parameters keys to have type str, found type {type(key)}")
        if not isinstance(value, (bool, int, str)):
            raise TritonModelException(f"Expect parameters values to have type bool/int/str, found type {type(value)}")
    return dict(parameters)


def canonical(
    response: InferenceResponse, request: InferRequest, outputs: Mapping[str, TensorSpec], *, final: bool
) -> InferResponse | GatewayError:
    """A model's answer -> what its caller asked for of it, in the order of the configuration.

    Outputs that nobody asked for or that the configuration does not know are left out, and a model may leave any out
    itself, or give another dtype; these are Triton's ways.
    """
    error = response.error()
    if error is not None:
        return gateway_error(error)
    given = {tensor.name(): tensor for tensor in response.output_tensors()}
    asked = {output.name for output in request.outputs} or outputs.keys()
    try:
        tensors = {name: given[name].owned() for name in outputs if name in given and name in asked}
        for name, array in tensors.items():
            hold_to(outputs[name], array.shape, request.view.name)
    except GatewayError as failure:
        return failure
    except Exception as failure:  # text that is not UTF-8, memory that is gone: whatever it is, the caller hears of it
        return ModelFailed(f"{type(failure).__name__}: {failure}")
    return InferResponse(tensors, with_report(response._parameters, request), final)
