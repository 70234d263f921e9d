"""User classes: the four shapes of infer, what they learn, what is refused."""

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from backends.pipeline import load as load_pipeline
from backends.python_model import KIND
from gateway.canonical import DTYPES, InferRequest, TensorSpec
from gateway.errors import InvalidArgument, ModelFailed, ShapeMismatch
from gateway.meter import Meter
from gateway.model import Model, ModelPlan
from gateway.ports import Backend, Computation, ModelSource
from gateway.waiting import QueuePolicy


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        file = tmp_path / "model.py"
        file.write_text(dedent(text))
        return file

    return write


def source(file: Path, name: str = "M", datatype: str = "FP32", **changes: Any) -> ModelSource:
    tensor = TensorSpec("x", DTYPES[datatype], (-1,))
    given: dict[str, Any] = {"inputs": (tensor,), "outputs": (TensorSpec("y", tensor.dtype, (-1,)),), "parameters": {}}
    given |= changes
    return ModelSource("m", 3, file, "cpu", max_batch_size=0, options=None, member=name, **given)


def load(file: Path, name: str = "M", datatype: str = "FP32", **changes: Any) -> Computation:
    return load_pipeline(KIND, source(file, name, datatype, **changes), 1, (), ())


def request(x: Any) -> InferRequest:
    view: Any = SimpleNamespace(name="m")
    return InferRequest(view, {"x": x}, id="i7", parameters={"t": 2})


def run(computation: Computation, x: Any) -> list[Any]:
    steps = computation.executors[0].run([request(x)], lambda stage, seconds: None)
    return [response.outputs["y"].tolist() for (response,) in steps]


async def arun(computation: Computation, x: Any) -> list[Any]:
    steps = computation.executors[0].arun([request(x)], lambda stage, seconds: None)
    return [response.outputs["y"].tolist() async for (response,) in steps]


ONE = np.ones(2, np.float32)


def test_a_plain_function(write: Any) -> None:
    computation = load(
        write("""
        class M:
            def __init__(self, context):
                assert (context.name, context.version, context.device) == ("m", 3, "cpu")
                assert (context.path / "model.py").is_file()
                self.factor = context.xp.float32(context.parameters["factor"])
            def infer(self, inputs, request):
                assert (request.id, dict(request.parameters), request.cancelled) == ("i7", {"t": 2}, False)
                return {"y": inputs["x"] * self.factor}
        """),
        parameters={"factor": 3},
    )
    executor = computation.executors[0]
    assert (executor.runs_on, executor.inline, executor.decoupled) == ("thread", False, False)
    assert run(computation, ONE) == [[3, 3]]


def test_a_generator_is_decoupled(write: Any) -> None:
    computation = load(
        write("""
        class M:
            def __init__(self, context): pass
            def infer(self, inputs, request):
                for n in range(int(inputs["x"][0])):
                    yield {"y": inputs["x"] + n}
        """)
    )
    assert computation.executors[0].decoupled
    assert run(computation, ONE * 3) == [[3, 3], [4, 4], [5, 5]]
    assert run(computation, ONE * 0) == []


async def test_async_functions_run_on_the_loop(write: Any) -> None:
    file = write("""
        class M:
            def __init__(self, context): pass
            async def infer(self, inputs, request):
                return {"y": inputs["x"]}
        class Many(M):
            async def infer(self, inputs, request):
                yield {"y": inputs["x"]}
                yield {"y": -inputs["x"]}
        """)
    one, many = load(file), load(file, "Many")
    assert [(c.executors[0].runs_on, c.executors[0].decoupled) for c in (one, many)] == [
        ("loop", False),
        ("loop", True),
    ]
    assert await arun(one, ONE) == [[1, 1]]
    assert await arun(many, ONE) == [[1, 1], [-1, -1]]


def test_bytes_may_be_given_as_text_or_bytes(write: Any) -> None:
    computation = load(
        write("""
        import numpy as np
        class M:
            def __init__(self, context): pass
            def infer(self, inputs, request):
                return {"y": [inputs["x"][0], "é"]}
        """),
        datatype="BYTES",
    )
    assert run(computation, np.array([b"a"], np.object_)) == [[b"a", "é".encode()]]


