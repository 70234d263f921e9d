"""One instance of a model in a process of its own, as the engine sees it: started, asked, and started again."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import socket
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from tensorgate.backends.execution.process_output import ProcessOutput
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse
from tensorgate.gateway.contract.errors import Exhausted, GatewayError, Unavailable, Unknown, text_of
from tensorgate.gateway.contract.execution import Observe
from tensorgate.gateway.contract.tensor import Tensors
from tensorgate.gateway.contract.upstream import Await
from tensorgate.gateway.crossing.arena import Arena
from tensorgate.gateway.crossing.channel import Channel, greet, hello_of
from tensorgate.gateway.crossing.failures import error_of
from tensorgate.gateway.crossing.fork_server import ForkedProcess, ForkServer
from tensorgate.gateway.crossing.frames import CrossingBroken
from tensorgate.gateway.crossing.model_messages import (
    FromModel,
    LeaveRun,
    ModelStarted,
    RunBatch,
    RunCredit,
    RunEnd,
    RunStep,
    StartFailed,
    StartModel,
    StopModel,
)
from tensorgate.gateway.crossing.runs import outcome_of, run_request
from tensorgate.gateway.crossing.tensors import TensorReader

log = logging.getLogger(__name__)

MAX_ARENA_BYTES: Final = 64 << 30
"""Addresses, not memory."""
STREAM_CREDIT: Final = 32
"""Answers of a decoupled model that may be on their way."""
FIRST_DELAY_S: Final = 0.1
MAX_DELAY_S: Final = 30.0
STARTS: Final = 3
"""How often a process is begun whose load somebody ends by SIGKILL: not the model's doing, as far as one knows."""
HEALTHY_S: Final = 60.0
"""A process that has stood so long is started again at once when it ends."""
WAIT_S: Final = 5.0
"""How long a batch waits for a process that is being started again."""
CLOSE_S: Final = 10.0
"""How long a process has to close its model. Then it is killed."""
HUNG_S: Final = 30.0
"""How long a run may go on for which nobody waits any more, if its process does nothing else. Then it is killed."""
_GIVE_BACK_S: Final = 1.0
_IDLE_S: Final = 10.0
_RETRY_AFTER: Final = MappingProxyType({"Retry-After": "1"})
_KINDS: Final[Mapping[str, type[Exception]]] = {
    kind.__name__: kind for kind in (FileNotFoundError, PermissionError, MemoryError, ImportError, ValueError, OSError)
}

OnRestart = Callable[[str, int, str], None]
"""on_restart(model, version, what ended the last process)"""
Outcomes = Sequence[InferResponse | GatewayError]


@dataclass(frozen=True, slots=True)
class OwnDevice:
    """Where a model's process has it. Its arrays are on the host here."""

    name: str
    xp: Any = np


