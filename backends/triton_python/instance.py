"""One instance of a user's TritonPythonModel: loaded, initialized, executed and finalized in a thread of its own."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tensorgate.backends.execution.failures import failure_of
from tensorgate.backends.triton_python.calls import ModelCalls
from tensorgate.backends.triton_python.exchange import Run
from tensorgate.backends.triton_python.model_config import TritonModelConfig, is_decoupled
from tensorgate.backends.triton_python.modules import ModelPackage
from tensorgate.backends.triton_python.request import InferenceRequest
from tensorgate.backends.triton_python.response import InferenceResponse
from tensorgate.backends.triton_python.thread import ModelThread
from tensorgate.backends.triton_python.utils import NAMES, make_utils
from tensorgate.gateway.contract.backend import ModelSource
from tensorgate.gateway.contract.errors import InvalidArgument, text_of

log: Final = logging.getLogger(__name__)
_NOT_ITERATIVE: Final = (
    "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to handle "
    "such a flag"
)
FINALIZE_WITHIN_S: Final = 10.0
"""A model that takes longer to finalize is left to itself."""


class TritonPythonInstance:
    """A loaded model. Raises ValueError, with what the model raised, if it cannot be loaded."""

    def __init__(
        self,
        source: ModelSource,
        file: Path,
        config: Mapping[str, Any],
        number: int,
        kind: str,
        device: int,
        *,
        iterative: bool = False,
    ) -> None:
        self._iterative = iterative
        self.name = f"{_group_name(source.name, config)}_{number}"
        self._model_name = source.name
        self.calls = ModelCalls(source.resolve, self._parent)
        self._current: Run | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = ModelThread(self.name)
        utils = make_utils(source.name, self.calls)
        folders = [each for each in (file.parent, file.parent.parent) if source.may_run(each)]
        self._package = ModelPackage(folders, dict.fromkeys(NAMES, utils))
        self._requests: type[InferenceRequest] = utils.InferenceRequest
        try:
            self.config = self._thread.call(lambda: self._load(file, config))
            self.decoupled = is_decoupled(self.config)
            self._outputs = [tensor["name"] for tensor in self.config["output"]]
            self._thread.call(lambda: self._initialize(source, file, kind, device))
        except BaseException as error:
            self._thread.stop()
            self._package.forget()
            text = _message(error) if isinstance(error, Exception) else type(error).__name__
            raise ValueError(f"{file.name} failed: {text}") from error
        self._begin = self._execute
        if inspect.iscoroutinefunction(self._model.execute):
            self._begin = self._start_task
            self._thread.become_loop()

    # ---------------------------------------------------------------------------------------------------------- loading

    def _load(self, file: Path, config: Mapping[str, Any]) -> dict[str, Any]:
        """Import the file, and let it complete its configuration."""
        module = self._package.load(file)
        model = getattr(module, "TritonPythonModel", None)
        if not callable(getattr(model, "execute", None)):
            raise ValueError("it has no class TritonPythonModel with a method execute(self, requests)")
        self._model: Any = model
        complete = getattr(model, "auto_complete_config", None)
        if complete is None:
            return dict(config)
        completed = complete(TritonModelConfig(config))
        if not isinstance(completed, TritonModelConfig):
            raise ValueError("auto_complete_config must return the ModelConfig that it was given")
        return completed.as_dict()

    def _initialize(self, source: ModelSource, file: Path, kind: str, device: int) -> None:
        self._model = self._model()
        initialize = getattr(self._model, "initialize", None)
        if initialize is not None:
            initialize(
                {
                    "model_config": json.dumps(self.config),
                    "model_instance_kind": kind,
                    "model_instance_name": self.name,
                    "model_instance_device_id": str(device),
                    "model_repository": str(file.parent.parent),
                    "model_version": str(source.version),
                    "model_name": source.name,
                }
            )

    # -------------------------------------------------------------------------------------------------------- executing

    def start(self, run: Run) -> None:
        """Execute in the model's thread; answers come through the run's channels. On the loop."""
        self.calls.loop = run.loop
        self._thread.post(lambda: self._begin(run, None))

    def _execute(self, run: Run, again: list[InferenceRequest] | None) -> None:
        """`again`: those of its requests that are executed once more."""
        run.begun = True
        rescheduled: list[InferenceRequest] = []
        if not run.abandoned:
            self._current = run
            try:
                received = again or self._received(run)
                self._settle(received, self._model.execute(received))
                if run.may_reschedule:
                    rescheduled = self._rescheduled(received)
            except BaseException as error:  # a model may even raise SystemExit: its thread must outlive it
                self._failed(run, error)
            self._current = None
        self._go_on(run, rescheduled)

    def _start_task(self, run: Run, again: list[InferenceRequest] | None) -> None:
        run.begun = True
        if run.abandoned:
            run.finish()
            return
        task = asyncio.get_running_loop().create_task(self._aexecute(run, again))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _aexecute(self, run: Run, again: list[InferenceRequest] | None) -> None:
        rescheduled: list[InferenceRequest] = []
        if not self.decoupled:
            self._current = run
        try:
            received = again or self._received(run)
            self._settle(received, await self._model.execute(received))
            if run.may_reschedule:
                rescheduled = self._rescheduled(received)
        except BaseException as error:
            self._failed(run, error)
            if not isinstance(error, Exception):
                raise
        finally:
            if not self.decoupled:
                self._current = None
            self._go_on(run, rescheduled)

    def _go_on(self, run: Run, rescheduled: list[InferenceRequest]) -> None:
        """What is to be executed again waits behind the runs that wait by now."""
        if rescheduled:
            self._thread.post(lambda: self._begin(run, rescheduled))
        else:
            run.finish()

    def _received(self, run: Run) -> list[InferenceRequest]:
        """To be held until they are answered or execute has returned, and then by nobody but the model: so the gateway
        learns when it lets go of one.
        """
        received = [self._requests.received(channel, self._model_name, self._outputs) for channel in run.channels]
        if self._iterative:
            for request in received:
                request.begin_sequence()
        return received

    def _rescheduled(self, received: list[InferenceRequest]) -> list[InferenceRequest]:
        """Those that the model has released to be executed again. They fail where that is not its way."""
        rescheduled = [request for request in received if request.take_reschedule()]
        if self._iterative:
            return rescheduled
        for request in rescheduled:
            request.channel.fail(InvalidArgument(_NOT_ITERATIVE))
        return []

    def _settle(self, received: list[InferenceRequest], returned: Any) -> None:
        """What execute returned -> the channels. A model that answers through response senders returns None, for all
        requests or for some; and so it does for those that it reschedules.
        """
        if returned is None:
            return
        if self.decoupled:
            raise _BadReturn(
                f"Python model '{self.name}' is using the decoupled mode and the execute function must return None."
            )
        if not isinstance(returned, list):
            raise _BadReturn("Expected a list in the execute return value")
        if len(returned) != len(received):
            raise _BadReturn(
                "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
                f"InferenceRequest(s) size is:{len(received)}, and InferenceResponse(s) size is:{len(returned)}\n"
            )
        for response, request in zip(returned, received, strict=True):
            if not isinstance(response, InferenceResponse):
                _check_no_response(response, request)
            elif request.is_rescheduled:
                raise _BadReturn(
                    "Expected a None object in the execute function return list for reschduled request, "
                    f"found type '{type(response)}'."
                )
        for response, request in zip(returned, received, strict=True):
            if response is not None:
                request.channel.send(response, 0)

    def _failed(self, run: Run, error: BaseException) -> None:
        text = f"Failed to process the request(s) for model '{self.name}', message: {_message(error)}"
        failure = failure_of(error, self._model_name, text)
        if failure is not error and not isinstance(error, _BadReturn):
            failure.__cause__ = error  # for the log, which has it with the request that hears of it
        if not run.fail(failure):
            log.error("execute of %s failed after its last answer", self.name, exc_info=error)

    def _parent(self) -> Run | None:
        """The run that waits for what the calling thread asks of other models.

        One that answers once holds its instance until it is answered, so whoever calls, calls for it. Of a decoupled
        one that is known only in the thread of execute.
        """
        return self._current if not self.decoupled or self._thread.is_current else None

    # ---------------------------------------------------------------------------------------------------------- closing

    def close(self) -> None:
        """Finalize, and forget the model's modules. What finalize raises is logged."""
        self._thread.leave_loop()
        try:
            self._thread.call(self._finalize, FINALIZE_WITHIN_S)
        except TimeoutError:
            log.error("finalize of %s did not end within %g s", self.name, FINALIZE_WITHIN_S)
        except BaseException as error:
            log.error("finalize of %s failed", self.name, exc_info=error)
        self._thread.stop()
        self._package.forget()

    def _finalize(self) -> None:
        finalize = getattr(self._model, "finalize", None)
        if finalize is not None:
            finalize()
        self._model = None


class _BadReturn(Exception):
    """What execute returned is not what it has to return."""


def _check_no_response(returned: Any, request: InferenceRequest) -> None:
    """None stands for an answer that comes by a response sender, or when the request is executed again."""
    if returned is not None or not (request.channel.sender_taken or request.is_rescheduled):
        raise _BadReturn(
            "Expected an 'InferenceResponse' object in the execute function return list, "
            f"found type '{type(returned)}'."
        )


def _group_name(model: str, config: Mapping[str, Any]) -> str:
    """What Triton calls the group that instances belong to, and are numbered in."""
    groups = config.get("instance_group") or [{"name": model}]
    return groups[0].get("name") or f"{model}_0"


def _message(error: BaseException) -> str:
    """What an exception says for itself, without a traceback and its paths: "ValueError: no such word"."""
    if isinstance(error, _BadReturn):
        return text_of(error)
    text = text_of(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
