"""ONNX Runtime's sessions and PyTorch's modules in the engine: every caller gets what the model alone would give,
whatever shares its batch, in every datatype, with recorded graphs and without.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from runtimes import CUDA, can_run, runtimes

from benchmarks import networks
from benchmarks.engine_room import Plan, ask, kind_of, loaded
from tensorgate.backends.onnx.providers import provider_options
from tensorgate.gateway.contract.backend import ModelSource
from tensorgate.gateway.contract.canonical import InferRequest, OutputRequest
from tensorgate.gateway.contract.execution import Traffic
from tensorgate.gateway.contract.tensor import DTYPES, TensorSpec

WIDTHS = (64, 512, 512, 16)
ROWS = 256
MAX_BATCH_SIZE = 32
CALLERS = 48
TURNS = 12
TOLERANCE = {"FP32": 1e-4, "FP16": 3e-2}
RUNTIMES = list(runtimes())


@pytest.fixture(scope="module")
def model(folder: Path) -> Callable[[str, str], tuple[Path, Any, Any]]:
    """A runtime and a datatype -> a model's folder, rows to ask with, and what it gives for them by itself."""
    made: dict[tuple[str, str], tuple[Path, Any, Any]] = {}

    def make(runtime: str, datatype: str) -> tuple[Path, Any, Any]:
        if (runtime, datatype) in made:
            return made[runtime, datatype]
        path, dtype = folder / f"{runtime}-{datatype}", DTYPES[datatype]
        x = np.random.default_rng(2).standard_normal((ROWS, WIDTHS[0]), np.float32).astype(dtype)
        if runtime == "onnx":
            networks.mlp(path, WIDTHS, dtype)
            ort = importlib.import_module("onnxruntime")
            session = ort.InferenceSession(str(path / "model.onnx"), providers=["CPUExecutionProvider"])
            want = session.run(None, {"x": x})[0]
        else:
            torch_networks = importlib.import_module("benchmarks.torch_networks")
            module = torch_networks.mlp(WIDTHS)
            torch_networks.save(module, path, x[:2])
            torch = torch_networks.torch
            with torch.inference_mode():
                want = module.float()(torch.from_numpy(x.astype(np.float32))).numpy()
        made[runtime, datatype] = path, x, want.astype(np.float32)
        return made[runtime, datatype]

    return make


def plan(runtime: str, path: Path, place: str, datatype: str = "FP32", **options: Any) -> Plan:
    x = TensorSpec("x", DTYPES[datatype], (-1, WIDTHS[0]))
    y = TensorSpec("y", DTYPES[datatype], (-1, WIDTHS[-1]))
    return Plan(runtime, path, place, MAX_BATCH_SIZE, x, y, {"tf32": False} | options)


def close(got: Any, want: Any, datatype: str = "FP32") -> bool:
    within = TOLERANCE[datatype]
    return bool(np.allclose(np.asarray(got, np.float32), want, within, within * float(np.abs(want).max())))


@pytest.mark.parametrize(("runtime", "place"), RUNTIMES)
@pytest.mark.parametrize("datatype", ["FP32", "FP16"])
@pytest.mark.parametrize("cuda_graph", [False, True], ids=["plain", "graphs"])
async def test_callers_who_share_batches(runtime: str, place: str, datatype: str, cuda_graph: bool, model: Any) -> None:
    """Batches of many sizes, two in flight; each answer is compared. Every third caller wants the best classes."""
    path, x, want = model(runtime, datatype)
    wrong: list[str] = []
    async with loaded(plan(runtime, path, place, datatype, cuda_graph=cuda_graph)) as running:
        before = running.computation.traffic()

        async def caller(number: int) -> None:
            random = np.random.default_rng(number)
            for _ in range(TURNS):
                rows, at = int(random.integers(1, 9)), int(random.integers(0, ROWS - 9))
                if number % 3 == 0 and datatype == "FP32":
                    wanted = (OutputRequest("y", top_k=3),)
                    request = InferRequest(running.view, {"x": x[at : at + rows]}, outputs=wanted)
                    best = (await anext(running.submit(request))).classes["y"]
                    values = np.take_along_axis(want[at : at + rows], np.asarray(best.indices), 1)
                    ranked = -np.sort(-want[at : at + rows], axis=1)[:, :3]
                    right = close(best.values, values) and close(values, ranked)
                else:
                    right = close(await ask(running, x[at : at + rows]), want[at : at + rows], datatype)
                if not right:
                    wrong.append(f"caller {number}, rows {at} to {at + rows}")

        await asyncio.gather(*[caller(number) for number in range(CALLERS)])
        crossed = Traffic(*[now - then for now, then in zip(running.computation.traffic(), before, strict=True)])
    assert wrong == []
    if place == "cpu":
        assert crossed == Traffic()
    else:
        assert crossed.copies_in == crossed.copies_out == crossed.batches > 0


