"""Mirrors a route's requests to other models, and counts how their responses differ from those that callers got.

A request is copied when it is submitted, and the copy is sent after the caller has the response: a caller waits only
for the copying of inputs that somebody could still write to. Waiting copies are bounded in bytes, running ones in
number; a request beyond that is not mirrored, and counted as dropped. A copy has the lowest priority in its model's
queue, a deadline of its own, and read-only inputs.

Results: equal; different (also if both fail with different codes, or the shadow refuses the inputs); error (the shadow
failed, or did not answer in time); dropped.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeAlias

from tensorgate.gateway.config import Mirror, RouteTarget
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelView
from tensorgate.gateway.contract.errors import Code, GatewayError, InvalidArgument, ModelDecoupled, NotOneAnswer
from tensorgate.gateway.contract.metrics import ShadowCounts
from tensorgate.gateway.contract.tensor import Array, bytes_of
from tensorgate.gateway.routing.mirrored_call import CopiedCall, MirroredCall, Target
from tensorgate.gateway.routing.response_diff import TensorDiff, Tolerance, compare
from tensorgate.gateway.routing.shadow_samples import DiffSampleFile, ModelOutcome, diff_sample
from tensorgate.gateway.telemetry.histogram import Histogram

log = logging.getLogger(__name__)

EQUAL: Final = "equal"
DIFFERENT: Final = "different"
ERROR: Final = "error"
DROPPED: Final = "dropped"
DIFFERENCES: Final = (0.0, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0)
MAX_DIFFERENCE: Final = 10.0
"""An infinite difference is counted as this, so that the histogram's sum stays finite."""
SECONDS: Final = (500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

_LARGE_BYTES: Final = 32 << 10
"""Larger responses are compared in a thread."""
_COPY_BYTES: Final = 4 << 10
"""Approximate memory of a copy beside its tensors."""
_NO_JUDGEMENT: Final = frozenset(
    {Code.CANCELLED, Code.DEADLINE_EXCEEDED, Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED, Code.UNAUTHENTICATED}
)
"""Errors that do not depend on the request: there is nothing to compare."""

Outcome = InferResponse | GatewayError


class MirroredRequest:
    """The copy of a request. A context manager around the original: `on_answer` receives each response, and `seconds`
    is set if it succeeds. At the end the copy is sent to the shadow, or dropped if there is nothing to compare, for
    example because the caller has left.
    """

    __slots__ = ("_answer", "_primary", "_request", "_shadow", "_target", "id", "inputs", "nbytes", "seconds", "view")

    def __init__(self, shadow: Shadow, request: InferRequest, target: Target, nbytes: int) -> None:
        self._shadow = shadow
        self._target = target
        self._answer: InferResponse | None = None
        self._request = request
        self.id, self.view, self.inputs = request.id, request.view, request.inputs
        self.nbytes = nbytes
        self.seconds = 0.0
        self._primary: ModelOutcome

    def on_answer(self, answer: InferResponse) -> None:
        """Keep the response that the caller gets."""
        self._answer = answer

    def __enter__(self) -> MirroredRequest:
        return self

    def __exit__(self, kind: object, error: BaseException | None, where: object) -> None:
        outcome: object = self._answer if error is None else error
        if isinstance(outcome, InferResponse) or (
            isinstance(outcome, GatewayError) and outcome.code not in _NO_JUDGEMENT
        ):
            nbytes = bytes_of(outcome.outputs) if isinstance(outcome, InferResponse) else 0
            if nbytes is not None and self._shadow.hold(self, nbytes):
                self._primary = ModelOutcome(self.view, outcome, self.seconds)
                self._shadow.send(self)
                return
            self._shadow.drop()
        self._shadow.release(self)

    async def primary(self) -> ModelOutcome:
        """What the caller was answered."""
        return self._primary

    def target(self, chosen: RouteTarget) -> ModelView:
        """The version of a target. Raises ModelNotFound, LabelNotFound."""
        return self._target(chosen)

    async def answer(self, view: ModelView, seconds: float) -> InferResponse:
        """The shadow's one response. Raises GatewayError."""
        return await _answer(_bound(self._request, view, seconds))


Copy: TypeAlias = MirroredRequest | MirroredCall


class Shadow:
    """A route's mirror. For the event loop.

    `results` counts requests; per output, `differences` has the largest relative difference of each request, and
    `beyond` counts elements beyond the tolerance; `seconds` has the response times of both sides.
    """

    def __init__(self, route: str, config: Mirror, pick: Callable[[float], RouteTarget]) -> None:
        self.results = dict.fromkeys((EQUAL, DIFFERENT, ERROR, DROPPED), 0)
        self.differences: dict[str, Histogram] = {}
        self.beyond: dict[str, int] = {}
        self.seconds = {"primary": Histogram(SECONDS), "shadow": Histogram(SECONDS)}
        self.held_bytes = 0
        self._route = route
        self._config = config
        self._pick = pick
        self._tolerance = Tolerance(config.rtol, config.atol)
        self._ignored = frozenset(config.ignore)
        self._waiting: deque[Copy] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = ThreadPoolExecutor(1, "shadow")
        self._samples = DiffSampleFile(config.samples) if config.samples else None

    def counts(self) -> ShadowCounts:
        """All counts, as values. In any thread."""
        return ShadowCounts(
            dict(self.results),
            {output: histogram.distribution() for output, histogram in list(self.differences.items())},
            dict(self.beyond),
            {side: histogram.distribution() for side, histogram in self.seconds.items()},
            self.held_bytes,
            len(self._tasks),
        )

    def copy(self, request: InferRequest, target: Target) -> MirroredRequest | None:
        """Copy a request that is about to be submitted; None if it is not mirrored."""
        # S311: it chooses what is looked at twice, and guards nothing.
        if request.sequence is not None or request.view.decoupled or random.random() >= self._config.share:  # noqa: S311
            return None
        nbytes = None if request.into is not None else bytes_of(request.inputs)
        if nbytes is None or self.held_bytes + nbytes + _COPY_BYTES > self._config.max_queued_bytes:
            self.drop()
            return None
        self.held_bytes += nbytes + _COPY_BYTES
        inputs = {name: _kept(array) for name, array in request.inputs.items()}
        kept = InferRequest(
            request.view, inputs, request.id, request.outputs, request.parameters, signature=request.signature
        )
        return MirroredRequest(self, kept, target, nbytes + _COPY_BYTES)

    def copy_call(self, copied: CopiedCall, view: ModelView, target: Target) -> MirroredCall | None:
        """Copy a call that is about to be passed on, unread; None if it is not mirrored."""
        if random.random() >= self._config.share:  # noqa: S311 - it chooses what is looked at twice
            return None
        nbytes = len(copied.call.body) + _COPY_BYTES
        copy = MirroredCall(self, copied, view, target)
        if not self.hold(copy, nbytes):
            self.drop()
            return None
        return copy

    def hold(self, copy: Copy, nbytes: int) -> bool:
        """Keep so much more for a copy; False if there is no room for it."""
        if self.held_bytes + nbytes > self._config.max_queued_bytes:
            return False
        self.held_bytes += nbytes
        copy.nbytes += nbytes
        return True

    def drop(self) -> None:
        """Count a copy that is not compared, for want of room."""
        self.results[DROPPED] += 1

    def send(self, copy: Copy) -> None:
        """Send a copy, after the caller has its response, both of which it holds."""
        self._waiting.append(copy)
        self._start_waiting()

    def release(self, copy: Copy) -> None:
        """Release the memory of a copy."""
        self.held_bytes -= copy.nbytes
        copy.nbytes = 0

    # ------------------------------------------------------------------------------------------------------- one copy

    def _start_waiting(self) -> None:
        while self._waiting and len(self._tasks) < self._config.max_in_flight:
            task = asyncio.get_running_loop().create_task(self._run(self._waiting.popleft()))
            self._tasks.add(task)
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            self._start_waiting()

    async def _run(self, copy: Copy) -> None:
        try:
            await self._compare(copy)
        except Exception:
            self.results[ERROR] += 1
            log.exception("route %s: a mirrored request failed unexpectedly", self._route)
        finally:
            self.release(copy)

    async def _compare(self, copy: Copy) -> None:
        shadow = await self._run_shadow(copy)
        if shadow is None:
            return
        primary = await copy.primary()
        result, found = await self._compared(primary.outcome, shadow.outcome)
        self.results[result] += 1
        self._count(found)
        self.seconds["shadow"].observe(shadow.seconds)
        if primary.seconds:
            self.seconds["primary"].observe(primary.seconds)
        if result != EQUAL and self._samples is not None and self._samples.has_room():
            about = {"route": self._route, "id": copy.id, "result": result}
            inputs = copy.inputs if self._samples.inputs else None
            await self._in_thread(self._samples.write, diff_sample, about, primary, shadow, found, inputs)

    async def _run_shadow(self, copy: Copy) -> ModelOutcome | None:
        """The shadow's outcome. None if the shadow's model answered the caller too, as a fallback: nothing to
        compare.
        """
        # S311: it shares traffic and guards nothing.
        chosen = self._pick(random.random())  # noqa: S311
        begun = time.perf_counter()
        view = copy.view
        outcome: Outcome
        try:
            view = copy.target(chosen)
            if view.handle is copy.view.handle:
                return None
            outcome = await copy.answer(view, self._config.timeout_ms / 1000)
        except GatewayError as error:
            outcome = error
        return ModelOutcome(view, outcome, time.perf_counter() - begun)

    async def _compared(self, primary: Outcome, shadow: Outcome) -> tuple[str, Sequence[TensorDiff]]:
        if isinstance(shadow, GatewayError):
            if isinstance(primary, GatewayError):
                return (EQUAL if primary.code is shadow.code else DIFFERENT), ()
            return (DIFFERENT if isinstance(shadow, InvalidArgument) else ERROR), ()
        if isinstance(primary, GatewayError):
            return DIFFERENT, ()
        if sum(array.nbytes for array in primary.outputs.values()) > _LARGE_BYTES:
            found: Sequence[TensorDiff] = await self._in_thread(
                compare, primary, shadow, self._tolerance, self._ignored
            )
        else:
            found = compare(primary, shadow, self._tolerance, self._ignored)
        return (EQUAL if all(each.what == "equal" for each in found) else DIFFERENT), found

    async def _in_thread(self, step: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, step, *args)

    def _count(self, found: Sequence[TensorDiff]) -> None:
        for each in found:
            self.beyond[each.output] = self.beyond.get(each.output, 0) + each.beyond
            if each.elements:
                histogram = self.differences.get(each.output)
                if histogram is None:
                    histogram = self.differences[each.output] = Histogram(DIFFERENCES)
                histogram.observe(min(each.max_relative, MAX_DIFFERENCE))


async def _answer(request: InferRequest) -> InferResponse:
    """The shadow's one response. Raises ModelDecoupled, NotOneAnswer."""
    if request.view.decoupled:
        raise ModelDecoupled(request.view.name)
    answers = request.view.handle.submit(request)
    try:
        return await anext(answers)
    except StopAsyncIteration:
        raise NotOneAnswer(request.view.name) from None
    finally:
        answers.abandon()


def _bound(request: InferRequest, view: ModelView, seconds: float) -> InferRequest:
    """The request for another model, with its lowest priority and without outputs that the model lacks."""
    levels = (view.configuration.get("priorities") or {}).get("levels", 0)
    wanted = tuple([output for output in request.outputs if output.name in view.outputs])
    return InferRequest(
        view,
        request.inputs,
        request.id,
        wanted,
        request.parameters,
        signature=request.signature,
        priority=levels,
        deadline=time.monotonic() + seconds,
    )


def _kept(array: Array) -> Array:
    """A read-only array: the same one, or a copy if it is writable."""
    if not array.flags.writeable:
        return array
    kept = array.copy()
    kept.flags.writeable = False
    return kept
