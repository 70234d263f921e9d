"""What a model asks of other models: business logic scripting, in Triton's words.

A model calls from its own threads; models are resolved and asked on the gateway's event loop, so every call goes
there and back. Who calls on behalf of requests that nobody waits for any more gets an error at once, and a call has no
more time than those requests have: so a ring of models that wait for each other breaks when their callers leave. A
model that calls itself while all its instances wait for that is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from tensorgate.backends.execution.instances import check_free_instance
from tensorgate.backends.execution.rows import last_deadline
from tensorgate.backends.triton_python.errors import TritonModelException, triton_error
from tensorgate.backends.triton_python.exchange import Run
from tensorgate.backends.triton_python.response import InferenceResponse
from tensorgate.backends.triton_python.tensor import TritonTensor
from tensorgate.gateway.contract.canonical import (
    Answers,
    CancellationToken,
    InferRequest,
    InferResponse,
    ModelRef,
    ModelView,
    OutputRequest,
    Sequence,
)
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.errors import Cancelled, GatewayError, ModelDecoupled, UnknownOutput, Unsupported
from tensorgate.gateway.contract.tensor import NOTHING, ParameterValue, Tensors, check_inputs

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """A request for another model."""

    model: ModelRef
    inputs: Tensors
    outputs: tuple[OutputRequest, ...]
    id: str
    sequence: Sequence | None
    timeout_us: int
    parameters: Mapping[str, ParameterValue]


class ModelCalls:
    """How one instance of a model reaches others. `parent` tells, in the calling thread, which run waits for a call.

    `loop` is known from the first request on.
    """

    def __init__(self, resolve: Resolve | None, parent: Callable[[], Run | None]) -> None:
        self._resolve = resolve
        self._parent = parent
        self.loop: asyncio.AbstractEventLoop | None = None

    # ------------------------------------------------------------------------------------------- in the model's threads

    def ask(self, question: Question, *, stream: bool) -> Future[InferenceResponse] | Future[Responses]:
        """The one answer, or an iterator over any number of them."""
        parent = self._parent()
        return self._start(self._ask_all(question, parent)) if stream else self._start(self._ask(question, parent))

    def ask_until_first(self, question: Question) -> Future[Responses]:
        """An iterator over any number of answers, once the first is there: a coroutine that waits for it holds up none
        of its loop's others, which reading it from the iterator would. Source: Triton's python_backend.
        """
        return self._start(self._ask_for_first(question, self._parent()))

    def is_ready(self, name: str, version: str = "") -> bool:
        """Whether a model (that version of it) can be asked. Looks without the loop, so from initialize, too."""
        try:
            self._view(ref_of(name, int(version or -1)))
        except GatewayError:
            return False
        return True

    def _start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        loop = self.loop
        if loop is None:
            coroutine.close()
            raise TritonModelException("other models can be asked only once requests come in, not from initialize")
        return asyncio.run_coroutine_threadsafe(coroutine, loop)

    # ------------------------------------------------------------------------------------------------------ on the loop

    async def _ask(self, question: Question, parent: Run | None) -> InferenceResponse:
        try:
            _, answers = self._submit(question, parent, stream=False)
            try:
                async for answer in answers:
                    return _response_of(question, answer)
            finally:
                _release(answers, parent)
        except GatewayError as error:
            return InferenceResponse(error=triton_error(error))
        return InferenceResponse(error=triton_error(Cancelled("nobody waits for the answer any more")))

    async def _ask_all(self, question: Question, parent: Run | None) -> Responses:
        try:
            request, answers = self._submit(question, parent, stream=True)
        except GatewayError as error:
            return Responses(self, question, None, None, parent, InferenceResponse(error=triton_error(error)))
        return Responses(self, question, request.cancellation, answers, parent)

    async def _ask_for_first(self, question: Question, parent: Run | None) -> Responses:
        responses = await self._ask_all(question, parent)
        await responses.fetch_first()
        return responses

    def _submit(self, question: Question, parent: Run | None, *, stream: bool) -> tuple[InferRequest, Answers]:
        view = self._view(question.model)
        if view.decoupled and not stream:
            raise ModelDecoupled(view.name)
        check_inputs(view.name, question.inputs, view.inputs, view.max_batch_size)
        for output in question.outputs:
            if output.name not in view.outputs:
                raise UnknownOutput(output.name, view.name)
        request = InferRequest(
            view,
            question.inputs,
            id=question.id,
            outputs=question.outputs,
            parameters=question.parameters,
            sequence=question.sequence,
            deadline=_deadline(parent),
            queue_timeout_us=question.timeout_us,
            stream=stream,
            callers=_callers(view, parent),
        )
        if parent is not None and (share := parent.requests[0].cancellation.share):
            request.cancellation.share = share  # of several callers, the first stands for all
        answers = view.handle.submit(request)
        if parent is not None:
            parent.children.add(answers)
        return request, answers

    def _view(self, model: ModelRef) -> ModelView:
        if self._resolve is None:
            raise Unsupported("this model cannot ask others")
        return self._resolve(model)


def ref_of(name: str, version: int) -> ModelRef:
    """A version below 1 is the newest."""
    return ModelRef(name, version if version > 0 else None)


def _deadline(parent: Run | None) -> float | None:
    """The last moment at which anybody could want the answer."""
    if parent is None:
        return None
    if parent.abandoned:
        raise Cancelled("nobody waits for the answer any more")
    return last_deadline(parent.requests)


def _callers(view: ModelView, parent: Run | None) -> tuple[ModelView, ...]:
    """Who waits for this request. Raises ModelFailed if nobody would be left to answer it."""
    if parent is None:
        return ()
    above = [request.callers for request in parent.requests]
    callers = (*max(above, key=len, default=()), parent.requests[0].view)
    check_free_instance(callers, view)
    return callers


def _release(answers: Answers, parent: Run | None) -> None:
    answers.abandon()
    if parent is not None:
        parent.children.discard(answers)


def _response_of(question: Question, answer: InferResponse) -> InferenceResponse:
    """The arrays are another model's: this one gets a copy when it looks at one."""
    tensors = []
    for name, array in answer.outputs.items():
        view = array.view()
        view.flags.writeable = False
        tensors.append(TritonTensor.holding(name, view))
    return InferenceResponse.heard(question.id, tensors, answer.parameters, last=answer.final)


