"""Copies of quick models in doors: where a model takes less time than the way to the engine, the door runs it itself.

The engine offers a version whose runs are as quick as those that it runs on its own loop, and depend on nothing but
their inputs. A door that is asked for such a model often enough loads a copy; a request goes there if one of its shapes
is known to be quick, and everything else goes to the engine as before: slow shapes, whose rows had better share a batch
with those of other doors, and whatever is not answered by a plain run, errors above all. So one answer is as good as
the other, and what a door has run, it tells the engine, which counts it as its own.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import time
from array import array
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Final

from tensorgate.gateway.contract.backend import BackendKind
from tensorgate.gateway.contract.canonical import VERIFIED, Answers, InferRequest, InferResponse
from tensorgate.gateway.contract.errors import GatewayError
from tensorgate.gateway.contract.execution import Computation, Executor
from tensorgate.gateway.contract.files import tree_bytes
from tensorgate.gateway.contract.shortcuts import is_taken
from tensorgate.gateway.contract.tensor import Tensors
from tensorgate.gateway.crossing.engine_link import RemoteModel
from tensorgate.gateway.crossing.messages import ModelProgram, ReplicaOffer
from tensorgate.gateway.engine.admission import INLINE_BELOW_SECONDS, AdmissionCheck
from tensorgate.gateway.engine.model import Model
from tensorgate.gateway.engine.worker import run_alone
from tensorgate.gateway.model_loading import model_source, program_of
from tensorgate.gateway.models.model_folder import tree_fingerprint
from tensorgate.gateway.models.model_state import StoredModel
from tensorgate.gateway.models.verification import pinned

log = logging.getLogger(__name__)

CALLS_BEFORE_LOAD: Final = 32
"""A door loads a copy once it has been asked so often: not for a model that nobody uses."""
MAX_MODEL_BYTES: Final = 64 << 20
"""Of the files of one version."""
MAX_BYTES: Final = 256 << 20
"""Of the files of all versions that one door has copies of."""
MAX_NOTED: Final = 1 << 16
"""Requests that the engine has not counted yet; beyond them, it answers itself."""
_WAY_SECONDS_PER_BYTE: Final = 0.25e-9
_NUMBERS: Final = 4
_MAX_NUMBERS: Final = MAX_NOTED * _NUMBERS
_IS_TAKEN: Final = is_taken("door_replicas")

Load = Callable[[ModelProgram], Computation]


def offer_of(model: Model, stored: StoredModel, kind: BackendKind) -> ReplicaOffer | None:
    """What doors are told of a version of which they may run copies; None where there is nothing to be gained, or where
    a run depends on more than its inputs.
    """
    config, view, computation = stored.config, model.view, model.computation
    path = stored.versions.get(model.version)
    if not (
        _IS_TAKEN
        and kind.replicable
        and path is not None
        and stored.upload is None
        and computation.pure
        and computation.executors
        and computation.executors[0].inline
        and set(model.devices) == {"cpu"}
        and not (model.is_cached or view.decoupled or view.sees_requests or view.forwarder or computation.signatures)
        and not (config.preprocess or config.postprocess or config.sequences or config.max_queue_delay_us)
        and config.target_p99_ms is None
        and config.process == "engine"
        and model.example_seconds < INLINE_BELOW_SECONDS
    ):
        return None
    print_ = tree_fingerprint(path) if model.version in stored.trees else stored.prints[model.version]
    config = pinned(config, view.configuration.get(VERIFIED))
    program = program_of(config, model_source(config, model.name, model.version, path))
    program.device, program.threads = "cpu", 1
    return ReplicaOffer(program, files_digest(print_), model.example_seconds)


def files_digest(fingerprint: Hashable) -> str:
    """One word for the fingerprint of a version's files."""
    return hashlib.sha256(repr(fingerprint).encode()).hexdigest()


class Replica:
    """A version that this door may run, loaded or not. While it is `allowed`, its `answer` is the RemoteModel's.

    All methods are for the event loop.
    """

    def __init__(self, model: RemoteModel, offer: ReplicaOffer, load: Callable[[Replica], None]) -> None:
        self.model = model
        self.offer = offer
        self.executor: Executor | None = None
        self._load = load
        self._calls = 0
        self._submit = model.submit
        self._check: AdmissionCheck | None = None
        self._noted = array("d")
        self._is_allowed = False

    def allow(self, *, allowed: bool) -> None:
        """Whether the engine lets doors answer just now."""
        self._is_allowed = allowed
        answer = self._count if self._check is None else self._answer
        self.model.answer = answer if allowed else self._submit

    def use(self, computation: Computation) -> None:
        """A copy is loaded."""
        view = self.model.view
        self.executor = computation.executors[0]
        self._check = AdmissionCheck(
            view.name,
            {spec.name: spec for spec in computation.required},
            view.max_batch_size,
            view.merges,
            self.offer.seconds,
            any_shape=computation.any_shape,
            ragged=computation.ragged,
        )
        self.model.learn = self._learn
        self.allow(allowed=self._is_allowed)

    def leave(self) -> Executor | None:
        """The version has left; returns what is to be closed."""
        self.allow(allowed=False)
        self.model.learn = None
        executor, self.executor = self.executor, None
        return executor

    def take(self) -> bytes:
        """The requests that were answered since the last time. See messages.Observed."""
        taken = self._noted.tobytes()
        del self._noted[:]
        return taken

    def _count(self, request: InferRequest) -> Answers:
        """In place of `answer` until a copy is loaded."""
        self._calls += 1
        if self._calls == CALLS_BEFORE_LOAD:
            self._load(self)
        return self._submit(request)

    def _answer(self, request: InferRequest) -> InferResponse | Answers:
        """See contract.canonical.Handle. What is no plain answer after a quick run, the engine gives."""
        check, executor = self._check, self.executor
        if check is None or executor is None or request.sequence is not None or len(self._noted) >= _MAX_NUMBERS:
            return self._submit(request)
        try:
            admission = check.admit(request)
        except GatewayError:
            return self._submit(request)
        now = time.monotonic()
        if admission.seconds >= admission.inline_below + _way_of(request.inputs):
            return self._submit(request)
        if request.deadline is not None and request.deadline <= now:
            return self._submit(request)
        timings: list[tuple[str, float]] = []
        outcome = run_alone(executor, request, timings.append)
        seconds = time.monotonic() - now
        admission.measured(seconds)
        if type(outcome) is not InferResponse or len(timings) != 1:
            return self._submit(request)
        rows = admission.rows
        if (call_record := request.cancellation.call_record) is not None:
            call_record.ran(rows, rows, now, now, now + seconds)
        self._noted.extend((rows, now, seconds, timings[0][1]))
        return outcome

    def _learn(self, request: InferRequest, seconds: float) -> None:
        """The engine has run such a request, and says how long one is likely to take."""
        if self._check is not None and math.isfinite(seconds) and seconds > 0:
            self._check.admit(request).measured(seconds)


