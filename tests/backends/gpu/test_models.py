"""Python models, SavedModels and ensembles: tensors stay on the device between them, and answers are the formula's."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runtimes import CUDA

from tensorgate.gateway.contract.canonical import InferRequest, ModelRef, OutputRequest
from tensorgate.gateway.contract.execution import Traffic

ROW = {"datatype": "FP32", "shape": [-1, 64]}
X, Y = {"name": "x", **ROW}, {"name": "y", **ROW}
CLASSES = """
    class Relay:
        def __init__(self, context):
            self.xp = context.xp

        def infer(self, inputs, request):
            assert isinstance(inputs["x"], self.xp.ndarray)
            return {"y": inputs["x"] * 2 + 1}


    class Waits:
        def __init__(self, context):
            self.xp = context.xp

        async def infer(self, inputs, request):
            return {"y": self.xp.sqrt(self.xp.abs(inputs["x"]))}


    class Counts:
        def __init__(self, context):
            pass

        def infer(self, inputs, request):
            for number in range(3):
                yield {"y": inputs["x"] + number}


    class Torch:
        def __init__(self, context):
            import torch
            self.torch, self.device = torch, context.device

        def infer(self, inputs, request):
            x = self.torch.from_dlpack(inputs["x"])
            assert str(x.device) == self.device
            return {"y": self.torch.relu(x)}
