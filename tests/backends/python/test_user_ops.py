"""Operators of the user's own: from a class in a file and a line of YAML to an answer, and what is said of bad ones."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
import yaml

from tensorgate.gateway.app import App, registries
from tensorgate.gateway.cli.check import misfits
from tensorgate.gateway.cli.main import main
from tensorgate.gateway.config import ConfigError, json_schema, load_config
from tensorgate.gateway.contract.canonical import InferRequest, ModelRef
from tensorgate.gateway.contract.errors import GatewayError, InvalidArgument, ModelFailed

CLIP = '''
from typing import Annotated
from pydantic import Field


class Clip:
    """Values kept within bounds."""

    def __init__(self, input: str, low: Annotated[float, Field(description="The least.")] = 0.0, high: float = 1.0):
        if low > high:
            raise ValueError("low is above high")
        self.input, self.low, self.high = input, low, high

    def specs(self, specs):
        if self.input not in specs:
            raise ValueError(f"there is no tensor '{self.input}'")
        return specs

    def __call__(self, tensors, xp):
        return {**tensors, self.input: xp.clip(tensors[self.input], self.low, self.high)}
'''
OPTIONS = '''
from tensorgate.gateway.contract.options import Options


class Add:
    class Options(Options):
        """So much more."""

        input: str
        terms: tuple[float, ...]

    def __init__(self, options):
        self.options = options

    def specs(self, specs):
        return specs

    def __call__(self, tensors, xp):
        return {**tensors, self.options.input: tensors[self.options.input] + xp.float32(sum(self.options.terms))}
'''
ECHO = """
class Echo:
    def __init__(self, context):
        pass

    def infer(self, inputs, request):
        return {"y": inputs["x"]}
"""
MODEL: dict[str, Any] = {
    "backend": "python",
    "path": "echo.py:Echo",
    "max_batch_size": 8,
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 2]}],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "ops.py").write_text(CLIP)
    (tmp_path / "more.py").write_text(OPTIONS)
    (tmp_path / "echo.py").write_text(ECHO)
    return tmp_path


def write(folder: Path, ops: dict[str, str], model: dict[str, Any], **more: Any) -> Path:
    file = folder / "gateway.yaml"
    file.write_text(yaml.safe_dump({"ops": ops, "models": {"m": MODEL | model}, **more}, sort_keys=False))
    return file


async def answer(file: Path, x: Any, name: str = "m") -> Any:
    kinds = registries()
    app = App(load_config(file, kinds), kinds)
    errors: list[str] = []
    await app.load(lambda report: errors.append(report.error) if report.error else None)
    assert errors == []
    try:
        view = app.router.resolve(ModelRef(name))
        async with asyncio.timeout(10):
            async for response in view.handle.submit(InferRequest(view, {"x": np.asarray(x, np.float32)})):
                return response.outputs["y"].tolist()
    finally:
        await app.drain()


async def test_a_class_and_a_line(folder: Path) -> None:
    steps = {
        "preprocess": [{"op": "clip", "input": "x", "high": 2}],
        "postprocess": [{"op": "add", "input": "y", "terms": [1, 0.5]}],
    }
    file = write(folder, {"clip": "ops.py:Clip", "add": "more.py:Add"}, steps)
    assert await answer(file, [[-3, 1], [2, 9]]) == [[1.5, 2.5], [3.5, 3.5]]
    assert misfits(load_config(file, registries()), file, registries()) == []


async def test_in_a_repository(folder: Path) -> None:
    (folder / "models" / "own").mkdir(parents=True)
    entry = MODEL | {"path": "../../echo.py:Echo", "preprocess": [{"op": "clip", "input": "x"}]}
    (folder / "models" / "own" / "model.yaml").write_text(yaml.safe_dump(entry))
    file = write(folder, {"clip": "ops.py:Clip"}, {}, repositories=["models"])
    assert await answer(file, [[-3, 0.5]], "own") == [[0, 0.5]]
    assert main(["check", str(file)]) == 0


def test_the_configuration_reads_back(folder: Path) -> None:
    kinds = registries()
    file = write(folder, {"clip": "ops.py:Clip"}, {"preprocess": [{"op": "clip", "input": "x"}]})
    config = load_config(file, kinds)
    plain = config.plain()
    assert plain["ops"] == {"clip": "ops.py:Clip"}
    assert plain["models"]["m"]["preprocess"] == [{"op": "clip", "input": "x", "low": 0, "high": 1}]
    file.write_text(yaml.safe_dump(plain))
    assert load_config(file, kinds).plain() == plain


def test_the_schema(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(folder, {"clip": "ops.py:Clip"}, {"preprocess": [{"op": "clip", "input": "x"}]})
    plain = yaml.safe_load(file.read_text())
    assert main(["schema", str(file)]) == 0
    own = json.loads(capsys.readouterr().out)
    import jsonschema  # a machine that has GPUs to test may have none

    jsonschema.validate(plain, own)
    plain["models"]["m"]["preprocess"] = []
    jsonschema.validate(plain, json_schema(registries()))
    assert main(["ops", "--config", str(file), "clip"]) == 0
    assert capsys.readouterr().out == dedent(
        """\
        clip
          Values kept within bounds.

          input: text, required
          low: number, default 0.0
              The least.
          high: number, default 1.0
        """
    )


BROKEN: dict[str, tuple[str, str]] = {
    "no such file": ("nowhere.py:Clip", "no such file or directory: "),
    "no class named": ("ops.py", "ops.py must name a class in the file, too: ops.py:Clip"),
    "no such class": ("ops.py:Clap", "ops.py has no class Clap"),
    "no class at all": ("ops.py:Annotated", "ops.py has no method specs(self, specs)"),
    "a value": ("broken.py:value", "value in "),
    "no specs": ("broken.py:NoSpecs", "has no method specs(self, specs)"),
    "no call": ("broken.py:NoCall", "has no method __call__(self, tensors, xp)"),
    "nameless parameters": ("broken.py:Nameless", "the parameter rest has no name that the YAML could give"),
    "the step's own key": ("broken.py:Own", "the parameter op has the name of the step's own key"),
    "an attribute of pydantic": ("broken.py:Hides", 'Field name "copy"'),
    "an unknown annotation": ("broken.py:Unknown", "name 'Nonsense' is not defined"),
    "a type that YAML cannot say": ("broken.py:Strange", "Unable to generate pydantic-core schema"),
    "other options": ("broken.py:Other", "Other.Options in "),
    "a file that fails": ("fails.py:Clip", "ZeroDivisionError: division by zero"),
    "a file that is no Python": ("text.py:Clip", "SyntaxError: "),
}
FILES = {
    "broken.py": """
        class Base:
            def specs(self, specs): return specs
            def __call__(self, tensors, xp): return tensors
        class NoSpecs:
            def __call__(self, tensors, xp): return tensors
        class NoCall:
            def specs(self, specs): return specs
        class Nameless(Base):
            def __init__(self, *rest): pass
        class Own(Base):
            def __init__(self, op: str): pass
        class Hides(Base):
            def __init__(self, copy: str): pass
        class Unknown(Base):
            def __init__(self, x: "Nonsense"): pass
        class Strange(Base):
            def __init__(self, x: NoCall): pass
        class Other(Base):
            class Options: pass
        value = 1
        """,
    "fails.py": "1 / 0\n",
    "text.py": "no Python (\n",
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_no_operator(folder: Path, case: str) -> None:
    for name, text in FILES.items():
        (folder / name).write_text(dedent(text))
    written, words = BROKEN[case]
    file = write(folder, {"own": written}, {})
    with pytest.raises(ConfigError) as caught:
        load_config(file, registries())
    (problem,) = caught.value.problems
    assert (problem.line, problem.key) == (2, "ops.own")
    assert words in problem.text


async def test_ones_own_takes_the_place_of_one_of_that_name(folder: Path) -> None:
    """So a new operator of the gateway breaks nobody's configuration."""
    file = write(folder, {"softmax": "ops.py:Clip"}, {"preprocess": [{"op": "softmax", "input": "x"}]})
    assert await answer(file, [[-3, 300]]) == [[0, 1]]


