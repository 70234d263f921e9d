"""A run of `benchmarks.gpu`: where it computes, with which models, and what it found."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engine_room import Plan
from benchmarks.table import table
from tensorgate.gateway.contract.tensor import DTYPES, TensorSpec

Line = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Network:
    """A model in the sizes of this run."""

    name: str
    shape: tuple[int, ...]
    classes: int
    batches: tuple[int, ...]
    widths: tuple[int, ...]

    def make(self, backend: str, folder: Path, dtype: Any) -> Path:
        """Its version's folder, made the first time; `folder` / name-backend is the model's."""
        path = folder / f"{self.name}-{backend}" / "1"
        if path.exists():
            return path
        if backend == "onnx":
            networks = importlib.import_module("benchmarks.networks")
            if self.name == "mlp":
                return networks.mlp(path, self.widths, dtype)  # type: ignore[no-any-return]
            return networks.resnet50(path, dtype, self.shape[1], self.widths[0], self.classes)  # type: ignore[no-any-return]
        networks = importlib.import_module("benchmarks.torch_networks")
        module = networks.mlp(self.widths) if self.name == "mlp" else networks.resnet50(self.widths[0], self.classes)
        return networks.save(module, path, np.zeros((2, *self.shape), dtype))  # type: ignore[no-any-return]


FULL = (
    Network("resnet50", (3, 224, 224), 1000, (32, 128), (64,)),
    Network("mlp", (1024,), 256, (256,), (1024, 4096, 4096, 256)),
)
SMALL = (Network("resnet50", (3, 32, 32), 10, (4,), (4,)), Network("mlp", (64,), 16, (16,), (64, 128, 16)))


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a run. `against` is what the raw model or the other way gave, in the same unit."""

    section: str
    name: str
    value: float
    unit: str
    against: float | None = None
    mark: str = ""

    @property
    def ratio(self) -> float | None:
        """How the value compares."""
        return self.value / self.against if self.against else None


@dataclass(slots=True)
class Report:
    """What the sections say. `missed` are marks, `failed` sections, `missing` what this machine cannot do."""

    judged: bool
    figures: list[Figure] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def add(
        self, section: str, name: str, value: float, unit: str, against: float | None = None, mark: str = ""
    ) -> None:
        """Keep a number for the table at the end and for the file."""
        self.figures.append(Figure(section, name, value, unit, against, mark))

    def mark(self, what: str, value: float, least: float) -> str:
        """How a value compares with its mark, in a word."""
        if not self.judged:
            return ""
        if value >= least:
            return "reached"
        self.missed.append(f"{what}: {value:.2f}, must reach {least}")
        return "missed"

    def fail(self, name: str, error: Exception) -> None:
        """A part that came to nothing."""
        self.failed.append(f"{name}: {type(error).__name__}: {error}")
        traceback.print_exception(error)

    def summary(self) -> str:
        """All numbers in one table."""
        head = ("section", "what", "value", "", "against", "ratio", "")
        lines = [
            (
                each.section,
                each.name,
                shown(each.value),
                each.unit,
                "-" if each.against is None else shown(each.against),
                "-" if each.ratio is None else f"{each.ratio:.2f}",
                each.mark,
            )
            for each in self.figures
        ]
        return table(head, lines, left=2)

    def facts(self) -> dict[str, Any]:
        """For the file."""
        return {
            "figures": [asdict(each) for each in self.figures],
            "missed": self.missed,
            "failed": self.failed,
            "missing": self.missing,
        }


def declared(plan: Plan) -> dict[str, Any]:
    """What a configuration says of the plan's tensors: files of some kinds do not tell them."""
    return {
        key: [{"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape or ())}]
        for key, spec in (("inputs", plan.x), ("outputs", plan.y))
    }


def shown(value: float) -> str:
    """In as many digits as one reads."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


@dataclass(frozen=True, slots=True)
class Setting:
    """The run: where, with what, how long."""

    device: str
    backends: tuple[str, ...]
    networks: tuple[Network, ...]
    dtype: str
    rounds: int
    seconds: float
    folder: Path
    report: Report

    @property
    def on_gpu(self) -> bool:
        return self.device != "cpu"

    @property
    def xp(self) -> Any:
        return importlib.import_module("cupy") if self.on_gpu else np

    @property
    def options(self) -> dict[str, Any]:
        """Of every model, and of the raw session beside it."""
        return {} if self.on_gpu else {"intra_op_threads": 1}

    def plan(self, backend: str, network: Network, batch: int, **options: Any) -> Plan:
        x = TensorSpec("x", DTYPES[self.dtype], (-1, *network.shape))
        y = TensorSpec("y", DTYPES[self.dtype], (-1, network.classes))
        path = network.make(backend, self.folder, DTYPES[self.dtype])
        return Plan(backend, path, self.device, batch, x, y, self.options | options)

    def models(self) -> Iterator[tuple[str, Network]]:
        yield from ((backend, network) for backend in self.backends for network in self.networks)

    def input(self, network: Network, rows: int) -> Any:
        return np.random.default_rng(1).standard_normal((rows, *network.shape), np.float32).astype(DTYPES[self.dtype])

    def check(self, got: Any, want: Any) -> None:
        """Raise ValueError where two ways give different numbers."""
        tolerance = 5e-2 if self.dtype == "FP16" else 5e-3
        if not np.allclose(got.astype(np.float32), want.astype(np.float32), tolerance, tolerance):
            raise ValueError("the engine gives other numbers than the raw model")

    async def attempt(self, name: str, work: Awaitable[Sequence[Line]]) -> Sequence[Line]:
        """The lines, or none if they could not be had: the others go on."""
        try:
            return await work
        except Exception as error:
            self.report.fail(name, error)
            return []
