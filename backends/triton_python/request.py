"""pb_utils.InferenceRequest: what a model is asked, and what it asks of other models."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from enum import IntEnum
from typing import Any, ClassVar, Final

from tensorgate.backends.triton_python.calls import ModelCalls, Question, ref_of
from tensorgate.backends.triton_python.errors import TritonModelException
from tensorgate.backends.triton_python.exchange import AnswerChannel, InferenceResponseSender, Producer
from tensorgate.backends.triton_python.load_report import without_wish
from tensorgate.backends.triton_python.response import checked_parameters
from tensorgate.backends.triton_python.tensor import TritonTensor
from tensorgate.gateway.contract.canonical import OutputRequest
from tensorgate.gateway.contract.canonical import Sequence as CanonicalSequence
from tensorgate.gateway.contract.tensor import ParameterValue

SEQUENCE_START: Final = 1
SEQUENCE_END: Final = 2
RELEASE_ALL: Final = 1
RELEASE_RESCHEDULE: Final = 2


class MemoryType(IntEnum):
    """Where a model would like the outputs of another. Source: TRITONSERVER_MemoryType."""

    CPU = 0
    CPU_PINNED = 1
    GPU = 2


_sequences: Final = itertools.count(1)
"""Ids of sequences whose callers gave none."""


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
    channel: AnswerChannel
    """Where the answers to a caller's request go."""

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
        """Raises TypeError, or TritonModelException for what is no tensor."""
        for tensor in inputs:
            if not isinstance(tensor, TritonTensor):
                raise TritonModelException(f"inputs has a {type(tensor).__name__} among its tensors")
        texts = (request_id, model_name, *requested_output_names)
        if isinstance(requested_output_names, str) or not all(isinstance(text, str) for text in texts):
            raise TypeError("request_id and model_name are texts, requested_output_names is a list of texts")
        if not (isinstance(model_version, int) and isinstance(flags, int) and isinstance(correlation_id, (int, str))):
            raise TypeError("model_version and flags are integers, correlation_id is an integer or a text")
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
        self.is_rescheduled = False

    @classmethod
    def received(cls, channel: AnswerChannel, model_name: str, output_names: Sequence[str]) -> InferenceRequest:
        """A caller's request; `output_names` are all that the model has."""
        request = channel.request
        sequence = request.sequence
        own = cls.__new__(cls)  # what the gateway has checked needs no check
        own._id = request.id
        own._correlation_id = sequence.id if sequence else 0
        own._inputs = [TritonTensor.input(name, array) for name, array in request.inputs.items()]
        own._output_names = [output.name for output in request.outputs] or list(output_names)
        own._model_name = model_name
        own._model_version = request.view.version
        own._flags = SEQUENCE_START * sequence.start | SEQUENCE_END * sequence.end if sequence else 0
        own._timeout = request.queue_timeout_us
        own._memory = None
        own._trace = None
        own._parameters = without_wish(request.parameters)
        own.is_rescheduled = False
        own._producer = Producer(channel)
        own.channel = channel
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
        """What becomes of the request when execute has returned: it is done, or executed again."""
        if flags not in (RELEASE_ALL, RELEASE_RESCHEDULE):
            raise TritonModelException(f"unknown release flags {flags}")
        self.is_rescheduled = flags == RELEASE_RESCHEDULE
        if self._producer is not None:
            self._producer.channel.run.may_reschedule = True

    # --------------------------------------------------------------------------------------------------- its instance

    def begin_sequence(self) -> None:
        """It is a sequence of its own, with the caller's id if there is one, and this is its first step."""
        self._correlation_id = self._correlation_id or next(_sequences)
        self._flags |= SEQUENCE_START

    def take_reschedule(self) -> bool:
        """Whether it is to be executed again, as a later step of its sequence."""
        rescheduled, self.is_rescheduled = self.is_rescheduled, False
        if rescheduled:
            self._flags &= ~SEQUENCE_START
        return rescheduled

    # ---------------------------------------------------------------------------------------------------------- to ask

    def exec(self, decoupled: bool = False) -> Any:
        """The other model's InferenceResponse; decoupled: an iterator over its responses. Blocks the calling thread."""
        return self.calls.ask(self._question(), stream=decoupled).result()

    def async_exec(self, decoupled: bool = False) -> asyncio.Future[Any]:
        """As `exec`, but gives a future at once; of an iterator, until the first response is there."""
        question = self._question()
        future: Future[Any] = (
            self.calls.ask_until_first(question) if decoupled else self.calls.ask(question, stream=False)
        )
        return asyncio.wrap_future(future)

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
