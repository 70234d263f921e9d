"""What a model runs before it is ready: the operator's samples, and what is made up for lack of them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import pytest
import yaml
from onnx import TensorProto, helper, numpy_helper

from tensorgate.gateway.app import App, registries
from tensorgate.gateway.config import ModelConfig, load_config
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelRef
from tensorgate.gateway.contract.errors import GatewayError, InvalidArgument, ModelFailed, OutOfMemory
from tensorgate.gateway.contract.execution import Computation, Executor, Observe
from tensorgate.gateway.contract.tensor import DTYPES, Array, TensorSpec
from tensorgate.gateway.engine.model import Model, ModelSpec
from tensorgate.gateway.engine.queue import QueuePolicy
from tensorgate.gateway.engine.scheduler_metrics import SchedulerMetrics
from tensorgate.gateway.engine.warmup import WarmUp, made_up
from tensorgate.gateway.model_loading import loader
from tensorgate.gateway.models.loader import LoadReport
from tensorgate.gateway.models.model_spec import model_spec
from tensorgate.gateway.models.warmup_samples import read_warmup_samples

X = TensorSpec("x", DTYPES["FP32"], (-1, 2))
WORDS = TensorSpec("words", DTYPES["BYTES"], (-1, -1), optional=True)


def computation(max_batch_size: int = 4, inputs: tuple[TensorSpec, ...] = (X,)) -> Computation:
    return Computation((), inputs, (), inputs, max_batch_size, "test", "cpu")


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., ModelConfig]:
    """One model's configuration with these samples, beside its files."""

    def make(*samples: Any, **files: bytes) -> ModelConfig:
        (tmp_path / "m").mkdir(exist_ok=True)
        for name, content in files.items():
            (tmp_path / name.replace("_", ".")).write_bytes(content)
        file = tmp_path / "gateway.yaml"
        model = {"backend": "onnx", "path": "m", "warmup": list(samples)}
        file.write_text(yaml.safe_dump({"models": {"m": model}}))
        return load_config(file, registries()).models["m"]

    return make


def npy(array: Any) -> bytes:
    from io import BytesIO

    file = BytesIO()
    np.save(file, array)
    return file.getvalue()


FLOATS = np.array([1, 2], "<f4").tobytes()
WRITTEN: list[tuple[Any, dict[str, bytes], int, tuple[TensorSpec, ...], dict[str, Any]]] = [
    ({}, {}, 4, (X,), {"x": [[1, 1]]}),
    ({"batch_size": 2}, {}, 4, (X,), {"x": [[1, 1], [1, 1]]}),
    ({"inputs": {"x": {"data": "zeros"}}}, {}, 4, (X,), {"x": [[0, 0]]}),
    ({"inputs": {"x": {"file": "a.bin"}}, "batch_size": 2}, {"a_bin": FLOATS}, 4, (X,), {"x": [[1, 2], [1, 2]]}),
    ({"inputs": {"x": {"file": "a.bin"}}, "batch_size": 2}, {"a_bin": 2 * FLOATS}, 4, (X,), {"x": [[1, 2], [1, 2]]}),
    ({"inputs": {"x": {"file": "a.npy"}}}, {"a_npy": npy(np.float32([3, 4]))}, 4, (X,), {"x": [[3, 4]]}),
    (
        {"inputs": {"x": {"file": "a.npy"}}, "batch_size": 2},
        {"a_npy": npy(np.float32([[3, 4], [5, 6]]))},
        4,
        (X,),
        {"x": [[3, 4], [5, 6]]},
    ),
    ({"inputs": {"x": {"file": "a.json"}}, "batch_size": 2}, {"a_json": b"[[3, 4]]"}, 4, (X,), {"x": [[3, 4], [3, 4]]}),
    (
        {"inputs": {"x": {"shape": [3, 2], "data": "ones"}}},
        {},
        0,
        (TensorSpec("x", DTYPES["INT8"], (-1, 2)),),
        {"x": [[1, 1], [1, 1], [1, 1]]},
    ),
    ({"inputs": {"words": {"shape": [2]}}}, {}, 4, (WORDS,), {"words": [[b"text", b"text"]]}),
    ({"inputs": {"words": {"shape": [2], "data": "zeros"}}}, {}, 4, (WORDS,), {"words": [[b"", b""]]}),
    (
        {"inputs": {"words": {"shape": [2], "file": "w.bin"}}},
        {"w_bin": b"\x02\0\0\0hi\x00\0\0\0"},
        4,
        (WORDS,),
        {"words": [[b"hi", b""]]},
    ),
    ({"inputs": {"words": {"file": "w.json"}}}, {"w_json": b'["hi", "ho"]'}, 4, (WORDS,), {"words": [[b"hi", b"ho"]]}),
    ({}, {}, 4, (WORDS,), {}),
    ({}, {}, 0, (TensorSpec("x", DTYPES["BOOL"], None),), {"x": [True, True, True]}),
]


