"""Memory: what a model took comes back when it goes, and who wants too much has that trouble alone."""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from runtimes import CUDA, can_run, runtimes

from benchmarks import networks
from benchmarks.engine_room import Plan, ask, loaded
from tensorgate.backends.execution.failures import free_pools
from tensorgate.gateway.contract.errors import OutOfMemory
from tensorgate.gateway.contract.tensor import DTYPES, TensorSpec

CYCLES = {CUDA: 100, "cpu": 20}
SETTLES_AFTER = 5
"""Cycles after which libraries have loaded what they keep: kernels, handles, workspaces."""
WIDTHS = (256, 2048, 2048, 64)
"""19 MiB of weights: one copy that stays would be seen."""
WEIGHTS_BYTES = 4 * sum(takes * gives for takes, gives in pairwise(WIDTHS))
TOO_MUCH = 1 << 45
"""Numbers that no machine has room for: the allocator refuses at once."""


def used_bytes(place: str) -> int:
    """Of the GPU by whomever, or of the host by this process."""
    if place == "cpu":
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    cupy = importlib.import_module("cupy")
    with cupy.cuda.Device(int(place[-1])):
        free, total = cupy.cuda.runtime.memGetInfo()
    return int(total - free)


def cases() -> list[Any]:
    """Runtime, place, with graphs: on a GPU alone, since the whole of it is measured."""
    made = []
    for each in runtimes():
        runtime, place = each.values
        marks = [*each.marks, *([pytest.mark.alone] if place == CUDA else [])]
        for graphs in (False, True) if place == CUDA else (False,):
            name = f"{each.id} {'graphs' if graphs else 'plain'}"
            made.append(pytest.param(runtime, place, graphs, id=name, marks=marks))
    return made


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("runtime", "place", "cuda_graph"), cases())
async def test_a_hundred_models_come_and_go(runtime: str, place: str, cuda_graph: bool, tmp_path: Path) -> None:
    """Within one percent of the GPU's memory in use; on the host, whose allocator keeps some, a few models' weights."""
    path = tmp_path / "model"
    if runtime == "onnx":
        networks.mlp(path, WIDTHS)
    else:
        torch_networks = importlib.import_module("benchmarks.torch_networks")
        torch_networks.save(torch_networks.mlp(WIDTHS), path, np.zeros((2, WIDTHS[0]), np.float32))
    x = TensorSpec("x", DTYPES["FP32"], (-1, WIDTHS[0]))
    y = TensorSpec("y", DTYPES["FP32"], (-1, WIDTHS[-1]))
    plan = Plan(runtime, path, place, 8, x, y, {"cuda_graph": cuda_graph})
    rows = np.ones((8, WIDTHS[0]), np.float32)
    want: Any = None
    used = []
    for _ in range(SETTLES_AFTER + CYCLES[place]):
        async with loaded(plan) as running:
            answers = await asyncio.gather(*[ask(running, rows[: 1 + number]) for number in range(8)])
        del running
        want = answers[7] if want is None else want
        np.testing.assert_allclose(answers[7], want, rtol=1e-3, atol=1e-3)
        gc.collect()
        used.append(used_bytes(place))
    grown = used[-1] - used[SETTLES_AFTER]
    assert grown <= (used[SETTLES_AFTER] * 0.01 if place == CUDA else 6 * WEIGHTS_BYTES), used[SETTLES_AFTER::10]


# -------------------------------------------------------------------------------------------------------- out of memory


def zeros(path: Path) -> Path:
    """INT64 n [1] -> FP32 y [n], an ONNX model: as large as its caller likes."""
    n = helper.make_tensor_value_info("n", onnx.TensorProto.INT64, [1])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["N"])
    nodes = [helper.make_node("ConstantOfShape", ["n"], ["z"]), helper.make_node("Exp", ["z"], ["y"])]
    made = helper.make_model(
        helper.make_graph(nodes, "zeros", [n], [y]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    (path / "1").mkdir(parents=True)
    onnx.save(made, path / "1/model.onnx")
    return path


LARGE = """
    class Large:
        def __init__(self, context):
            self.xp = context.xp

        def infer(self, inputs, request):
            return {"y": self.xp.ones(int(inputs["n"][0]), "f4")}
"""
N, Y = {"name": "n", "datatype": "INT64", "shape": [1]}, {"name": "y", "datatype": "FP32", "shape": [-1]}


async def test_one_who_asks_for_too_much(place: str, models: Any, tmp_path: Path) -> None:
    """He is told, again and again; others meanwhile and afterwards get theirs."""
    path = models.write("large.py", LARGE) + ":Large"
    wanted = {"python": {"backend": "python", "path": path, "device": place, "inputs": [N], "outputs": [Y]}}
    if place == "cpu" or can_run("onnx"):
        wanted["onnx"] = {"backend": "onnx", "path": str(zeros(tmp_path / "zeros")), "device": place}
    await models.load(wanted)
    for name in wanted:
        for count in (3, TOO_MUCH, 5, TOO_MUCH, 1000):
            asked = models.ask(name, n=np.array([count], np.int64))
            if count == TOO_MUCH:
                with pytest.raises(OutOfMemory):
                    await asked
            else:
                np.testing.assert_array_equal((await asked).outputs["y"], np.ones(count, np.float32))


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize(("runtime", "place"), [each for each in runtimes() if each.values[1] == CUDA])
async def test_a_full_gpu_recovers(runtime: str, place: str, tmp_path: Path) -> None:
    """Somebody else takes all that is left; a batch fails as out of memory; once it is given back all run."""
    cupy = importlib.import_module("cupy")
    path = tmp_path / "model"
    if runtime == "onnx":
        networks.resnet50(path, size=64, width=16, classes=10)
    else:
        torch_networks = importlib.import_module("benchmarks.torch_networks")
        torch_networks.save(torch_networks.resnet50(16, 10), path, np.zeros((2, 3, 64, 64), np.float32))
    x, y = TensorSpec("x", DTYPES["FP32"], (-1, 3, 64, 64)), TensorSpec("y", DTYPES["FP32"], (-1, 10))
    async with loaded(Plan(runtime, path, place, 4096, x, y, {})) as running:
        rows = np.random.default_rng(0).standard_normal((1024, 3, 64, 64), np.float32)
        small = await ask(running, rows[:2])
        free_pools()  # or a batch has what the load's batches have left
        hog, step = [], 1 << 30
        while step >= 1 << 20:
            try:
                hog.append(cupy.cuda.runtime.malloc(step))
            except cupy.cuda.runtime.CUDARuntimeError:
                step //= 2
        try:
            with pytest.raises(OutOfMemory):
                await ask(running, rows)
        finally:
            for pointer in hog:
                cupy.cuda.runtime.free(pointer)
        large = await ask(running, rows)
        np.testing.assert_allclose(large[:2], small, rtol=5e-2, atol=5e-2)


@pytest.mark.gpu
@pytest.mark.skipif(not can_run("onnx"), reason="told at the end of the run")
async def test_a_limit_that_a_model_does_not_fit_in(models: Any, tmp_path: Path) -> None:
    networks.mlp(tmp_path / "big/1", WIDTHS)
    model = {"backend": "onnx", "path": "big", "device": CUDA, "max_batch_size": 8}
    with pytest.raises(AssertionError, match=r"no room for the model on cuda:0: memory_limit_bytes is 1,048,576"):
        await models.load({"m": model | {"memory_limit_bytes": 1 << 20}})