"""
RANDOM = np.random.default_rng(4)


def python(models: Any, name: str, place: str, **more: Any) -> dict[str, Any]:
    path = f"{models.write('classes.py', CLASSES)}:{name}"
    return {"backend": "python", "path": path, "device": place, "inputs": [X], "outputs": [Y]} | more


@pytest.mark.parametrize("name", ["Relay", "Waits"])
async def test_a_python_model(name: str, place: str, models: Any) -> None:
    await models.load({"m": python(models, name, place, max_batch_size=8)})
    x = RANDOM.standard_normal((40, 64), np.float32)
    formula: Any = {"Relay": lambda x: x * 2 + 1, "Waits": lambda x: np.sqrt(np.abs(x))}[name]
    answers = await asyncio.gather(*[models.ask("m", x=x[at : at + 1 + at % 5]) for at in range(35)])
    for at, answer in enumerate(answers):
        np.testing.assert_allclose(answer.outputs["y"], formula(x[at : at + 1 + at % 5]), rtol=1e-6)


async def test_a_decoupled_python_model(place: str, models: Any) -> None:
    await models.load({"m": python(models, "Counts", place)})
    view = models.app.router.resolve(ModelRef("m"))
    x = RANDOM.standard_normal((2, 64), np.float32)
    answers = [each async for each in view.handle.submit(InferRequest(view, {"x": x}))]
    given = [answer.outputs["y"] for answer in answers if answer.outputs]
    assert len(given) == 3
    for number, y in enumerate(given):
        np.testing.assert_array_equal(y, x + np.float32(number))


async def test_a_python_model_that_uses_torch(place: str, models: Any, torch: Any) -> None:
    await models.load({"m": python(models, "Torch", place)})
    x = RANDOM.standard_normal((4, 64), np.float32)
    np.testing.assert_array_equal((await models.ask("m", x=x)).outputs["y"], np.maximum(x, 0))


STEPS = [
    {"model": "first", "inputs": {"x": "x"}, "outputs": {"y": "a"}},
    {"model": "second", "inputs": {"x": "a"}, "outputs": {"y": "b"}},
    {"model": "net", "inputs": {"x": "b"}, "outputs": {"y": "scores"}},
]


@pytest.mark.parametrize("cuda_graph", [False, True], ids=["plain", "graphs"])
async def test_an_ensemble_copies_once_in_and_once_out(
    onnx_place: str, cuda_graph: bool, models: Any, mlp: Path
) -> None:
    """Two Python models and an ONNX network behind each other: what is between them does not leave the device."""
    place = onnx_place
    scores = {"name": "scores", "datatype": "FP32", "shape": [-1, 16]}
    onnx = {"backend": "onnx", "path": str(mlp), "device": place, "max_batch_size": 8, "cuda_graph": cuda_graph}
    await models.load(
        {
            "first": python(models, "Relay", place, max_batch_size=8),
            "second": python(models, "Relay", place, max_batch_size=8),
            "net": onnx,
            "whole": {"backend": "ensemble", "steps": STEPS, "max_batch_size": 8, "inputs": [X], "outputs": [scores]},
        }
    )
    x = RANDOM.standard_normal((8, 64), np.float32)
    relayed = (x * 2 + 1) * 2 + 1
    want = (await models.ask("net", x=relayed)).outputs["y"]
    names = ("first", "second", "net")
    for _ in range(4):
        before = models.traffic(*names)
        got = (await models.ask("whole", x=x)).outputs["scores"]
        np.testing.assert_allclose(got, want, rtol=1e-2, atol=1e-2 * float(np.abs(want).max()))
        after = models.traffic(*names)
        crossed = Traffic(*[now - then for now, then in zip(after, before, strict=True)])
        if place == "cpu":
            assert crossed == Traffic()
        else:
            assert (crossed.copies_in, crossed.copies_out) == (1, 1)
            assert (crossed.bytes_in, crossed.bytes_out) == (x.nbytes, want.nbytes)
    best = await models.ask("whole", OutputRequest("scores", top_k=2), x=x)
    ranked = -np.sort(-want, axis=1)[:, :2]
    np.testing.assert_allclose(best.classes["scores"].values, ranked, rtol=1e-2, atol=1e-2 * float(np.abs(want).max()))


async def test_many_at_once_through_an_ensemble(place: str, models: Any) -> None:
    await models.load(
        {
            "first": python(models, "Relay", place, max_batch_size=8, instances=2),
            "second": python(models, "Waits", place, max_batch_size=8),
            "whole": {
                "backend": "ensemble",
                "max_batch_size": 8,
                "inputs": [X],
                "outputs": [Y],
                "steps": [
                    {"model": "first", "inputs": {"x": "x"}, "outputs": {"y": "a"}},
                    {"model": "second", "inputs": {"x": "a"}, "outputs": {"y": "y"}},
                ],
            },
        }
    )
    x = RANDOM.standard_normal((64, 64), np.float32)
    answers = await asyncio.gather(*[models.ask("whole", x=x[at : at + 1 + at % 6]) for at in range(56)])
    for at, answer in enumerate(answers):
        want = np.sqrt(np.abs(x[at : at + 1 + at % 6] * 2 + 1))
        np.testing.assert_allclose(answer.outputs["y"], want, rtol=1e-6)


async def test_steps_before_and_after_run_on_the_device(onnx_place: str, models: Any, mlp: Path) -> None:
    """Pixels in and the best class out: nothing else crosses."""
    net = {"backend": "onnx", "path": str(mlp), "device": onnx_place, "max_batch_size": 8, "tf32": False}
    around = {
        "inputs": [{"name": "image", "datatype": "UINT8", "shape": [-1, 4, 4, 4]}],
        "preprocess": [
            {"op": "scale", "input": "image", "divide": 255, "to": "FP32"},
            {"op": "reshape", "input": "image", "before": [4, 4, 4], "after": [64]},
            {"op": "rename", "names": {"image": "x"}},
        ],
        "postprocess": [{"op": "softmax", "input": "y"}, {"op": "argmax", "input": "y", "output": "best"}],
    }
    await models.load({"net": net, "m": net | around})
    pixels = RANDOM.integers(0, 256, (8, 4, 4, 4), np.uint8)
    before = models.traffic("m")
    best = (await models.ask("m", image=pixels)).outputs["best"]
    crossed = Traffic(*[now - then for now, then in zip(models.traffic("m"), before, strict=True)])
    scores = (await models.ask("net", x=pixels.reshape(8, 64).astype(np.float32) / 255)).outputs["y"]
    assert best.tolist() == scores.argmax(1).tolist()
    if onnx_place == CUDA:
        assert (crossed.bytes_in, crossed.bytes_out) == (pixels.nbytes, best.nbytes)


TRITON = """
    import torch
    import triton_python_backend_utils as pb_utils


    class TritonPythonModel:
        def initialize(self, args):
            on_gpu = args["model_instance_kind"] == "GPU"
            self.device = f"cuda:{args['model_instance_device_id']}" if on_gpu else "cpu"

        def execute(self, requests):
            answers = []
            for request in requests:
                x = torch.from_numpy(pb_utils.get_input_tensor_by_name(request, "x").as_numpy()).to(self.device)
                y = pb_utils.Tensor.from_dlpack("y", torch.utils.dlpack.to_dlpack(x * 2 + 1))
                assert y.is_cpu() == (self.device == "cpu")
                answers.append(pb_utils.InferenceResponse([y]))
            return answers
