"""The file of responses that differed: one JSON object per line, bounded in rate and size.

When the file reaches half of max_bytes, it is renamed to FILE.1, replacing an older one.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tensorgate.gateway.config import DifferenceSamples
from tensorgate.gateway.contract.canonical import InferResponse, ModelView
from tensorgate.gateway.contract.errors import GatewayError
from tensorgate.gateway.contract.tensor import BYTES, DATATYPES, Array, Tensors
from tensorgate.gateway.routing.response_diff import TensorDiff

log = logging.getLogger(__name__)

_MAX_ELEMENTS: Final = 4096
"""Of larger inputs, a sample has only datatype and shape."""
_MAX_TEXT: Final = 1000


@dataclass(slots=True, eq=False)
class ModelOutcome:
    """A model's response or error to a request, and the time until it, in seconds."""

    view: ModelView
    outcome: InferResponse | GatewayError
    seconds: float


class DiffSampleFile:
    """Writes samples. Call `has_room` on the event loop, `write` in a thread, one call at a time."""

    def __init__(self, config: DifferenceSamples) -> None:
        self.inputs = config.inputs
        self._path = config.file.path
        self._max_bytes = config.max_bytes // 2
        self._every_s = 60 / config.rate_per_minute
        self._next = 0.0

    def has_room(self) -> bool:
        """Whether the rate allows a sample now; True counts one."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self._every_s
        return True

    def write(self, make: Callable[..., Mapping[str, Any]], *about: Any) -> None:
        """Write `make(*about)` as a line. An OSError is logged and not raised."""
        line = json.dumps(make(*about), ensure_ascii=False, allow_nan=False).encode("utf-8", "backslashreplace") + b"\n"
        if len(line) > self._max_bytes:
            return
        try:
            if self._path.exists() and self._path.stat().st_size + len(line) > self._max_bytes:
                self._path.replace(rotated(self._path))
            with self._path.open("ab") as file:
                file.write(line)
        except OSError as error:
            log.error("a sample of a difference cannot be written: %s", error.strerror or error)


def rotated(path: Path) -> Path:
    """The name that a full file gets."""
    return path.with_name(f"{path.name}.1")


def diff_sample(
    about: Mapping[str, Any],
    primary: ModelOutcome,
    shadow: ModelOutcome,
    found: Sequence[TensorDiff],
    inputs: Tensors | None,
) -> Mapping[str, Any]:
    """One sample, as plain data."""
    sample = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        **about,
        "primary": _side(primary),
        "shadow": _side(shadow),
        "outputs": [_plain(each) for each in found],
    }
    return sample | ({"inputs": {name: _input(array) for name, array in inputs.items()}} if inputs is not None else {})


def read_diff_samples(path: Path) -> Iterator[Mapping[str, Any]]:
    """The samples of FILE.1 and FILE, oldest first; lines that are no sample are skipped. Raises OSError if there is no
    such file.
    """
    for part in (rotated(path), path):
        if part == path or part.exists():
            with part.open("rb") as file:
                for line in file:
                    try:
                        sample = json.loads(line)
                    except ValueError:  # cut short by a full disk, or still being written
                        continue
                    if isinstance(sample, dict) and "result" in sample:
                        yield sample


def _side(side: ModelOutcome) -> Mapping[str, Any]:
    handle: Any = side.view.handle
    said: dict[str, Any] = {"model": handle.name, "version": side.view.version, "seconds": round(side.seconds, 6)}
    if isinstance(side.outcome, GatewayError):
        said["error"] = {"kind": type(side.outcome).__name__, "text": str(side.outcome)[:_MAX_TEXT]}
    return said


def _plain(found: TensorDiff) -> Mapping[str, Any]:
    plain: dict[str, Any] = {"output": found.output, "what": found.what}
    plain |= {key: form for key, form in (("primary", found.primary), ("shadow", found.shadow)) if form}
    if found.elements:
        plain |= {"elements": found.elements, "beyond": found.beyond}
        plain |= {"max_absolute": _number(found.max_absolute), "max_relative": _number(found.max_relative)}
        plain["first"] = [[list(index), mine, theirs] for index, mine, theirs in found.first]
    return plain


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _input(array: Array) -> Mapping[str, Any]:
    said: dict[str, Any] = {"datatype": DATATYPES[array.dtype], "shape": list(array.shape)}
    if array.size > _MAX_ELEMENTS or (array.dtype == BYTES and sum(map(len, array.reshape(-1))) > _MAX_ELEMENTS):
        return said
    if array.dtype == BYTES:
        said["data"] = [element.decode("utf-8", "backslashreplace") for element in array.reshape(-1)]
    elif array.dtype.kind in "iub":
        said["data"] = array.reshape(-1).tolist()
    else:
        said["data"] = [_number(float(value)) for value in array.reshape(-1)]
    return said
