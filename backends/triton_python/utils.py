"""The module that a model imports as triton_python_backend_utils."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final

from tensorgate.backends.triton_python import datatypes, model_config
from tensorgate.backends.triton_python.calls import ModelCalls
from tensorgate.backends.triton_python.errors import TritonError, TritonModelException
from tensorgate.backends.triton_python.exchange import FINAL, InferenceResponseSender
from tensorgate.backends.triton_python.logger import LogLevel, logger_of
from tensorgate.backends.triton_python.metrics import Metric, MetricFamily
from tensorgate.backends.triton_python.request import (
    RELEASE_ALL,
    RELEASE_RESCHEDULE,
    SEQUENCE_END,
    SEQUENCE_START,
    InferenceRequest,
    MemoryType,
    PreferredMemory,
)
from tensorgate.backends.triton_python.response import InferenceResponse
from tensorgate.backends.triton_python.tensor import TritonTensor

NAMES: Final = ("triton_python_backend_utils", "c_python_backend_utils")
"""A model may import it by either; the second is the compiled half of Triton's."""


def make_utils(model: str, calls: ModelCalls) -> ModuleType:
    """The module for one instance: its requests and its logger are its own."""
    module = ModuleType(NAMES[0], "What a Triton Python model needs of its server.")
    vars(module).update(_SHARED)
    vars(module).update(
        InferenceRequest=type("InferenceRequest", (InferenceRequest,), {"calls": calls}),
        Logger=logger_of(model),
        is_model_ready=lambda model_name, model_version="": calls.is_ready(model_name, model_version),
        load_model=_refused("load"),
        unload_model=_refused("unload"),
    )
    return module


def _refused(what: str) -> Any:
    def refuse(model_name: str, *arguments: Any, **more: Any) -> None:
        raise TritonModelException(f"cannot {what} model '{model_name}': a model may not {what} models here")

    return refuse


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> TritonTensor | None:
    """None if the request does not have it."""
    return _named(inference_request.inputs(), name)


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> TritonTensor | None:
    """None if the response does not have it."""
    return _named(inference_response.output_tensors(), name)


def _named(tensors: list[TritonTensor], name: str) -> TritonTensor | None:
    return next((tensor for tensor in tensors if tensor.name() == name), None)


_SHARED: Final[dict[str, Any]] = {
    "Tensor": TritonTensor,
    "InferenceResponse": InferenceResponse,
    "InferenceResponseSender": InferenceResponseSender,
    "ResponseSender": InferenceResponseSender,
    "TritonError": TritonError,
    "TritonModelException": TritonModelException,
    "LogLevel": LogLevel,
    "Metric": Metric,
    "MetricFamily": MetricFamily,
    "ModelConfig": model_config.TritonModelConfig,
    "MemoryType": MemoryType,
    "PreferredMemory": PreferredMemory,
    **{f"TRITONSERVER_MEMORY_{each.name}": each for each in MemoryType},
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START": SEQUENCE_START,
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END": SEQUENCE_END,
    "TRITONSERVER_REQUEST_RELEASE_ALL": RELEASE_ALL,
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE": RELEASE_RESCHEDULE,
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL": FINAL,
    "get_input_tensor_by_name": get_input_tensor_by_name,
    "get_output_tensor_by_name": get_output_tensor_by_name,
    "get_input_config_by_name": model_config.config_of("input"),
    "get_output_config_by_name": model_config.config_of("output"),
    "using_decoupled_model_transaction_policy": model_config.is_decoupled,
    "triton_string_to_numpy": datatypes.triton_string_to_numpy,
    "numpy_to_triton_type": datatypes.numpy_to_triton_type,
    "triton_to_numpy_type": datatypes.triton_to_numpy_type,
    "TRITON_STRING_TO_NUMPY": datatypes.TRITON_STRING_TO_NUMPY,
    "TRITON_TO_NUMPY_TYPE": datatypes.TRITON_TO_NUMPY_TYPE,
    "NUMPY_TO_TRITON_TYPE": datatypes.NUMPY_TO_TRITON_TYPE,
    "serialize_byte_tensor": datatypes.serialize_byte_tensor,
    "deserialize_bytes_tensor": datatypes.deserialize_bytes_tensor,
}
