"""A model's own process (`process: own`): one instance, loaded and run by the same code as in the engine.

The engine sends a batch, and gets what became of each of its requests. What is written to standard output and standard
error goes to the server's log, line by line; so do log messages, which carry their level and logger along.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import importlib
import json
import logging
import os
import resource
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from tensorgate import __version__
from tensorgate.backends.execution.failures import on_lost_device
from tensorgate.backends.execution.model_process import MAX_ARENA_BYTES, STREAM_CREDIT
from tensorgate.backends.execution.process_output import LOG_FIELD, LOG_LINE
from tensorgate.gateway.app import registries, trim_memory, tune_process
from tensorgate.gateway.config import model_validator
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelRef, ModelView
from tensorgate.gateway.contract.errors import DeviceLost, GatewayError, Unsupported
from tensorgate.gateway.contract.execution import Computation, Executor
from tensorgate.gateway.contract.registries import Registries
from tensorgate.gateway.crossing.arena import Arena
from tensorgate.gateway.crossing.channel import Channel, greet, hello_of
from tensorgate.gateway.crossing.failures import failure_of
from tensorgate.gateway.crossing.fork_server import serve_forks
from tensorgate.gateway.crossing.frames import CrossingBroken
from tensorgate.gateway.crossing.messages import ModelProgram
from tensorgate.gateway.crossing.model_messages import (
    LeaveRun,
    RunBatch,
    RunCredit,
    RunEnd,
    RunStep,
    StartFailed,
    StartModel,
    StopModel,
    ToModel,
)
from tensorgate.gateway.crossing.runs import loaded_message, outcome_message, request_of
from tensorgate.gateway.engine.handover import Handover
from tensorgate.gateway.engine.worker import WorkerThread, public_error
from tensorgate.gateway.model_loading import load_program
from tensorgate.gateway.models.catalog import Validate
from tensorgate.gateway.models.loader import load_error

log = logging.getLogger(__name__)

GIVE_BACK_S: Final = 1.0
IDLE_S: Final = 10.0
"""After so long without a batch, freed memory goes back to the system."""
LOST_DEVICE: Final = 70
"""The exit status of a process whose device is lost: its answers are out by then."""
_KINDS: Final = (FileNotFoundError, PermissionError, MemoryError, ImportError, ValueError, OSError)

Outcomes = Sequence[InferResponse | GatewayError]


def main(fd: int) -> None:
    """Be the template that models' processes are forked from, for the engine at the other end of this socket."""
    tune_process()
    kinds = registries()
    validate = model_validator(kinds)
    with contextlib.suppress(ImportError):
        importlib.import_module("uvloop")
    serve_forks(fd, lambda connection: _run(connection, kinds, validate))


def _run(connection: int, kinds: Registries, validate: Validate) -> None:
    faulthandler.enable()  # a crash in a native library leaves at least its stack in the log
    logging.basicConfig(level=logging.DEBUG, handlers=[_ToEngine()], format="%(message)s", force=True)
    uvloop = sys.modules.get("uvloop")
    with asyncio.Runner(loop_factory=None if uvloop is None else uvloop.new_event_loop) as runner:
        runner.run(_ModelServer(kinds, validate).serve(socket.socket(fileno=connection)))


class _ToEngine(logging.Handler):
    """A message is one line on standard error, with its level and logger before it: it is there even if the process
    ends in the next moment.
    """

    def emit(self, record: logging.LogRecord) -> None:
        text = json.dumps(self.format(record))
        line = f"{LOG_LINE}{record.levelno}{LOG_FIELD}{record.name}{LOG_FIELD}{text}\n"
        with contextlib.suppress(OSError):
            os.write(2, line.encode("utf-8", "replace"))


class _Handle:
    """Behind the view of the one model there is. Nobody submits here."""

    def __init__(self, name: str) -> None:
        self.name = name

    def is_ready(self) -> bool:
        return True

    def submit(self, request: InferRequest) -> Any:
        raise _no_other_models(self.name)

    answer = submit


class _BatchRun:
    """A run that has begun. `credit` lets a decoupled model give so many more answers."""

    def __init__(self, message: RunBatch, requests: list[InferRequest]) -> None:
        self.number = message.run
        self.requests = requests
        self.credit = threading.Semaphore(STREAM_CREDIT)
        self.room = asyncio.Semaphore(STREAM_CREDIT)
        self.is_left = False
        self.took: list[tuple[str, float]] = []

    def take_times(self) -> tuple[tuple[str, float], ...]:
        took, self.took = tuple(self.took), []
        return took