"""


async def test_a_python_model_of_tritons(place: str, models: Any, tmp_path: Path, torch: Any) -> None:
    """What it gives lies where the model has made it."""
    (tmp_path / "m/1").mkdir(parents=True)
    models.write("m/1/model.py", TRITON)
    model = {"backend": "triton_python", "path": "m", "device": place, "max_batch_size": 8}
    await models.load({"m": model | {"inputs": [X], "outputs": [Y]}})
    x = RANDOM.standard_normal((4, 64), np.float32)
    answers = await asyncio.gather(*[models.ask("m", x=x) for _ in range(8)])
    for answer in answers:
        np.testing.assert_array_equal(answer.outputs["y"], x * 2 + 1)


@pytest.mark.parametrize("cuda_graph", [False, True], ids=["plain", "graphs"])
async def test_padded_batches(onnx_place: str, cuda_graph: bool, models: Any, mlp: Path) -> None:
    """The model runs in three sizes alone, recorded or not; each caller gets his own rows."""
    net = {"backend": "onnx", "path": str(mlp), "device": onnx_place, "max_batch_size": 8, "tf32": False}
    padded = net | {"pad_batches_to": [1, 4, 8], "cuda_graph": cuda_graph, "instances": 2}
    await models.load({"net": net, "padded": padded})
    x = RANDOM.standard_normal((64, 64), np.float32)
    for rows in (1, 2, 3, 4, 5, 7, 8):
        want = (await models.ask("net", x=x[:rows])).outputs["y"]
        got = (await models.ask("padded", x=x[:rows])).outputs["y"]
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    want = np.concatenate([(await models.ask("net", x=x[at : at + 8])).outputs["y"] for at in range(0, 64, 8)])
    answers = await asyncio.gather(*[models.ask("padded", x=x[at : at + 1 + at % 3]) for at in range(60)])
    for at, answer in enumerate(answers):
        np.testing.assert_allclose(answer.outputs["y"], want[at : at + 1 + at % 3], rtol=1e-4, atol=1e-4)


async def test_a_saved_model(place: str, models: Any, tmp_path: Path, tensorflow: Any) -> None:
    if place == CUDA and not tensorflow.config.list_physical_devices("GPU"):
        pytest.skip("this TensorFlow is a build without CUDA")

    class Module(tensorflow.Module):  # type: ignore[misc]
        @tensorflow.function(input_signature=[tensorflow.TensorSpec([None, 64], tensorflow.float32)])  # type: ignore[untyped-decorator]
        def __call__(self, x: Any) -> dict[str, Any]:
            return {"y": x * 3.0}

    made = Module()
    tensorflow.saved_model.save(made, str(tmp_path / "saved/1"), signatures=made.__call__)
    await models.load({"m": {"backend": "tensorflow", "path": "saved", "device": place, "max_batch_size": 8}})
    x = RANDOM.standard_normal((4, 64), np.float32)
    np.testing.assert_allclose((await models.ask("m", x=x)).outputs["y"], x * 3, rtol=1e-6)