def test_names(folder: Path) -> None:
    file = write(folder, {"my op": "ops.py:Clip"}, {})
    with pytest.raises(ConfigError, match=r'ops\."my op": '):
        load_config(file, registries())


STEPS: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown key": ({"input": "x", "hihg": 1}, r"preprocess\[0\]\.hihg: unknown key; did you mean high\?"),
    "a missing key": ({}, r"preprocess\[0\]\.input: missing required key"),
    "another type": ({"input": "x", "low": "0"}, r"preprocess\[0\]\.low: found \"0\", expected a number"),
}


@pytest.mark.parametrize("case", STEPS)
def test_keys_are_checked(folder: Path, case: str) -> None:
    step, words = STEPS[case]
    file = write(folder, {"clip": "ops.py:Clip"}, {"preprocess": [{"op": "clip", **step}]})
    with pytest.raises(ConfigError, match=words):
        load_config(file, registries())


def test_what_it_objects_to(folder: Path) -> None:
    step: Any
    for step, words in [
        ({"input": "x", "low": 3}, "models.m.preprocess[0]: low is above high"),
        ({"input": "z"}, "models.m.preprocess[0]: clip: there is no tensor 'z'"),
    ]:
        file = write(folder, {"clip": "ops.py:Clip"}, {"preprocess": [{"op": "clip", **step}]})
        ((name, problem),) = misfits(load_config(file, registries()), file, registries())
        assert name == "m"
        assert str(problem).endswith(words)
        assert problem.line > 0


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        ("raise InvalidArgument('not so')", InvalidArgument, "not so"),
        ("return 1 / 0", ModelFailed, "own: ZeroDivisionError: division by zero"),
        ("return None", ModelFailed, "own must return a mapping of tensors, not NoneType"),
    ],
)
async def test_what_it_raises(folder: Path, body: str, kind: type[GatewayError], words: str) -> None:
    text = f"""
        from tensorgate.gateway.contract.errors import InvalidArgument
        class Own:
            def specs(self, specs): return specs
            def __call__(self, tensors, xp): {body}
        """
    (folder / "own.py").write_text(dedent(text))
    file = write(folder, {"own": "own.py:Own"}, {"preprocess": [{"op": "own"}]})
    with pytest.raises(kind, match=words):
        await answer(file, [[1, 2]])


@pytest.mark.parametrize("body", ["return None", "return {'a': 1}", "return {'a': specs['x']}", "return 1 / 0"])
def test_specs_that_are_none(folder: Path, body: str) -> None:
    text = f"""
        class Own:
            def specs(self, specs): {body}
            def __call__(self, tensors, xp): return tensors
        """
    (folder / "own.py").write_text(dedent(text))
    file = write(folder, {"own": "own.py:Own"}, {"preprocess": [{"op": "own"}]})
    ((_, problem),) = misfits(load_config(file, registries()), file, registries())
    assert problem.key == "models.m.preprocess[0]"
    assert problem.text.startswith("own: ")