class _Lane:
    """An executor and what drives it: one batch at a time."""

    def __init__(self, executor: Executor, name: str) -> None:
        self.executor = executor
        self.thread = WorkerThread(name)
        self.lock = asyncio.Lock()


class _ModelServer:
    """One instance, and its connection to the engine."""

    channel: Channel[Any]
    view: ModelView

    def __init__(self, kinds: Registries, validate: Validate) -> None:
        self._kinds = kinds
        self._validate = validate
        self._lanes: list[_Lane] = []
        self._runs: dict[int, _BatchRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._busy_at = 0.0
        self._is_tidy = True
        self._takers: dict[type[Any], Callable[[Any], None]] = {
            StartModel: self._load,
            RunBatch: self._start,
            LeaveRun: self._leave,
            RunCredit: self._credit,
            StopModel: lambda message: self._over.set(),
        }

    async def serve(self, sock: socket.socket) -> None:
        """Until the engine says that it is over, or has ended."""
        self._over = asyncio.Event()
        self.loop = asyncio.get_running_loop()
        self._busy_at = self.loop.time()
        arena = self._arena = Arena(MAX_ARENA_BYTES)
        hello, peer_arena = await asyncio.to_thread(greet, sock, arena, hello_of(__version__), first=False)
        self.channel = Channel(hello, arena, peer_arena, ToModel, self._take, lambda why: self._over.set())
        on_lost_device(self._lose_device)
        await self.loop.connect_accepted_socket(lambda: self.channel, sock)
        await self._over.wait()
        for lane in self._lanes:
            await asyncio.to_thread(lane.thread.end)
        for lane in self._lanes:
            await asyncio.to_thread(lane.executor.close)

    def _tidy(self) -> None:
        """Once in a while after a batch, until all is given back."""
        self.channel.give_back()
        if self._runs or self.loop.time() - self._busy_at < IDLE_S:
            self.loop.call_later(GIVE_BACK_S, self._tidy)
            return
        self._is_tidy = True
        self._arena.trim()
        trim_memory()

    def _take(self, message: Any) -> None:
        self._takers[type(message)](message)

    def _spawn(self, work: Any) -> None:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---------------------------------------------------------------------------------------------------------- loading

    def _load(self, message: StartModel) -> None:
        self._spawn(self._load_and_tell(message))

    async def _load_and_tell(self, message: StartModel) -> None:
        try:
            computation = await asyncio.to_thread(self._made, message)
        except BaseException as error:
            logging.getLogger().debug("the model failed to load", exc_info=error)
            kind = next((kind.__name__ for kind in _KINDS if isinstance(error, kind)), "")
            self.channel.send(StartFailed(kind, load_error(error, Path(message.program.path))))
            return
        self.view = _view(message.program, computation)
        self._lanes = [_Lane(each, f"{self.view.name} {index}") for index, each in enumerate(computation.executors)]
        self.channel.send(loaded_message(computation, self.channel.writer))

    def _made(self, message: StartModel) -> Computation:
        """In a thread."""
        if message.max_memory_bytes:
            resource.setrlimit(resource.RLIMIT_DATA, (message.max_memory_bytes, message.max_memory_bytes))
        program = message.program
        return load_program(
            self._kinds,
            self._validate,
            program,
            partial(_refuse_others, program.name),
            lambda work: asyncio.run_coroutine_threadsafe(work, self.loop).result(),
        )

    # ---------------------------------------------------------------------------------------------------------- running

    def _start(self, message: RunBatch) -> None:
        reader = self.channel.reader
        requests = [request_of(each, self.view, reader) for each in message.requests]
        if message.executor >= len(self._lanes) or message.run in self._runs:
            raise CrossingBroken(f"run {message.run} by executor {message.executor}")
        lane = self._lanes[message.executor]
        run = self._runs[message.run] = _BatchRun(message, requests)
        if self._is_tidy:
            self._is_tidy = False
            self.loop.call_later(GIVE_BACK_S, self._tidy)
        if lane.executor.runs_on == "loop":
            self._spawn(self._arun(lane, run))
        else:
            lane.thread.put(lambda: self._run(lane.executor, run))

    def _run(self, executor: Executor, run: _BatchRun) -> None:
        """In the executor's thread."""
        try:
            if not executor.decoupled:
                (outcomes,) = executor.run(run.requests, run.took.append)
                self._tell(self._send_step, run, list(outcomes), True)
                return
            self._stream(executor, run)
            self._tell(self._end, run, None)
        except BaseException as error:  # a model may even raise SystemExit
            self._tell(self._end, run, _logged(error, run.requests[0]))

    def _stream(self, executor: Executor, run: _BatchRun) -> None:
        """The steps of a decoupled model, which are on their way when this ends. Raises what the model does."""

        def take(outcomes: list[InferResponse | GatewayError]) -> None:
            self._send_step(run, outcomes, False)

        handover = Handover(self.loop, take, STREAM_CREDIT)
        steps: Any = executor.run(run.requests, run.took.append)
        try:
            for outcomes in steps:
                run.credit.acquire()
                if run.is_left:
                    break
                handover.give(list(outcomes))
        finally:
            steps.close()
            self._tell(handover.take_all)

    def _tell(self, call: Callable[..., None], *args: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(call, *args)

    async def _arun(self, lane: _Lane, run: _BatchRun) -> None:
        executor = lane.executor
        try:
            async with lane.lock:
                found: AsyncIterator[Outcomes] = executor.arun(run.requests, run.took.append)
                async with contextlib.aclosing(found) as steps:  # type: ignore[type-var]
                    async for outcomes in steps:
                        if executor.decoupled:
                            await run.room.acquire()
                        if run.is_left:
                            break
                        self._send_step(run, list(outcomes), False)
            self._end(run, None)
        except BaseException as error:
            self._end(run, _logged(error, run.requests[0]))

    def _send_step(self, run: _BatchRun, outcomes: list[InferResponse | GatewayError], last: bool) -> None:
        writer = self.channel.writer
        for outcome, request in zip(outcomes, run.requests, strict=True):
            if isinstance(outcome, GatewayError):
                _logged(outcome, request)
        try:
            sent = tuple([outcome_message(outcome, writer) for outcome in outcomes])
            self.channel.send(RunStep(run.number, sent, run.take_times(), last))
        except Exception as error:  # no memory for so large an answer, or what msgpack cannot say
            self._end(run, _logged(error, run.requests[0]))
            return
        if last:
            self._forget(run)

    def _end(self, run: _BatchRun, error: GatewayError | None) -> None:
        if self._runs.get(run.number) is not run:
            return
        self.channel.send(RunEnd(run.number, None if error is None else failure_of(0, error)))
        self._forget(run)
        if isinstance(error, DeviceLost):
            self.loop.call_later(0.2, os._exit, LOST_DEVICE)

    def _forget(self, run: _BatchRun) -> None:
        self._runs.pop(run.number, None)
        self._busy_at = self.loop.time()

    def _leave(self, message: LeaveRun) -> None:
        run = self._runs.get(message.run)
        if run is None:
            return
        if message.request >= len(run.requests):
            raise CrossingBroken(f"request {message.request} of {len(run.requests)}")
        left: Iterable[InferRequest] = run.requests if message.request < 0 else [run.requests[message.request]]
        if message.request < 0:
            run.is_left = True
        for request in left:
            request.cancellation.end()
        run.credit.release()
        run.room.release()

    def _credit(self, message: RunCredit) -> None:
        run = self._runs.get(message.run)
        if run is not None:
            for _ in range(min(message.answers, STREAM_CREDIT)):
                run.credit.release()
                run.room.release()

    def _lose_device(self, model: str, why: str) -> None:
        """The answers say so; then this process is of no use."""
        log.error("model %s has lost its device, and is started again: %s", model, why)


def _logged(error: BaseException, request: InferRequest) -> GatewayError:
    """The error that a request's caller may see. The log has it with its traceback, which stays in this process."""
    public = public_error(error, request)
    public.is_logged = True
    return public


def _refuse_others(name: str, ref: ModelRef) -> ModelView:
    raise _no_other_models(name)


def _no_other_models(name: str) -> Unsupported:
    return Unsupported(
        f"model '{name}' cannot ask other models from a process of its own: take out 'process: own' of this model, "
        "or compose the models by an ensemble"
    )


def _view(program: ModelProgram, computation: Computation) -> ModelView:
    """The model as its own code sees it in its requests."""
    return ModelView(
        program.name,
        program.version,
        (program.version,),
        {spec.name: spec for spec in computation.inputs},
        {spec.name: spec for spec in computation.outputs},
        computation.signatures,
        computation.max_batch_size,
        computation.platform,
        _Handle(program.name),
        computation.executors[0].decoupled,
        computation.executors[0].merges,
        computation.sees_requests,
        devices=computation.places,
    )