@pytest.mark.parametrize(("sample", "files", "rows", "inputs", "want"), WRITTEN)
def test_a_sample_as_it_is_written(
    sample: Any, files: dict[str, bytes], rows: int, inputs: Any, want: dict[str, Any], config: Any
) -> None:
    (read,) = read_warmup_samples(config(sample, **files), computation(rows, inputs), {})
    assert {name: array.tolist() for name, array in read.inputs.items()} == want
    dtypes = {spec.name: spec.dtype for spec in inputs}
    assert all(array.dtype == dtypes[name] for name, array in read.inputs.items())


def test_random_samples_are_the_same_at_every_start(config: Any) -> None:
    inputs = tuple(
        TensorSpec(name, DTYPES[name], (-1, 50)) for name in ("FP16", "BF16", "INT64", "UINT8", "BOOL", "BYTES")
    )
    sample = {"batch_size": 2, "inputs": {spec.name: {"data": "random"} for spec in inputs}}
    first, second = (read_warmup_samples(config(sample), computation(4, inputs), {})[0].inputs for _ in range(2))
    for name, array in first.items():
        assert (array == second[name]).all()
        assert (array[0] == array[1]).all()
        assert len(set(array[0].tolist())) > 1
        assert array.dtype == DTYPES[name]
    assert first["INT64"].max() < 10
    assert first["FP16"].max() <= 1


def test_what_a_sample_does_not_name_is_the_examples(config: Any) -> None:
    inputs = (X, TensorSpec("k", DTYPES["INT32"], (-1, 1)))
    example: dict[str, Array] = {"x": np.float32([[7, 8]])}
    (read,) = read_warmup_samples(
        config({"batch_size": 2, "inputs": {"k": {"data": "zeros"}}}), computation(4, inputs), example
    )
    assert {name: array.tolist() for name, array in read.inputs.items()} == {"x": [[7, 8], [7, 8]], "k": [[0], [0]]}


REFUSED: list[tuple[Any, dict[str, bytes], str]] = [
    ({"inputs": {"w": {}}}, {}, r"warmup\[0\]: the model has no input 'w'"),
    ({"name": "big", "batch_size": 5}, {}, r"warmup\[0\] \(big\): batch_size 5 is more than max_batch_size, 4"),
    ({"inputs": {"x": {"file": "a.bin"}}}, {"a_bin": b"12345"}, "input 'x': 5 bytes are no whole number of elements"),
    ({"inputs": {"x": {"file": "a.bin"}}}, {"a_bin": 3 * FLOATS}, r"6 elements do not fill the shape \[2\]"),
    ({"inputs": {"x": {"file": "a.npy"}}}, {"a_npy": npy(np.arange(2))}, "a.npy holds int64, but FP32 is declared"),
    ({"inputs": {"x": {"file": "a.npy"}}}, {"a_npy": npy(np.array([None]))}, "allow_pickle=False"),
    ({"inputs": {"x": {"file": "a.json"}}}, {"a_json": b"{"}, "input 'x': "),
]


@pytest.mark.parametrize(("sample", "files", "words"), REFUSED)
def test_a_sample_that_does_not_fit_is_named(sample: Any, files: dict[str, bytes], words: str, config: Any) -> None:
    with pytest.raises(ValueError, match=words):
        read_warmup_samples(config(sample, **files), computation(), {})


# ---------------------------------------------------------------------------------------------------------- what is run


class Noting(Executor):
    """Notes the rows of each run; fails with what it is told to, at batches of more than `room` rows."""

    decoupled = False
    merges = True

    def __init__(
        self,
        *,
        inline: bool = True,
        runs_on: Literal["thread", "loop"] = "thread",
        error: Exception | None = None,
        room: int = 0,
    ) -> None:
        self.inline = inline
        self.runs_on: Literal["thread", "loop"] = runs_on
        self.error = error
        self.room = room
        self.rows: list[int] = []

    def run(
        self, requests: Sequence[InferRequest], observe: Observe
    ) -> Iterator[Sequence[InferResponse | GatewayError]]:
        (request,) = requests
        self.rows.append(len(request.inputs["x"]))
        if self.error is not None and self.rows[-1] > self.room:
            if isinstance(self.error, ModelFailed):
                yield [self.error]
                return
            raise self.error
        yield [InferResponse({})]

    async def arun(
        self, requests: Sequence[InferRequest], observe: Observe
    ) -> AsyncIterator[Sequence[InferResponse | GatewayError]]:
        for step in self.run(requests, observe):
            yield step

    def close(self) -> None:
        pass


