"""Whether ONNX Runtime answers as the library does: every label the same, every number within a tolerance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorgate.backends.classic.library import LABEL, PROBABILITIES
from tensorgate.gateway.contract.tensor import Array


@dataclass(frozen=True, slots=True)
class OutputProof:
    """One output, compared: in how many rows it is the same bit for bit, and the row in which it differs most.

    `deviation` is relative to the value, or to the output's root mean square where that is larger; of labels it is 0
    or infinite. `ties` are the rows with another label whose two best classes are equally likely to the library.
    """

    name: str
    rows: int
    equal: int
    deviation: float
    row: int
    want: str
    got: str
    ties: int = 0

    def line(self) -> str:
        """For people."""
        if self.equal == self.rows:
            return f"{self.name}: the same bits in all rows"
        found = f"{self.name}: the same bits in {self.equal} rows of {self.rows}; row {self.row} differs most"
        apart = f" ({self.deviation:.2g} relative)" if 0 < self.deviation < np.inf else ""
        ties = f" ({self.ties} are ties of two classes)" if self.ties else ""
        return f"{found}: {self.got} for {self.want}{apart}{ties}"


@dataclass(frozen=True, slots=True)
class Proof:
    """All outputs, compared; it holds where each is within the tolerance."""

    outputs: tuple[OutputProof, ...]
    tolerance: float

    @property
    def holds(self) -> bool:
        return all(each.deviation <= self.tolerance for each in self.outputs)

    def lines(self) -> Iterator[str]:
        yield from (each.line() for each in self.outputs)
        yield ("holds" if self.holds else "fails") + f": labels are equal, numbers within {self.tolerance:g}"


def run_onnx(made: bytes, x: Array) -> Mapping[str, Array]:
    """What ONNX Runtime answers on the CPU. Raises what it does."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(made, options, providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(names, {given.name: x}), strict=True))


def compare(
    want: Mapping[str, Array], got: Mapping[str, Array], tolerance: float, *, allow_ties: bool = False
) -> Proof:
    """The library's outputs with those of ONNX Runtime. `allow_ties`: where two classes are equally likely, either
    label will do. Raises ValueError if an output is missing, or has another shape.
    """
    found = []
    for name, array in want.items():
        if name not in got:
            raise ValueError(f"ONNX has no output {name}")
        other = _shaped(name, array, np.asarray(got[name]))
        if name == LABEL:
            ties = _ties(want.get(PROBABILITIES), len(array), tolerance)
            found.append(_compare_labels(array, other, ties, allow_ties=allow_ties))
        else:
            found.append(_compare(name, array, other))
    return Proof(tuple(found), tolerance)


def _ties(probabilities: Array | None, rows: int, tolerance: float) -> Array:
    """The rows whose two best classes are equally likely."""
    if probabilities is None:
        return np.zeros(rows, np.bool_)
    best = np.sort(probabilities, 1)
    return np.asarray(best[:, -1] - best[:, -2] <= tolerance)


def _compare_labels(want: Array, got: Array, ties: Array, *, allow_ties: bool) -> OutputProof:
    if want.dtype.kind == "O":
        got = np.array([each.encode() if isinstance(each, str) else each for each in got.tolist()], np.object_)
    differ = want != got
    wrong = differ & ~ties
    row = int((wrong if wrong.any() else differ).argmax())
    fails = wrong.any() or (differ.any() and not allow_ties)
    equal, tied = len(want) - int(differ.sum()), int((differ & ties).sum())
    texts = _text(want[row]), _text(got[row])
    return OutputProof(LABEL, len(want), equal, np.inf if fails else 0.0, row, texts[0], texts[1], tied)


def _text(label: Any) -> str:
    return label.decode() if isinstance(label, bytes) else str(label)


def _compare(name: str, want: Array, got: Array) -> OutputProof:
    narrow = np.result_type(want.dtype, got.dtype) if want.dtype == got.dtype else np.dtype(np.float32)
    same = _same(want.astype(narrow), got.astype(narrow))
    wide, other = want.astype(np.float64).reshape(len(want), -1), got.astype(np.float64).reshape(len(got), -1)
    size = np.maximum(np.abs(wide), np.sqrt(np.nanmean(wide**2)))
    with np.errstate(invalid="ignore", divide="ignore"):
        apart = np.where(_same(wide, other), 0.0, np.abs(other - wide) / np.where(size > 0, size, 1.0))
    apart = np.where(np.isnan(apart), np.inf, apart)
    row, column = np.unravel_index(int(apart.argmax()), apart.shape)
    return OutputProof(
        name,
        len(want),
        int(same.reshape(len(want), -1).all(1).sum()),
        float(apart.max()),
        int(row),
        f"{wide[row, column]:.9g}",
        f"{other[row, column]:.9g}",
    )


def _same(one: Array, other: Array) -> Array:
    return np.asarray((one == other) | (np.isnan(one) & np.isnan(other)))


def _shaped(name: str, want: Array, got: Array) -> Array:
    """A vector and a matrix of one column are alike."""
    if want.shape == got.shape:
        return got
    if len(want) == len(got) and want.size == got.size:
        return got.reshape(want.shape)
    raise ValueError(f"output {name} has the shape {list(got.shape)}, and the library's has {list(want.shape)}")