@pytest.mark.parametrize(("runtime", "place"), RUNTIMES)
async def test_a_recorded_graph_gives_what_a_plain_run_gives(runtime: str, place: str, model: Any) -> None:
    """For each number of rows several times: recorded, replayed with the same numbers, with others, with the first."""
    path, x, _ = model(runtime, "FP32")
    async with (
        loaded(plan(runtime, path, place)) as plain,
        loaded(plan(runtime, path, place, cuda_graph=True)) as graphs,
    ):
        for rows in (1, 2, 5, 8, 5, MAX_BATCH_SIZE, 1):
            for at in (0, 64, 128, 0):
                got, want = await ask(graphs, x[at : at + rows]), await ask(plain, x[at : at + rows])
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("runtime", "place"), RUNTIMES)
async def test_more_shapes_than_are_recorded(runtime: str, place: str, model: Any) -> None:
    """All of them answer, those beyond the last recording, too."""
    path, x, want = model(runtime, "FP32")
    async with loaded(plan(runtime, path, place, cuda_graph=True)) as running:
        for _ in range(2):
            for rows in range(1, MAX_BATCH_SIZE + 1):
                assert close(await ask(running, x[:rows]), want[:rows])


@pytest.mark.parametrize(("runtime", "place"), RUNTIMES)
async def test_several_models_and_instances_at_once(runtime: str, place: str, model: Any) -> None:
    """Three models on streams of their own, plain and recorded: nobody gets what is another's."""
    path, x, want = model(runtime, "FP32")
    async with (
        loaded(plan(runtime, path, place)) as first,
        loaded(plan(runtime, path, place, cuda_graph=True)) as second,
        loaded(plan(runtime, path, place)) as third,
    ):

        async def caller(number: int) -> bool:
            right = True
            for turn in range(TURNS):
                at, rows = (number * 7 + turn * 13) % (ROWS - 8), 1 + (number + turn) % 8
                got = await ask((first, second, third)[(number + turn) % 3], x[at : at + rows])
                right = right and close(got, want[at : at + rows])
            return right

        assert all(await asyncio.gather(*[caller(number) for number in range(CALLERS)]))


# ------------------------------------------------------------------------------------------------- datatypes and shapes


def relay(path: Path, datatype: str, shape: list[Any]) -> Path:
    """y = x, an ONNX model."""
    number = onnx.TensorProto.STRING if datatype == "BYTES" else helper.np_dtype_to_tensor_dtype(DTYPES[datatype])
    x, y = (helper.make_tensor_value_info(name, number, shape) for name in ("x", "y"))
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "relay", [x], [y])
    path.mkdir(parents=True)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, path / "model.onnx")
    return path


@pytest.mark.parametrize("datatype", DTYPES)
async def test_every_datatype_goes_through_to_the_bit(datatype: str, onnx_place: str, tmp_path: Path) -> None:
    shape = (-1, 3, -1)
    path = relay(tmp_path / datatype, datatype, ["N", 3, "W"])
    x, y = (TensorSpec(name, DTYPES[datatype], shape) for name in ("x", "y"))
    async with loaded(Plan("onnx", path, onnx_place, 8, x, y, {})) as running:
        for rows, wide in [(1, 1), (3, 5), (8, 0), (2, 1031)]:
            raw = np.random.default_rng(wide).integers(0, 256, rows * 3 * wide * 8, np.uint8)
            if datatype == "BYTES":
                given = np.array([raw[at : at + 8].tobytes().hex().encode() for at in range(0, raw.size, 8)], object)
            elif datatype == "BOOL":
                given = raw[: rows * 3 * wide] > 127
            else:
                given = raw.view(DTYPES[datatype])[: rows * 3 * wide]
            given = given.reshape(rows, 3, wide)
            got = await ask(running, given)
            assert (got.dtype, got.shape) == (given.dtype, given.shape)
            assert got.tolist() == given.tolist() if datatype == "BYTES" else got.tobytes() == given.tobytes()


@pytest.mark.gpu
@pytest.mark.skipif(not can_run("onnx"), reason="told at the end of the run")
def test_every_node_is_computed_on_the_gpu(model: Any) -> None:
    """ONNX Runtime takes nodes to the host without a word, unless it is forbidden."""
    path, _, _ = model("onnx", "FP32")
    wanted = plan("onnx", path, CUDA)
    kind = kind_of("onnx")
    options = kind.options()
    source = ModelSource("m", 1, path, CUDA, (wanted.x,), (wanted.y,), MAX_BATCH_SIZE, options)
    backend = kind.load(source)
    assert backend.device.name == CUDA
    settings = importlib.import_module("onnxruntime").SessionOptions()
    settings.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    providers = provider_options(options, backend.device)
    importlib.import_module("onnxruntime").InferenceSession(str(path / "model.onnx"), settings, providers=providers)
    backend.close()
