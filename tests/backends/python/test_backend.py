"""User classes: the four shapes of infer, what they learn, what is refused."""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tensorgate.backends.execution.pipeline import load as load_pipeline
from tensorgate.backends.python.backend import KIND, ModelRequest
from tensorgate.gateway.contract.backend import Backend, ModelSource
from tensorgate.gateway.contract.canonical import InferRequest, OutputRequest, Sequence
from tensorgate.gateway.contract.errors import InvalidArgument, ModelFailed, ShapeMismatch
from tensorgate.gateway.contract.execution import Computation
from tensorgate.gateway.contract.tensor import DTYPES, TensorSpec
from tensorgate.gateway.engine.model import Model, ModelSpec
from tensorgate.gateway.engine.queue import QueuePolicy
from tensorgate.gateway.engine.scheduler_metrics import SchedulerMetrics


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


def make(file: Path, max_batch_size: int = 0, **changes: Any) -> Model:
    """A class as a loaded version."""
    loaded = load_pipeline(KIND, replace(source(file, **changes), max_batch_size=max_batch_size), 1, (), ())
    plan = ModelSpec(QueuePolicy(max_batch_size=max_batch_size))
    return Model("m", 1, (1,), loaded, plan, SchedulerMetrics(lambda stage, seconds: None, lambda rows: None))


def request(x: Any) -> InferRequest:
    view: Any = SimpleNamespace(name="m")
    return InferRequest(view, {"x": x}, id="i7", parameters={"t": 2})


def run(computation: Computation, x: Any) -> list[Any]:
    steps = computation.executors[0].run([request(x)], lambda timing: None)
    return [response.outputs["y"].tolist() for (response,) in steps]


async def arun(computation: Computation, x: Any) -> list[Any]:
    steps = computation.executors[0].arun([request(x)], lambda timing: None)
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


async def test_a_class_that_is_left_on_the_loop_is_at_its_end_before_anybody_goes_on(write: Any) -> None:
    file = write("""
        import asyncio
        ended = []
        class M:
            ended = ended
            def __init__(self, context): pass
            async def infer(self, inputs, request):
                try:
                    while True:
                        yield {"y": inputs["x"]}
                finally:
                    await asyncio.sleep(0)
                    ended.append(1)
        """)
    (executor,) = load(file).executors
    steps: Any = executor.arun([request(ONE)], lambda timing: None)
    await anext(steps)
    await steps.aclose()
    pipeline: Any = executor
    assert pipeline._backend._model.ended == [1]


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
        from tensorgate.gateway.contract.errors import InvalidArgument
        class M:
            def __init__(self, context): pass
            def infer(self, inputs, request):
                {line}
        """)
    )
    with pytest.raises(kind) as caught:
        run(computation, ONE)
    assert caught.value.text == text


TWO = """
    import asyncio
    import numpy as np
    class M:
        def __init__(self, context): pass
        {prefix}def infer(self, inputs, request):
            {keyword} {{"a": inputs["x"] + 1, "b": inputs["x"] * 2}}
"""


@pytest.mark.parametrize("prefix", ["", "async "])
@pytest.mark.parametrize("keyword", ["return", "yield"])
@pytest.mark.parametrize("max_batch_size", [0, 4])
async def test_a_caller_gets_the_outputs_that_it_asks_for(
    write: Any, prefix: str, keyword: str, max_batch_size: int
) -> None:
    shape = (-1, 1) if max_batch_size else (-1,)
    outputs = tuple(TensorSpec(name, DTYPES["FP32"], shape) for name in "ab")
    inputs = (TensorSpec("x", DTYPES["FP32"], shape),)
    model = make(write(TWO.format(prefix=prefix, keyword=keyword)), max_batch_size, inputs=inputs, outputs=outputs)
    x = np.ones((1, 1) if max_batch_size else 1, np.float32)

    async def ask(*names: str) -> list[str]:
        asked = InferRequest(model.view, {"x": x}, outputs=tuple(map(OutputRequest, names)))
        return [*(await anext(model.submit(asked))).outputs]

    assert [await ask("b"), await ask("a"), await ask("b", "a"), await ask()] == [["b"], ["a"], ["a", "b"], ["a", "b"]]
    together = await asyncio.gather(*[ask(*names) for names in (("b",), ("a",), (), ("b", "a")) * 8])
    assert together == [["b"], ["a"], ["a", "b"], ["a", "b"]] * 8
    await model.close()


SEEN = """
    import numpy as np
    class M:
        def __init__(self, context): pass
        def infer(self, inputs, request):
            seen = [request.id, request.signature, request.streaming, request.sequence and request.sequence.id]
            text = repr([*seen, dict(request.parameters), request.deadline])
            return {"y": np.full(inputs["x"].shape, text, object)}
