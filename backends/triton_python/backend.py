"""The backend `triton_python`: a Triton Python model, unchanged."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pydantic import Field

from tensorgate.backends.execution.device import Device, open_device
from tensorgate.backends.triton_python.exchange import Run
from tensorgate.backends.triton_python.instance import TritonPythonInstance
from tensorgate.backends.triton_python.metrics import collect
from tensorgate.backends.triton_python.model_config import initial_config, specs_of
from tensorgate.gateway.contract.backend import BackendKind, Described, ModelSource, RequestBackend
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse
from tensorgate.gateway.contract.errors import GatewayError
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.tensor import DTYPES, TensorSpec, of_any_rows

IN_FLIGHT: Final = 256
"""Requests of a decoupled model that may be open at once; execute is called for one at a time all the same."""

_lock: Final = threading.Lock()
_numbers: Final[set[tuple[str, int]]] = set()


class TritonPythonOptions(Options):
    """A Python model as Triton runs it."""

    file: str = "model.py"
    """The file with the class TritonPythonModel, in each version's folder."""
    decoupled: bool = False
    """Whether a request may have any number of answers, sent through response senders."""
    iterative: bool = False
    """Whether a request that execute releases with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE is executed again: Triton's
    sequence_batching.iterative_sequence."""
    triton_config: dict[str, Any] = Field(default_factory=dict)
    """The model's configuration in the field names of Triton's ModelConfig; empty is what the rest of the YAML says."""


class TritonPythonBackend(RequestBackend):
    """One instance. The model's own configuration says what it takes and gives.

    `max_batch_size` is what that configuration says in the end, completed by the model itself. Raises ValueError if
    the model cannot be loaded or nothing says its inputs and outputs.
    """

    platform = "python"

    def __init__(self, source: ModelSource) -> None:
        options: Any = source.options
        file = _file(source)
        # In Triton, too, Python models are on the CPU unless their configuration says otherwise.
        self.device = Device() if source.device == "auto" else open_device(source.device)
        kind = "CPU" if self.device.name == "cpu" else "GPU"
        config = initial_config(source, options.triton_config, decoupled=options.decoupled)
        number = _take_number(source.name)
        with contextlib.ExitStack() as undo:
            undo.callback(_numbers.discard, (source.name, number))
            self._instance = TritonPythonInstance(
                source, file, config, number, kind, self.device.index, iterative=options.iterative
            )
            undo.callback(self._instance.close)
            config = self._instance.config
            self._take_specs(source, config, declared=not options.triton_config)
            self._close = undo.pop_all().close
        self.decoupled = self._instance.decoupled
        self.batches_sequences = not self.decoupled and getattr(options, "sequences", None) is not None
        self.merges = self.batches_sequences or (not self.decoupled and "dynamic_batching" in config)
        self.in_flight = IN_FLIGHT if self.decoupled else 1
        own = {spec.name: of_any_rows(spec, self.max_batch_size) for spec in source.outputs}
        # What the model's own configuration says is not held against it: Triton does not do so either.
        self._specs = {spec.name: own.get(spec.name, replace(spec, shape=None)) for spec in self.outputs}

    def _take_specs(self, source: ModelSource, config: Mapping[str, Any], *, declared: bool) -> None:
        """What the YAML declares has whole shapes, so its max_batch_size stands; else the configuration says all."""
        wanted = source.max_batch_size
        if declared and source.inputs and isinstance(wanted, int):
            self.max_batch_size = wanted
            self.inputs, self.outputs = source.inputs, source.outputs
        else:
            self.max_batch_size = int(config["max_batch_size"])
            batched = self.max_batch_size > 0
            self.inputs = specs_of(config["input"], batched=batched)
            self.outputs = specs_of(config["output"], batched=batched)
        self._take_sequence_tensors(source.options)
        if not self.outputs:
            raise ValueError(
                "nothing says what the model gives: neither outputs, nor triton_config, nor auto_complete_config"
            )

    def _take_sequence_tensors(self, options: Any) -> None:
        """Controls and states are not among the configuration's inputs and outputs, but the model gets and gives
        them.
        """
        sequences = getattr(options, "sequences", None)
        if sequences is None:
            return
        takes = [*sequences.controls, *sequences.states]
        self.inputs = _with(self.inputs, [(each.input, each.datatype) for each in takes])
        self.outputs = _with(self.outputs, [(each.output, each.datatype) for each in sequences.states])

    async def infer_each(
        self, requests: Sequence[InferRequest]
    ) -> AsyncGenerator[Sequence[InferResponse | GatewayError], None]:
        run = Run(requests, self._specs, decoupled=self.decoupled)
        for request in requests:
            request.cancellation.on_cut = run.note_cut
        try:
            self._instance.start(run)
            if not self.decoupled:
                yield await run.settled()
                return
            async with contextlib.aclosing(run.stream()) as answers:
                async for answer in answers:
                    yield (answer,)
        finally:
            for request in requests:
                request.cancellation.on_cut = None
            run.leave()

    def close(self) -> None:
        """The model's finalize, within its own thread."""
        self._close()


def _file(source: ModelSource) -> Path:
    options: Any = source.options
    file: Path = source.path if source.path.is_file() else source.path / options.file
    if not file.is_file():
        raise ValueError(f"there is no {options.file} in {source.path}")
    return file


def _describe(source: ModelSource) -> Described | None:
    """What the YAML declares, if it declares all: the model itself may complete the rest when it is loaded."""
    options: Any = source.options
    _file(source)
    wanted = source.max_batch_size
    if options.triton_config or not (source.inputs and source.outputs) or not isinstance(wanted, int):
        return None
    return Described(source.inputs, source.outputs, wanted, options.decoupled, as_requests=True)


def _with(specs: tuple[TensorSpec, ...], more: Sequence[tuple[str, str]]) -> tuple[TensorSpec, ...]:
    """Specifications, and further ones of any shape: (name, datatype)."""
    names = {spec.name for spec in specs}
    return (*specs, *(TensorSpec(name, DTYPES[datatype]) for name, datatype in more if name not in names))


def _take_number(model: str) -> int:
    """The lowest number that no loaded instance of this model has."""
    with _lock:
        number = next(number for number in range(len(_numbers) + 1) if (model, number) not in _numbers)
        _numbers.add((model, number))
    return number


KIND = BackendKind(
    TritonPythonOptions, TritonPythonBackend, runs_code=True, collect=collect, describe=_describe, own_process=True
)
