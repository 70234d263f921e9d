"""Outputs that go into memory which their caller shares, from where the model left them: one copy each.

Into host memory from a host array, or from the device straight into the region; into a GPU's memory from the device.
The model does not write there itself: the region's other users could change, while it still computes with them, values
that it has checked.
"""

from __future__ import annotations

from types import EllipsisType

import numpy as np

from tensorgate.backends.execution.device import Device
from tensorgate.gateway.contract.canonical import Destination, InferRequest, InferResponse
from tensorgate.gateway.contract.errors import GatewayError, OutputTooLarge
from tensorgate.gateway.contract.tensor import BYTES, Array, Tensors


def place_outputs(
    tensors: Tensors, request: InferRequest, rows: slice | EllipsisType, response: InferResponse, device: Device
) -> InferResponse | GatewayError:
    """A request's own rows of the device's `tensors`, which are ready for every stream -> their destinations, and the
    response with those outputs, too: there they tell dtype and shape, and nobody needs their data any more.
    """
    destinations = request.into or {}
    outputs: dict[str, Array] = {}
    for name, array in tensors.items():
        if name in destinations:
            own = array[rows]
            problem = _write(name, own, destinations[name], device)
            if problem is not None:
                return problem
            outputs[name] = own
        elif name in response.outputs:
            outputs[name] = response.outputs[name]
    return InferResponse(outputs, response.parameters, response.final, response.classes)


def _write(name: str, array: Array, into: Destination, device: Device) -> GatewayError | None:
    memory = into.memory
    if array.dtype == BYTES:
        array = np.frombuffer(into.serialize(array), np.uint8)
    if array.nbytes > memory.nbytes:
        return OutputTooLarge(name, memory.nbytes, array.nbytes)
    if not array.nbytes:
        return None
    if isinstance(memory, memoryview):
        device.get_into(array, np.frombuffer(memory[: array.nbytes], array.dtype).reshape(array.shape))
    else:
        memory.write(array)
    return None