FP32 = DTYPES["FP32"]
MADE_UP: list[tuple[str, tuple[tuple[int, ...] | None, ...], bool, list[list[tuple[int, ...]]]]] = [
    ("nothing is open", ((2, 3),), False, []),
    ("only rows are", ((-1, 3),), True, []),
    ("only what may be rows is", ((-1, 3),), False, []),
    ("words", ((-1, -1),), True, [[(1, 8)], [(1, 64)], [(1, 512)]]),
    ("a vector", ((-1,),), False, [[(8,)], [(64,)], [(512,)]]),
    (
        "an image",
        ((-1, 3, -1, -1),),
        False,
        [
            [(1, 3, 8, 8)], [(1, 3, 1, 8)], [(1, 3, 64, 64)], [(1, 3, 1, 64)], [(1, 3, 512, 512)], [(1, 3, 1, 512)]
        ],
    ),
    (
        "sound, with a state whose rows are in between",
        ((-1, -1), (2, -1, 4), ()),
        False,
        [
            [(1, length), (2, rows, 4), ()] for length in (8, 64, 512) for rows in (length, 1)
        ],
    ),
    ("a film, which would be too large", ((-1, -1, -1, -1, 3),), False, [
        [(1, 8, 8, 8, 3)], [(1, 64, 64, 64, 3)]
    ]),
    ("any rank", (None,), False, []),
]  # fmt: skip


@pytest.mark.parametrize(("name", "shapes", "batched", "want"), MADE_UP, ids=[case[0] for case in MADE_UP])
def test_what_is_tried_where_ones_are_too_short(name: str, shapes: Any, batched: bool, want: Any) -> None:
    specs = [TensorSpec(str(number), FP32, shape) for number, shape in enumerate(shapes)]
    found = [[array.shape for array in example.values()] for example in made_up(specs, batched)]
    assert found == want


def write_vad(file: Path) -> None:
    """A model of sound that takes no less than 64 numbers, beside a state and a rate."""
    floats = [helper.make_tensor_value_info(*each) for each in (
        ("sound", TensorProto.FLOAT, ["rows", "samples"]), ("state", TensorProto.FLOAT, [2, "rows", 4]),
        ("rate", TensorProto.INT64, []), ("speech", TensorProto.FLOAT, ["rows", 1]),
        ("after", TensorProto.FLOAT, [2, "rows", 4]),
    )]  # fmt: skip
    nodes = [
        helper.make_node("Unsqueeze", ["sound", "one"], ["channels"]),
        helper.make_node("Conv", ["channels", "weights"], ["windows"], kernel_shape=[64], strides=[64]),
        helper.make_node("ReduceMean", ["windows"], ["mean"], axes=[2], keepdims=0),
        helper.make_node("Cast", ["rate"], ["hertz"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["mean", "hertz"], ["speech"]),
        helper.make_node("Identity", ["state"], ["after"]),
    ]
    constants = [
        numpy_helper.from_array(np.ones((1, 1, 64), np.float32), "weights"),
        numpy_helper.from_array(np.array([1]), "one"),
    ]
    graph = helper.make_graph(nodes, "vad", floats[:3], floats[3:], constants)
    file.parent.mkdir(parents=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), file)