RAISES = [
    ("raise ValueError('no such word')", ModelFailed, "ValueError: no such word"),
    ("raise KeyError", ModelFailed, "KeyError"),
    ("raise InvalidArgument('too short')", InvalidArgument, "too short"),
    ("return [1]", ModelFailed, "infer must return a mapping of outputs, not list"),
    ("return {}", ModelFailed, "infer returned no output 'y'"),
    ("return {'y': np.zeros(2)}", ModelFailed, "output 'y' is FP64, but FP32 is declared"),
    ("return {'y': np.zeros(2, complex)}", ModelFailed, "output 'y' is complex128, but FP32 is declared"),
]


@pytest.mark.parametrize(("line", "kind", "text"), RAISES)
def test_what_goes_wrong_is_said_in_a_line(write: Any, line: str, kind: Any, text: str) -> None:
    computation = load(
        write(f"""
        import numpy as np
        from gateway.errors import InvalidArgument
        class M:
            def __init__(self, context): pass
            def infer(self, inputs, request):
                {line}
        """)
    )
    with pytest.raises(kind) as caught:
        run(computation, ONE)
    assert caught.value.text == text


LOADS = [
    ("class M: pass", {"name": ""}, "must name a class in the file"),
    ("class Other: pass", {}, "has no class M"),
    ("class M: pass", {}, r"has no method infer\(self, inputs, request\)"),
    ("class M:\n  def infer(self, inputs, request): pass", {"inputs": ()}, "inputs and outputs declared"),
]


@pytest.mark.parametrize(("text", "changes", "words"), LOADS)
def test_what_cannot_be_loaded_is_explained(write: Any, text: str, changes: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        load(write(text), **changes)


PICKY = """
    class M:
        def __init__(self, context): pass
        {prefix}def infer(self, inputs, request):
            if inputs["x"].ndim > 2:
                raise ValueError("too deep")
            return {{"y": inputs["x"]}}
"""
SHAPES: list[tuple[str, tuple[int, ...], Any]] = [  # the model declares [-1, 1]
    ("serving_default", (2, 1), [[1], [1]]),
    ("serving_default", (2,), [1, 1]),
    ("serving_default", (), 1),
    ("serving_default", (1, 3), [[1, 1, 1]]),
    ("serving_default", (1, 1, 1), "input 'x' of model 'm' has shape [1, 1, 1], expected [-1, 1]"),
    ("", (2, 1), [[1], [1]]),
    ("", (2,), "input 'x' of model 'm' has shape [2], expected [-1, 1]"),
]


@pytest.mark.parametrize("max_batch_size", [0, 4])
@pytest.mark.parametrize("prefix", ["", "async "])
async def test_the_declared_shape_does_not_bind_callers_of_signatures(
    write: Any, prefix: str, max_batch_size: int
) -> None:
    x, y = (TensorSpec(name, DTYPES["FP32"], (-1, 1)) for name in "xy")
    file = write(PICKY.format(prefix=prefix))
    given = ModelSource("m", 1, file, "cpu", (x,), (y,), max_batch_size, None, member="M")
    plan = ModelPlan(QueuePolicy(max_batch_size=max_batch_size))
    loaded = load_pipeline(KIND, given, 1, (), ())
    model = Model("m", 1, (1,), loaded, plan, Meter(lambda stage, seconds: None, lambda rows: None))
    for signature, shape, expected in SHAPES:
        asked = InferRequest(model.view, {"x": np.ones(shape, np.float32)}, signature=signature)
        try:
            answer = (await anext(model.submit(asked))).outputs["y"].tolist()
        except ShapeMismatch as error:
            answer = error.text
        assert answer == expected
    await model.close()


def test_two_files_of_one_name_are_two_models(tmp_path: Path) -> None:
    backends: list[Backend] = []
    for folder, word in (("a", "one"), ("b", "two")):
        (tmp_path / folder).mkdir()
        file = tmp_path / folder / "model.py"
        file.write_text(f"class M:\n  word = '{word}'\n  def __init__(self, c): pass\n  def infer(self, i, r): ...")
        backends.append(KIND.load(source(file)))
    assert [backend._model.word for backend in backends] == ["one", "two"]  # type: ignore[attr-defined]
