"""pb_utils.InferenceRequest: what a model is asked, and what it asks of other models."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, ClassVar, Final

from tensorgate.backends.triton_python.calls import ModelCalls, Question, ref_of
from tensorgate.backends.triton_python.errors import TritonModelException
from tensorgate.backends.triton_python.exchange import AnswerChannel, InferenceResponseSender, Producer
from tensorgate.backends.triton_python.response import checked_parameters
from tensorgate.backends.triton_python.tensor import TritonTensor
from tensorgate.gateway.contract.canonical import OutputRequest
from tensorgate.gateway.contract.canonical import Sequence as CanonicalSequence
from tensorgate.gateway.contract.tensor import ParameterValue

SEQUENCE_START: Final = 1
SEQUENCE_END: Final = 2
RELEASE_ALL: Final = 1


class MemoryType(IntEnum):
    """Where a model would like the outputs of another. Source: TRITONSERVER_MemoryType."""

    CPU = 0
    CPU_PINNED = 1
    GPU = 2


class PreferredMemory:
    """A wish that a caller may state; answers are on the host whatever it says."""

    def __init__(self, preferred_memory_type: int, preferred_device_id: int = 0) -> None:
        self.preferred_memory_type = preferred_memory_type
        self.preferred_device_id = preferred_device_id


class InferenceRequest:
    """A request that came in, or one that goes to another model. Each instance of a model has a subclass of its own,
    which knows how to reach other models.
    """

    calls: ClassVar[ModelCalls]

    def __init__(
        self,
        request_id: str = "",
        correlation_id: int | str = 0,
        inputs: Sequence[TritonTensor] = (),
        requested_output_names: Sequence[str] = (),
        model_name: str = "",
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory | None = None,
        trace: Any = None,
        parameters: Mapping[str, ParameterValue] | None = None,
    ) -> None:
        for tensor in inputs:
            if not isinstance(tensor, TritonTensor):
                raise TypeError(f"inputs has a {type(tensor).__name__} among its tensors")
        if not isinstance(model_name, str) or isinstance(requested_output_names, str):
            raise TypeError("model_name is text, requested_output_names is a list of texts")
        self._id = request_id
        self._correlation_id = correlation_id
        self._inputs = list(inputs)
        self._output_names = list(requested_output_names)
        self._model_name = model_name
        self._model_version = model_version
        self._flags = flags
        self._timeout = timeout
        self._memory = preferred_memory
        self._trace = trace
        self._parameters = checked_parameters(parameters)
        self._producer: Producer | None = None

    @classmethod
    def received(cls, channel: AnswerChannel, model_name: str, output_names: Sequence[str]) -> InferenceRequest:
        """A caller's request; `output_names` are all that the model has."""
        request = channel.request
        sequence = request.sequence
        own = cls(
            request.id,
            sequence.id if sequence else 0,
            [TritonTensor.input(name, array) for name, array in request.inputs.items()],
            [output.name for output in request.outputs] or output_names,
            model_name,
            request.view.version,
            SEQUENCE_START * sequence.start | SEQUENCE_END * sequence.end if sequence else 0,
            request.queue_timeout_us,
        )
        own._parameters = request.parameters
        own._producer = Producer(channel)
        return own

    # ------------------------------------------------------------------------------------------------------------ facts

    def request_id(self) -> str:
        return self._id

    def correlation_id(self) -> int | str:
        return self._correlation_id

    def inputs(self) -> list[TritonTensor]:
        return self._inputs

    def requested_output_names(self) -> list[str]:
        return self._output_names

    def model_name(self) -> str:
        return self._model_name

    def model_version(self) -> int:
        return self._model_version

    def flags(self) -> int:
        return self._flags

    def set_flags(self, flags: int) -> None:
        self._flags = flags

    def timeout(self) -> int:
        """Microseconds; 0: none."""
        return self._timeout

    def preferred_memory(self) -> PreferredMemory | None:
        return self._memory

    def trace(self) -> Any:
        """What a caller may hand on to the next request; None, for there are no traces."""
        return self._trace

    def parameters(self) -> str:
        """A JSON object."""
        return json.dumps(dict(self._parameters))

    # ------------------------------------------------------------------------------------------------- to be answered

    def is_cancelled(self) -> bool:
        """The caller has left, or its time is up, or it has cancelled the request and waits for its end."""
        if self._producer is None:
            return False
        cancellation = self._producer.channel.request.cancellation
        return cancellation.cut or cancellation.is_asked_to_stop

    def get_response_sender(self) -> InferenceResponseSender:
        if self._producer is None:
            raise TritonModelException("only a request that execute was given has a response sender")
        self._producer.channel.sender_taken = True
        return InferenceResponseSender(self._producer)

    def set_release_flags(self, flags: int) -> None:
        """Requests are always released when they are answered; there is no rescheduling."""
        if flags != RELEASE_ALL:
            raise TritonModelException("a request cannot be rescheduled here: only TRITONSERVER_REQUEST_RELEASE_ALL")

    # ---------------------------------------------------------------------------------------------------------- to ask

    def exec(self, decoupled: bool = False) -> Any:
        """The other model's InferenceResponse; decoupled: an iterator over its responses. Blocks the calling thread."""
        return self.calls.ask(self._question(), stream=decoupled).result()

    def async_exec(self, decoupled: bool = False) -> asyncio.Future[Any]:
        """As `exec`, but gives a future at once."""
        return asyncio.wrap_future(self.calls.ask(self._question(), stream=decoupled))

    def _question(self) -> Question:
        """What it is now, with copies of the tensors: the model may change its memory while it waits."""
        start, end = bool(self._flags & SEQUENCE_START), bool(self._flags & SEQUENCE_END)
        return Question(
            ref_of(self._model_name, self._model_version),
            {tensor.name(): tensor.owned() for tensor in self._inputs},
            tuple(OutputRequest(name) for name in self._output_names),
            self._id,
            CanonicalSequence(self._correlation_id, start, end) if self._correlation_id or start or end else None,
            self._timeout,
            self._parameters,
        )