async def test_a_model_that_refuses_what_is_made_up_is_warmed_up_in_silence(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_vad(tmp_path / "vad/1/model.onnx")
    file = tmp_path / "gateway.yaml"
    file.write_text(yaml.safe_dump({"models": {"vad": {"backend": "onnx", "path": "vad", "device": "cpu"}}}))
    kinds = registries()
    app = App(load_config(file, kinds), kinds)
    reports: list[LoadReport] = []
    await app.load(reports.append)
    (report,) = reports
    assert report.warm_up is not None, "the third length is long enough"
    assert "onnxruntime" not in "".join(capfd.readouterr()), "nobody has asked for that"
    view = app.router.resolve(ModelRef("vad"))
    short = {"sound": np.ones((1, 5), np.float32), "state": np.ones((2, 1, 4), np.float32), "rate": np.array(16000)}
    with pytest.raises(GatewayError):
        await anext(view.handle.submit(InferRequest(view, short)))
    told = capfd.readouterr().err
    assert told.count("[E:onnxruntime:vad, ") == 1, "once, and under the model's name"
    await app.repository.close()


SAMPLE = {"batch_size": 2, "count": 3}


async def warmed(
    config: Any,
    executors: Sequence[Noting],
    *samples: Any,
    device: str = "cpu",
    pure: bool = False,
    sizes: tuple[int, ...] = (),
) -> Any:
    found = Computation(tuple(executors), (X,), (), (X,), 4, "test", device, pure=pure)
    plan = ModelSpec(
        QueuePolicy(max_batch_size=4), warmup=read_warmup_samples(config(*samples), found, {}), sizes=sizes
    )
    model = Model("m", 1, (1,), found, plan, SchedulerMetrics(lambda stage, seconds: None, lambda rows: None))
    try:
        return await model.warm_up()
    finally:
        await model.close()


CASES: list[tuple[str, dict[str, Any], dict[str, Any], list[Any], list[int]]] = [
    ("on a host: the example", {}, {}, [], [1] * 5),
    ("on a GPU: a full batch, too", {"inline": False}, {"device": "cuda:0", "pure": True}, [], [1] * 5 + [4] * 2),
    ("the sizes of batches", {}, {"sizes": (1, 2, 4)}, [], [1] * 5 + [2] * 2 + [4] * 2),
    ("samples in its place", {"inline": False}, {"device": "cuda:0", "pure": True}, [SAMPLE], [1] * 5 + [2] * 3),
    ("effects that nobody asked for", {"inline": False}, {"device": "cuda:0"}, [], []),
    ("those that somebody asked for", {"inline": False}, {}, [SAMPLE], [2] * 3),
    ("a model on the loop", {"inline": False, "runs_on": "loop"}, {}, [SAMPLE, {}], [2] * 3 + [1]),
    ("refused, being made up", {"error": InvalidArgument("no"), "room": 0}, {}, [], [1]),
    (
        "a full batch that does not fit",
        {"error": OutOfMemory("m"), "room": 1, "inline": False},
        {"device": "cuda:0", "pure": True},
        [],
        [1] * 5 + [4],
    ),
]


@pytest.mark.parametrize(("name", "executor", "facts", "samples", "rows"), CASES, ids=[case[0] for case in CASES])
async def test_what_every_executor_runs(
    name: str, executor: Any, facts: Any, samples: list[Any], rows: list[int], config: Any
) -> None:
    executors = [Noting(**executor), Noting(**executor)]
    found = await warmed(config, executors, *samples, **facts)
    assert [each.rows for each in executors] == [rows, rows]
    assert isinstance(found, WarmUp) is (rows[:5] == [1] * 5)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (InvalidArgument("not that"), r"warmup\[1\]: not that"),
        (ModelFailed("no such word"), r"warmup\[1\]: no such word"),
        (OutOfMemory("m"), r"warmup\[1\]: model 'm' is out of memory"),
        (KeyError("x"), r"warmup\[1\]: 'x'"),
    ],
)
async def test_a_sample_must_be_answered(error: Exception, words: str, config: Any) -> None:
    with pytest.raises(ValueError, match=words):
        await warmed(config, [Noting(inline=False, error=error, room=1)], {}, SAMPLE)


async def test_a_sample_must_fit_the_model(config: Any) -> None:
    with pytest.raises(ValueError, match=r"warmup\[0\]: input 'x' of model 'm' has shape \[1, 3\], expected \[-1, 2\]"):
        await warmed(config, [Noting()], {"inputs": {"x": {"shape": [3]}}})


def test_a_real_model_is_loaded_with_its_samples(tmp_path: Path) -> None:
    """From the YAML to the plan, with ONNX Runtime below."""
    demo = Path(__file__).parents[3] / "config/demo"
    file = tmp_path / "gateway.yaml"
    model = {
        "backend": "onnx",
        "path": str(demo / "models/half_plus_two"),
        "warmup": [{"inputs": {"x": {"shape": [7]}}}],
    }
    file.write_text(yaml.safe_dump({"models": {"m": model}}))
    kinds = registries()
    config = load_config(file, kinds).models["m"]
    assert json.loads(json.dumps(config.model_dump(mode="json")["warmup"]))[0]["inputs"]["x"]["shape"] == [7]
    found = loader(kinds, lambda ref: None)(config, "m", 1, next((demo / "models/half_plus_two").iterdir()))  # type: ignore[arg-type,return-value]
    (sample,) = model_spec(config, found).warmup
    assert found.pure
    assert [array.size for array in sample.inputs.values()] == [7]
    found.executors[0].close()