"""


@pytest.mark.parametrize("max_batch_size", [0, 4])
async def test_what_a_class_sees_of_a_request_is_the_same_alone_and_in_a_batch(write: Any, max_batch_size: int) -> None:
    shape = (-1, 1) if max_batch_size else (-1,)
    inputs, outputs = (TensorSpec("x", DTYPES["FP32"], shape),), (TensorSpec("y", DTYPES["BYTES"], shape),)
    model = make(write(SEEN), max_batch_size, inputs=inputs, outputs=outputs)
    x = np.ones((1, 1) if max_batch_size else 1, np.float32)
    callers = [
        {"id": f"i{number}", "signature": signature, "stream": stream, "parameters": parameters, "sequence": sequence}
        for number, (signature, stream, parameters, sequence) in enumerate(
            itertools.product(
                ("", "serving_default", "other"), (False, True), ({}, {"t": 1}, {"t": True}), (None, Sequence(7))
            )
        )
    ]

    async def ask(facts: dict[str, Any]) -> str:
        answer = await anext(model.submit(InferRequest(model.view, {"x": x}, **facts)))
        text: str = answer.outputs["y"].item().decode()
        return text

    alone = [await ask(facts) for facts in callers]
    assert await asyncio.gather(*[ask(facts) for facts in callers]) == alone
    for seen, facts in zip(alone, callers, strict=True):
        own = [facts["id"], facts["signature"] or "serving_default", facts["stream"], facts["sequence"] and 7]
        if max_batch_size:
            own[0], own[3] = "", None
        assert seen == repr([*own, facts["parameters"], None])
    await model.close()


def test_a_call_of_several_lasts_as_long_as_its_most_patient_caller() -> None:
    def told(*deadlines: float | None) -> ModelRequest:
        return ModelRequest([replace(request(ONE), deadline=each) for each in deadlines], shared=True)

    assert told(3.0, 5.0, 4.0).deadline == 5.0
    assert told(3.0, None).deadline is None
    both = told(3.0, 4.0)
    both._requests[0].cancellation.end()
    assert not both.cancelled
    both._requests[1].cancellation.end()
    assert both.cancelled


async def test_callers_of_a_stream_do_not_share_a_batch(write: Any) -> None:
    lines = """
        class M:
            def __init__(self, context): pass
            def infer(self, inputs, request):
                for n in range(3):
                    yield {"y": inputs["x"] + n}
        """
    tensors = [(TensorSpec(name, DTYPES["FP32"], (-1, 1)),) for name in "xy"]
    model = make(write(lines), 4, inputs=tensors[0], outputs=tensors[1])

    async def ask(number: int) -> list[float]:
        asked = InferRequest(model.view, {"x": np.full((1, 1), number, np.float32)})
        return [answer.outputs["y"].item() async for answer in model.submit(asked)]

    async with asyncio.timeout(20):
        assert await asyncio.gather(*map(ask, range(6))) == [[n, n + 1, n + 2] for n in range(6)]
    await model.close()


OUTPUT_SHAPES: list[tuple[tuple[int, ...] | None, str, int, str]] = [  # declared, given, max_batch_size, the error
    ((2, 3), "np.zeros(4, np.float32)", 0, "[4], but [2, 3]"),
    ((2, 3), "np.zeros((2, 3), np.float32)", 0, ""),
    ((-1, 3), "np.zeros((5, 3), np.float32)", 0, ""),
    ((-1, 3), "np.zeros((5, 4), np.float32)", 0, "[5, 4], but [-1, 3]"),
    ((), "np.float32(1)", 0, ""),
    ((), "np.zeros(1, np.float32)", 0, "[1], but []"),
    (None, "np.zeros((5, 4), np.float32)", 0, ""),
    ((-1, 3), "np.zeros((len(x), 3), np.float32)", 4, ""),
    ((7, 3), "np.zeros((len(x), 3), np.float32)", 4, ""),
    ((-1, 3), "np.zeros((len(x), 4), np.float32)", 4, "[2, 4], but [-1, 3]"),
    ((-1, 3), "np.zeros(len(x), np.float32)", 4, "[2], but [-1, 3]"),
]


@pytest.mark.parametrize("form", ["return", "yield", "async return", "async yield"])
@pytest.mark.parametrize(("declared", "given", "rows", "text"), OUTPUT_SHAPES, ids=str)
async def test_a_class_is_held_to_the_shapes_that_are_declared(
    write: Any, form: str, declared: Any, given: str, rows: int, text: str
) -> None:
    prefix, keyword = form[:-6].strip() and "async ", form.split()[-1]
    file = write(f"""
        import numpy as np
        class M:
            def __init__(self, context): pass
            {prefix}def infer(self, inputs, request):
                x = inputs["x"]
                {keyword} {{"y": {given}}}
        """)
    model = make(file, rows, outputs=(TensorSpec("y", DTYPES["FP32"], declared),))
    asked = InferRequest(model.view, {"x": np.ones(2, np.float32)})
    if text:
        with pytest.raises(ModelFailed) as caught:
            await anext(model.submit(asked))
        assert caught.value.text == f"output 'y' of model 'm' has shape {text} is declared"
    else:
        await anext(model.submit(asked))
    await model.close()


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
    plan = ModelSpec(QueuePolicy(max_batch_size=max_batch_size))
    loaded = load_pipeline(KIND, given, 1, (), ())
    model = Model("m", 1, (1,), loaded, plan, SchedulerMetrics(lambda stage, seconds: None, lambda rows: None))
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