class Responses:
    """The answers of a decoupled model, one at a time; where the model says that it is done without an answer, the last
    one is empty. `cancel` asks the model to stop, and what it does then is heard; forgetting the iterator ends the
    request.
    """

    def __init__(
        self,
        calls: ModelCalls,
        question: Question,
        cancellation: CancellationToken | None,
        answers: Answers | None,
        parent: Run | None,
        only: InferenceResponse | None = None,
    ) -> None:
        self._calls = calls
        self._question = question
        self._cancellation = cancellation
        self._answers = answers
        self._parent = parent
        self._only = only
        self._is_over = False
        """The model's last answer was heard."""

    def __iter__(self) -> Iterator[InferenceResponse]:
        return self

    def __next__(self) -> InferenceResponse:
        response, self._only = self._only, None
        if response is None and self._answers is not None:
            response = self._calls._start(self._next(self._answers)).result()
            if self._is_over:
                self._answers = None
        if response is None:
            raise StopIteration
        return response

    async def fetch_first(self) -> None:
        """Wait for the first answer; on the loop, before anybody iterates."""
        if self._answers is not None:
            self._only = await self._next(self._answers)
            if self._is_over:
                self._answers = None

    async def _next(self, answers: Answers) -> InferenceResponse:
        try:
            response = _response_of(self._question, answer := await anext(answers))
            self._is_over = answer.final
        except GatewayError as error:
            response, self._is_over = InferenceResponse(error=triton_error(error)), True
        except StopAsyncIteration:
            response, self._is_over = InferenceResponse.heard(self._question.id, [], NOTHING, last=True), True
        if self._is_over:
            _release(answers, self._parent)
        return response

    def cancel(self) -> None:
        """Ask the model to stop; without effect once it has."""
        if self._cancellation is not None:
            self._cancellation.is_asked_to_stop = True

    def __del__(self) -> None:
        answers, self._answers = self._answers, None
        if answers is not None and self._calls.loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._calls.loop.call_soon_threadsafe(_release, answers, self._parent)
