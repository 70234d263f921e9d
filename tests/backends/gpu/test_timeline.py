"""What the GPU really does, by its own record of copies and kernels: not what the engine counts."""

from __future__ import annotations

import asyncio
import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runtimes import CUDA, Span, profiled, runtimes, spans

from benchmarks import networks
from benchmarks.engine_room import Plan, ask, loaded
from tensorgate.gateway.contract.tensor import DTYPES, TensorSpec

ON_GPU = [each for each in runtimes() if each.values[1] == CUDA]
SHAPE = (3, 64, 64)
ROWS = 64
BATCHES = 12


def test_a_record_is_read() -> None:
    """As torch's profiler writes it."""

    def event(category: str, name: str, at: float, lasts: float, **facts: Any) -> dict[str, Any]:
        return {"ph": "X", "cat": category, "name": name, "ts": at, "dur": lasts, "args": facts}

    trace = {
        "traceEvents": [
            {"ph": "M", "name": "process_name", "args": {"name": "python"}},
            event("cuda_runtime", "cudaLaunchKernel", 0, 1),
            event("kernel", "sm90_xmma_gemm", 6, 5),
            event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 1, 3, bytes=256),
            event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 10, 2, bytes=64),
            event("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 20, 1, bytes=8),
        ]
    }
    read = spans(trace)
    assert read == [Span("in", 1, 4, 256), Span("kernel", 6, 11, 0), Span("out", 10, 12, 64), Span("within", 20, 21, 8)]
    assert read[1].overlaps(read[2])
    assert not read[0].overlaps(read[1])


@pytest.fixture
def plan(request: pytest.FixtureRequest, tmp_path: Path) -> Plan:
    """A network that takes a while, of the runtime that is asked for."""
    path = tmp_path / "model"
    if request.param == "onnx":
        networks.resnet50(path, size=SHAPE[1], width=16, classes=10)
    else:
        torch_networks = importlib.import_module("benchmarks.torch_networks")
        torch_networks.save(torch_networks.resnet50(16, 10), path, np.zeros((2, *SHAPE), np.float32))
    x, y = TensorSpec("x", DTYPES["FP32"], (-1, *SHAPE)), TensorSpec("y", DTYPES["FP32"], (-1, 10))
    return Plan(request.param, path, CUDA, ROWS, x, y, {})


def recorded(plan: Plan, callers: int, torch: Any) -> list[Span]:
    """The GPU's work while so many callers ask for whole batches, BATCHES in all."""
    found: list[Span] = []
    x = np.random.default_rng(0).standard_normal((ROWS, *SHAPE), np.float32)

    async def work() -> None:
        async with loaded(plan) as running:
            await ask(running, x)
            begun, over = asyncio.Event(), asyncio.Event()
            loop = asyncio.get_running_loop()

            def watch() -> None:
                def meanwhile() -> None:
                    loop.call_soon_threadsafe(begun.set)
                    asyncio.run_coroutine_threadsafe(over.wait(), loop).result()

                found.extend(profiled(meanwhile))

            watching = asyncio.ensure_future(asyncio.to_thread(watch))
            await begun.wait()
            left = iter(range(BATCHES))

            async def caller() -> None:
                for _ in left:
                    await ask(running, x)

            await asyncio.gather(*[caller() for _ in range(callers)])
            over.set()
            await watching

    asyncio.run(work())
    return found


@pytest.mark.parametrize("plan", [each.values[0] for each in ON_GPU], indirect=True)
@pytest.mark.gpu
def test_one_copy_in_and_one_out(plan: Plan, torch: Any) -> None:
    """Whole batches: each crosses once, and nothing else of that size does. Small ones are a runtime's own."""
    found = recorded(plan, 1, torch)
    taken, given = ROWS * int(np.prod(SHAPE)) * 4, ROWS * 10 * 4
    assert [span.nbytes for span in found if span.kind == "in" and span.nbytes >= given] == [taken] * BATCHES
    assert [span.nbytes for span in found if span.kind == "out" and span.nbytes >= given] == [given] * BATCHES


@pytest.mark.parametrize("plan", [each.values[0] for each in ON_GPU], indirect=True)
@pytest.mark.gpu
def test_a_batch_is_copied_while_another_is_computed(plan: Plan, torch: Any) -> None:
    found = recorded(plan, 4, torch)
    kernels = [span for span in found if span.kind == "kernel"]
    copies = [span for span in found if span.kind == "in" and span.nbytes > 1 << 20]
    hidden = sum(any(copy.overlaps(kernel) for kernel in kernels) for copy in copies)
    assert len(copies) == BATCHES
    assert hidden >= BATCHES // 2, f"{hidden} of {BATCHES} copies ran beside kernels"
