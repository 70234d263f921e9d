"""The backend: rows of numbers to a classic model, and what it predicts back, in the types that the YAML declares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from pydantic import Field

from tensorgate.backends.classic.library import read
from tensorgate.backends.execution.device import open_device
from tensorgate.gateway.contract.backend import Backend, BackendKind, Described, ModelSource
from tensorgate.gateway.contract.canonical import InferRequest
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.tensor import BYTES, Tensors

FILES: Final = ("model.ubj", "model.json", "model.txt", "model.skops")


class ClassicOptions(Options):
    """A model of XGBoost, LightGBM or scikit-learn, computed by its library; `tensorgate import FILE` writes it."""

    file: str = Field("", description=f"Name of the file in each version folder; empty: {' or '.join(FILES)}.")
    trusted: bool = Field(
        False,
        description="Whether the file is trusted as a program would be: these libraries read it by code that was not "
        "made for files of strangers. Without it the model is not loaded.",
    )


class ClassicBackend(Backend):
    """One model. Raises ValueError for one that is not trusted, cannot be read, or has no inputs declared."""

    merges = True

    def __init__(self, source: ModelSource) -> None:
        described = _describe(source)
        self.inputs = described.inputs
        self.outputs = described.outputs
        self.max_batch_size = described.max_batch_size
        self.device = open_device("cpu")
        file = _file(source.path, source.options.file)
        if not source.options.trusted:
            raise ValueError(
                f"{file} is read by the library that wrote it; say trusted: true if you know where it comes from"
            )
        self._model = read(file, trusted=True)
        self.platform = self._model.library.lower().replace("-", "_")
        (self._input,) = self.inputs

    def infer(self, tensors: Tensors, outputs: Sequence[str], requests: Sequence[InferRequest]) -> Iterator[Tensors]:
        x = tensors[self._input.name]
        if x.shape[-1] != self._model.features:
            raise InvalidArgument(f"{x.shape[-1]} features in a row, and the model has {self._model.features}")
        found = self._model.predict(x)
        yield {
            spec.name: found[spec.name] if spec.dtype == BYTES else np.asarray(found[spec.name], spec.dtype)
            for spec in self.outputs
        }


def _describe(source: ModelSource) -> Described:
    """What the YAML declares: the file is not read for it."""
    if len(source.inputs) != 1 or not source.outputs:
        raise ValueError("a classic model needs its input and outputs declared; tensorgate import FILE writes them")
    if source.max_batch_size == "auto":
        raise ValueError("a classic model needs max_batch_size as a number")
    return Described(source.inputs, source.outputs, source.max_batch_size)


def _file(path: Path, name: str) -> Path:
    """The file in a version's folder, or the path itself. Raises ValueError if there is none."""
    if path.is_file():
        return path
    for each in (name,) if name else FILES:
        if (path / each).is_file():
            return path / each
    raise ValueError(f"no {name or ' or '.join(FILES)} in {path}")


KIND = BackendKind(
    ClassicOptions, ClassicBackend, runs_code=True, describe=_describe, own_process=True, needs_own_process=True
)