class Replicas:
    """All copies of one door. `load` makes a computation, in a thread. All methods are for the event loop."""

    def __init__(self, load: Load) -> None:
        self._load_program = load
        self._every: dict[int, Replica] = {}
        self._bytes: dict[int, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loading = asyncio.Lock()

    def follow(self, models: Iterable[RemoteModel], replicated: Iterable[int]) -> None:
        """These versions are served now, and those of these numbers may be answered for here."""
        allowed = frozenset(replicated)
        served = {model.serial: model for model in models if model.offer is not None}
        for serial in self._every.keys() - served.keys():
            self._leave(serial)
        for serial, model in served.items():
            replica = self._every.get(serial)
            if replica is None and model.offer is not None:
                replica = self._every[serial] = Replica(model, model.offer, self._load_soon)
            if replica is not None:
                replica.allow(allowed=serial in allowed)

    def take(self) -> tuple[tuple[int, bytes], ...]:
        """What was answered here since the last time, by the version's number."""
        return tuple([(serial, taken) for serial, each in self._every.items() if (taken := each.take())])

    async def close(self) -> None:
        """Give all of them back."""
        for serial in [*self._every]:
            self._leave(serial)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _leave(self, serial: int) -> None:
        self._bytes.pop(serial, None)
        executor = self._every.pop(serial).leave()
        if executor is not None:
            self._spawn(asyncio.to_thread(executor.close))

    def _spawn(self, work: object) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(work)  # type: ignore[call-overload]  # a coroutine
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _load_soon(self, replica: Replica) -> None:
        self._spawn(self._load(replica))

    async def _load(self, replica: Replica) -> None:
        """Without one, the engine answers: nothing here is an error for anybody."""
        program, serial = replica.offer.program, replica.model.serial
        async with self._loading:
            left = min(MAX_MODEL_BYTES, MAX_BYTES - sum(self._bytes.values()))
            try:
                found = await asyncio.to_thread(self._loaded, replica.offer, left)
            except Exception as error:
                log.warning("no copy of model %s version %s in this door: %s", program.name, program.version, error)
                return
            if found is None:
                return
            computation, nbytes = found
            if self._every.get(serial) is not replica:  # it has left meanwhile
                await asyncio.to_thread(computation.executors[0].close)
                return
            self._bytes[serial] = nbytes
            replica.use(computation)
            log.debug("a copy of model %s version %s is in this door", program.name, program.version)

    def _loaded(self, offer: ReplicaOffer, max_bytes: int) -> tuple[Computation, int] | None:
        """In a thread: a copy of the very files that the engine has loaded, and their size; None where it is too large,
        or they are others by now.
        """
        path = Path(offer.program.path)
        nbytes = tree_bytes(path)
        if nbytes > max_bytes or files_digest(tree_fingerprint(path)) != offer.files:
            return None
        computation = self._load_program(offer.program)
        executors = computation.executors
        if len(executors) == 1 and executors[0].inline and files_digest(tree_fingerprint(path)) == offer.files:
            return computation, nbytes
        for executor in executors:
            executor.close()
        return None


def _way_of(tensors: Tensors) -> float:
    """What the way to the engine costs beyond that of a hop to a thread, in seconds: the more the larger they are."""
    nbytes = 0
    for tensor in tensors.values():
        nbytes += tensor.nbytes
    return nbytes * _WAY_SECONDS_PER_BYTE


def counted(data: bytes) -> array[float]:
    """The numbers of an Observed.replicas. Raises ValueError for what no door has measured."""
    numbers = array("d")
    if len(data) % (_NUMBERS * numbers.itemsize):
        raise ValueError(f"{len(data)} bytes of requests")
    numbers.frombytes(data)
    rows = numbers[::_NUMBERS]
    if not all(map(math.isfinite, numbers)) or (numbers and min(numbers) < 0):
        raise ValueError("a time that is none")
    if rows and (min(rows) < 1 or any(row != int(row) for row in set(rows))):
        raise ValueError("requests without rows")
    return numbers