class _Run:
    """A batch that has been sent: `events` has its steps, and then its end."""

    def __init__(self, number: int, requests: Sequence[InferRequest]) -> None:
        self.number = number
        self.requests = requests
        self.events: asyncio.Queue[RunStep | RunEnd | Unavailable] = asyncio.Queue()
        self.left: set[int] = set()
        self.is_left = False
        self.is_over = False
        self.taken = 0

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody waits for it."""
        return self.is_left or len(self.left) == len(self.requests)


async def _next(run: _Run, channel: Channel[Any], observe: Observe) -> Outcomes | None:
    """What becomes of each request, None at the end. Raises what is the outcome of all."""
    if run.is_over:
        return None
    event = await run.events.get()
    if isinstance(event, RunStep):
        run.is_over = event.last
        for stage in event.took:
            observe(stage)
        try:
            outcomes = [outcome_of(each, channel.reader) for each in event.outcomes]
            if len(outcomes) != len(run.requests):
                raise CrossingBroken(f"{len(outcomes)} outcomes for {len(run.requests)} requests")
        except CrossingBroken as error:
            run.is_over = True
            log.error("a model's process broke the protocol: %s", error)
            channel.close()
            raise _gone("the model's process broke the protocol") from None
        return outcomes
    if isinstance(event, RunEnd):
        run.is_over = True
        if event.failure is not None:
            raise error_of(event.failure)
        return None
    run.is_over = True  # each request has an error of its own, so that the batch is not run again
    return [_gone(str(event)) for _ in run.requests]


class ModelProcess:
    """One instance. Its process is started again whenever it ends; plays LoadedModel for `load_instances`.

    All methods are for the event loop, but `close`.
    """

    loaded: ModelStarted
    device: OwnDevice

    def __init__(
        self, fork_server: ForkServer, version: str, on_restart: OnRestart, message: StartModel, on_loop: Await
    ) -> None:
        self._fork_server = fork_server
        self._version = version
        self._on_restart = on_restart
        self._message = message
        self._on_loop = on_loop
        self._channel: Channel[Any] | None = None
        self._arena: Arena | None = None
        self._forked: ForkedProcess | None = None
        self._ended: asyncio.Future[int]
        self._output: ProcessOutput
        self._up = asyncio.Event()
        self._stopping = asyncio.Event()
        self._runs: dict[int, _Run] = {}
        self._numbers = itertools.count(1)
        self._loading: asyncio.Future[ModelStarted] | None = None
        self._restarting: asyncio.Task[None] | None = None
        self._failing: asyncio.Task[Any] | None = None
        self._delay = 0.0
        self._up_since = 0.0
        self._why = ""
        self._was_killed = False
        self._busy_at = 0.0
        self._is_tidy = True

    @property
    def name(self) -> str:
        return f"model '{self._message.program.name}' version {self._message.program.version}"

    @property
    def is_up(self) -> bool:
        return self._up.is_set()

    @property
    def running(self) -> int:
        return len(self._runs)

    def memory_bytes(self) -> int:
        """The host's memory that the process shares with nobody, and that ends with it; 0 while there is none."""
        channel = self._channel
        return 0 if channel is None else _private_bytes(channel.peer.pid)

    @property
    def _open(self) -> Channel[Any]:
        """The channel of a process that stands."""
        if self._channel is None:
            raise _gone(f"the process of {self.name} has ended")
        return self._channel

    @property
    def reader(self) -> TensorReader:
        """Reads what came with `loaded`."""
        return self._open.reader

    # ------------------------------------------------------------------------------------------------ start and restart

    async def open(self) -> None:
        """Start the process for the first time. Raises why the model could not be loaded."""
        self._fork_server.hold()
        try:
            for left in reversed(range(STARTS)):
                try:
                    await self.start()
                    return
                except Unavailable as error:
                    if not self._was_killed or not left:
                        raise
                    log.warning("%s; another one begins", text_of(error))
        except BaseException:
            self._fork_server.release()
            raise

    async def start(self) -> None:
        """Start the process, and load the model there. Raises why the model could not be loaded."""
        self._loop = loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        self._was_killed = False
        ended = self._ended
        ours, theirs = socket.socketpair()
        output, written = os.pipe()
        try:
            self._forked = await self._fork_server.fork(
                theirs.fileno(), written, lambda status: None if ended.done() else ended.set_result(status)
            )
        except OSError as why:  # the template has ended, and is another one the next time
            self._was_killed = True
            ours.close()
            os.close(output)
            raise _gone(f"no process for {self.name} could be started: {why}") from None
        except BaseException:
            ours.close()
            os.close(output)
            raise
        finally:
            theirs.close()
            os.close(written)
        self._output = ProcessOutput(loop, output, self._message.program.name)
        arena = Arena(MAX_ARENA_BYTES)
        try:
            hello, peer_arena = await asyncio.to_thread(greet, ours, arena, hello_of(self._version), first=True)
        except (OSError, CrossingBroken):
            ours.close()
            arena.close()
            error = await self._lost_at_start()
            self._output.close()
            raise error from None
        channel: Channel[Any] = Channel(hello, arena, peer_arena, FromModel, self._take, lambda why: self._lost(why))
        self._channel, self._arena = channel, arena
        self._loading = loop.create_future()
        await loop.connect_accepted_socket(lambda: channel, ours)
        channel.send(self._message)
        try:
            self.loaded = await self._loading
        except BaseException:
            await self._end()
            raise
        finally:
            self._loading = None
        self.device = OwnDevice(self.loaded.device)
        self._up_since = loop.time()
        self._up.set()

    async def _lost_at_start(self) -> Unavailable:
        return self._gone_error(await self._status())

    async def _status(self) -> str:
        """How the process has ended, which it is about to. Kills it if it does not."""
        for _ in range(2):
            with contextlib.suppress(TimeoutError):
                status = await asyncio.wait_for(asyncio.shield(self._ended), 1.0)
                self._was_killed = status == -signal.SIGKILL
                return _cause(status)
            if self._forked is not None:
                self._forked.kill()
        return "not responding"

    def _gone_error(self, cause: str) -> Unavailable:
        """The error of requests that ran there."""
        return _gone(f"the process of {self.name} has ended ({cause})")

    def _lost(self, why: str) -> None:
        """The connection is gone, and so is the process, or soon will be."""
        self._up.clear()
        self._channel = self._arena = None  # a mapping is there until nobody knows it
        if why.startswith("the other process broke"):
            log.error("%s: %s", self.name, why)
            self._why = "protocol"
        if self._loading is not None:
            self._failing = self._loop.create_task(self._fail_load(self._loading))
        elif not self._stopping.is_set():
            self._restarting = self._loop.create_task(self._restart())
        else:
            self._failing = self._loop.create_task(self._fail_runs())

    async def _fail_load(self, loading: asyncio.Future[ModelStarted]) -> None:
        error = await self._lost_at_start()
        if not loading.done():
            loading.set_exception(error)

    async def _fail_runs(self) -> str:
        """Whoever waits for the process that has ended learns so. -> how it has ended"""
        cause = await self._status()
        if self._why:
            cause, self._why = self._why, ""
        error = self._gone_error(cause)
        runs, self._runs = self._runs, {}
        for run in runs.values():
            run.events.put_nowait(error)
        self._output.close()
        return cause

    async def _restart(self) -> None:
        cause = await self._fail_runs()
        healthy = self._loop.time() - self._up_since >= HEALTHY_S
        self._delay = FIRST_DELAY_S if healthy or not self._delay else min(2 * self._delay, MAX_DELAY_S)
        while True:
            log.error("the process of %s has ended: %s; another one in %.1f s", self.name, cause, self._delay)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), self._delay)
            if self._stopping.is_set():
                return
            self._on_restart(self._message.program.name, self._message.program.version, cause)
            try:
                await self.start()
            except Exception as error:
                log.error("%s could not be loaded: %s", self.name, text_of(error))
                cause = "load"
                self._delay = min(2 * self._delay, MAX_DELAY_S)
                continue
            log.warning("the process of %s stands again", self.name)
            return

    async def standing(self) -> None:
        """Wait for the process. Raises Unavailable after a short time."""
        try:
            await asyncio.wait_for(self._up.wait(), WAIT_S)
        except TimeoutError:
            raise _gone(f"the process of {self.name} is being started again") from None

    # ---------------------------------------------------------------------------------------------------------- the end

    def close(self) -> None:
        """Let the process close its model and end. In a thread."""
        self._on_loop(self._close())

    async def _close(self) -> None:
        self._stopping.set()
        restarting = self._restarting
        if restarting is not None and not restarting.done():
            await self._end()
            await asyncio.wait([restarting])
        await self._end()
        self._fork_server.release()

    async def _end(self) -> None:
        """The process is over after this, and so are its descriptors."""
        self._up.clear()
        forked, self._forked = self._forked, None
        if self._channel is not None:
            self._channel.send(StopModel())
        if forked is not None and not self._ended.done():
            try:
                await asyncio.wait_for(asyncio.shield(self._ended), CLOSE_S)
            except TimeoutError:
                log.warning("the process of %s does not end, and is killed", self.name)
                forked.kill()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(self._ended), CLOSE_S)
        if self._channel is not None:
            self._channel.close()
            await asyncio.sleep(0)
        self._output.close()

    # ---------------------------------------------------------------------------------------------------------- batches

    def _take(self, message: Any) -> None:
        if isinstance(message, (RunStep, RunEnd)):
            run = self._runs.get(message.run)
            if run is None:
                raise CrossingBroken(f"run {message.run} is not out")
            run.events.put_nowait(message)
            return
        loading = self._loading
        if loading is None or loading.done():
            raise CrossingBroken("the model is loaded")
        if isinstance(message, ModelStarted):
            loading.set_result(message)
        elif isinstance(message, StartFailed):
            loading.set_exception(_KINDS.get(message.kind, Unknown)(message.text))

    async def run(
        self, executor: int, requests: Sequence[InferRequest], observe: Observe, *, decoupled: bool
    ) -> AsyncGenerator[Outcomes, None]:
        """Run a batch there. What ends the process is the outcome of each request. The run is over when this is."""
        await self.standing()
        channel = self._open
        run = self._begin(channel, executor, requests)
        try:
            while (outcomes := await _next(run, channel, observe)) is not None:
                yield outcomes
                run.taken += 1
                if decoupled and run.taken % (STREAM_CREDIT // 2) == 0 and self._channel is channel:
                    channel.send(RunCredit(run.number, STREAM_CREDIT // 2))
        finally:
            if not run.is_over:
                self._leave(run, -1)
            while not run.is_over:  # what comes is looked at, so that its memory is given back
                with contextlib.suppress(GatewayError):
                    await _next(run, channel, observe)
            self._runs.pop(run.number, None)
            self._busy_at = self._loop.time()
            for request in requests:
                request.cancellation.on_cut = None

    def _begin(self, channel: Channel[Any], executor: int, requests: Sequence[InferRequest]) -> _Run:
        number, writer = next(self._numbers), channel.writer
        said = tuple([run_request(each, _on_host(each.inputs), writer) for each in requests])
        try:
            channel.send(RunBatch(number, executor, said))
        except OverflowError:
            raise Exhausted("the inputs of the batch do not fit into a message") from None
        run = self._runs[number] = _Run(number, requests)
        for index, request in enumerate(requests):
            request.cancellation.on_cut = partial(self._leave, run, index)
            if request.cancellation.cut:
                self._leave(run, index)
        self._busy_at = self._loop.time()
        if self._is_tidy:
            self._is_tidy = False
            self._loop.call_later(_GIVE_BACK_S, self._tidy)
        return run

    def _leave(self, run: _Run, index: int) -> None:
        """Nobody waits for a request of this run any more, or (-1) for any more of its answers."""
        if index < 0:
            run.is_left = True
        run.left.add(index)
        if self._channel is not None and not run.is_over:
            self._channel.send(LeaveRun(run.number, index))
            if run.is_abandoned:
                self._loop.call_later(HUNG_S, self._judge, run.number)

    def _judge(self, number: int) -> None:
        """A run that goes on though nobody waits keeps others from running, and the model from being unloaded."""
        if number in self._runs and self._forked is not None and self._channel is not None:
            if all(run.is_abandoned for run in self._runs.values()):
                log.error("a run of %s goes on for which nobody waits: its process is killed", self.name)
                self._why = "hung"
                self._forked.kill()
            else:
                self._loop.call_later(HUNG_S, self._judge, number)

    def _tidy(self) -> None:
        """Once in a while after a batch, until all is given back."""
        channel = self._channel
        if channel is None or self._arena is None:
            self._is_tidy = True
            return
        channel.give_back()
        if self._runs or self._loop.time() - self._busy_at < _IDLE_S:
            self._loop.call_later(_GIVE_BACK_S, self._tidy)
            return
        self._is_tidy = True
        self._arena.trim()


def _cause(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


def _gone(text: str) -> Unavailable:
    error = Unavailable(text)
    error.http_headers = _RETRY_AFTER
    return error


def _on_host(inputs: Tensors) -> Tensors:
    if all(isinstance(array, np.ndarray) for array in inputs.values()):
        return inputs
    return {name: array if isinstance(array, np.ndarray) else array.get() for name, array in inputs.items()}


def _private_bytes(pid: int) -> int:
    """The pages of a process that no other one has. Source: proc(5), smaps_rollup."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended, or that is not told here
        return 0
    return 1024 * sum([int(line.split()[1]) for line in lines if line.startswith(("Private_Clean:", "Private_Dirty:"))])
