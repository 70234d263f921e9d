"""The files below config/demo/ are what config/demo.yaml says of them."""

import importlib.util
import json
import re
import struct
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tensorgate.gateway.contract.errors import InvalidArgument

DEMO = Path(__file__).parents[1] / "config" / "demo"
SHOWN = (0, 2, 3, 5, 7, 9)


def run(model: str, **inputs: Any) -> list[Any]:
    session = onnxruntime.InferenceSession(DEMO / "models" / model / "model.onnx", providers=["CPUExecutionProvider"])
    return list(session.run(None, inputs))


def pixels(digit: int) -> Any:
    return np.array(json.loads((DEMO / f"images/{digit}.json").read_bytes()))


# -------------------------------------------------------------------------------------------------------------- digits


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("digit", SHOWN)
def test_every_version_reads_every_shown_digit(digit: int, version: int) -> None:
    (logits,) = run(f"digits/{version}", image=(pixels(digit)[None] / 16).astype(np.float32))
    assert logits.shape == (1, 10)
    assert logits.argmax() == digit


def test_digits_are_read_row_by_row() -> None:
    images = np.stack([pixels(digit) for digit in SHOWN]) / 16
    (logits,) = run("digits/2", image=images.astype(np.float32))
    assert tuple(logits.argmax(axis=1)) == SHOWN


def test_labels_follow_the_classes() -> None:
    labels = (DEMO / "models/digits/labels.txt").read_text().splitlines()
    assert labels == ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


@pytest.mark.parametrize("digit", SHOWN)
def test_numbers_and_picture_show_the_same(digit: int) -> None:
    paper = decode_png((DEMO / f"images/{digit}.png").read_bytes())
    assert paper.shape == (128, 128)
    grey = (255 - pixels(digit) * 255 / 16).astype(np.uint8)
    np.testing.assert_array_equal(paper, grey.repeat(16, axis=0).repeat(16, axis=1))


def decode_png(content: bytes) -> Any:
    """8 bit grey, not interlaced -> UINT8 [rows, columns]. Source: the PNG specification, filter types."""
    width, height, *form = struct.unpack(">IIBBBBB", content[16:29])
    assert form == [8, 0, 0, 0, 0]
    lines = np.frombuffer(zlib.decompress(idat(content)), np.uint8).reshape(height, 1 + width)
    above = [0] * width
    rows = []
    for filter_type, *line in lines.tolist():
        row: list[int] = []
        for byte, up, corner in zip(line, above, [0, *above], strict=False):
            left = row[-1] if row else 0
            row.append((byte + predicted(filter_type, left, up, corner)) % 256)
        rows.append(row)
        above = row
    return np.array(rows, np.uint8)


def idat(content: bytes) -> bytes:
    data, at = b"", 8
    while at < len(content):
        size, kind = struct.unpack(">I4s", content[at : at + 8])
        data += content[at + 8 : at + 8 + size] if kind == b"IDAT" else b""
        at += 12 + size
    return data


def predicted(filter_type: int, left: int, up: int, corner: int) -> int:
    guess = left + up - corner
    paeth = min((left, up, corner), key=lambda near: abs(guess - near))
    return (0, left, up, (left + up) // 2, paeth)[filter_type]


# ---------------------------------------------------------------------------------------------------------- arithmetic


@pytest.mark.parametrize(("model", "addend"), [("half_plus_two/1", 2), ("half_plus_three/123", 3)])
@pytest.mark.parametrize("x", [5.0, [1.0, 2.0, 5.0], [[1.0], [2.0]]], ids=["scalar", "vector", "column"])
def test_half_plus_takes_any_rank(model: str, addend: int, x: Any) -> None:
    (y,) = run(model, x=np.array(x, np.float32))
    np.testing.assert_array_equal(y, np.array(x, np.float32) / 2 + np.float32(addend), strict=True)


@pytest.mark.parametrize("model", ["half_plus_two/1", "half_plus_three/123"])
def test_half_plus_declares_no_rank(model: str) -> None:
    graph = onnx.load(DEMO / "models" / model / "model.onnx").graph
    assert [info.name for info in (*graph.input, *graph.output)] == ["x", "y"]
    assert not any(info.type.tensor_type.HasField("shape") for info in (*graph.input, *graph.output))


def test_add_sub() -> None:
    a, b = np.arange(32, dtype=np.int32).reshape(2, 16), np.full((2, 16), 5, np.int32)
    total, difference = run("add_sub/1", INPUT0=a, INPUT1=b)
    np.testing.assert_array_equal(total, a + b, strict=True)
    np.testing.assert_array_equal(difference, a - b, strict=True)


# ------------------------------------------------------------------------------------------------------ python classes


def load(model: str, **context: Any) -> Any:
    """The class that the YAML names as file:Class, made as the python backend makes it."""
    file, name = model.split(":")
    path = DEMO.parent / file
    return getattr(load_module(path), name)(SimpleNamespace(name="demo", path=path.parent, xp=np, parameters=context))


def load_module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look their own up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("shape", [(), (2,), (2, 1), (0,)])
def test_upper_keeps_the_shape(shape: tuple[int, ...]) -> None:
    text = np.full(shape, "straße".encode(), object)
    shout = load("demo/models/upper.py:Upper").infer({"text": text}, request=None)["shout"]
    assert shout.shape == shape
    assert shout.tolist() == np.full(shape, b"STRASSE", object).tolist()


def test_upper_blames_the_caller_for_what_is_not_text() -> None:
    with pytest.raises(InvalidArgument, match="UTF-8"):
        load("demo/models/upper.py:Upper").infer({"text": np.array([b"\xff"], object)}, request=None)


@pytest.mark.parametrize(("start", "counts"), [(3, [3, 2, 1, 0]), (0, [0]), (-1, [])])
def test_countdown_answers_once_per_number(start: int, counts: list[int]) -> None:
    model = load("demo/models/countdown.py:Countdown", pause_ms=0)
    answers = [answer["count"] for answer in model.infer({"start": np.array([start], np.int32)}, request=None)]
    assert [answer.tolist() for answer in answers] == [[count] for count in counts]
    assert all(answer.dtype == np.int32 for answer in answers)


# -------------------------------------------------------------------------------------------------------------- writer


@pytest.fixture(scope="module")
def writer() -> Any:
    return load("demo/models/writer.py:Writer")


def write(writer: Any, text: str, parameters: Mapping[str, Any] | None = None, **inputs: Any) -> list[str]:
    """The texts of all answers."""
    dtypes = {"max_tokens": np.int32, "temperature": np.float32, "seed": np.int64, "stream": np.bool_}
    tensors: dict[str, Any] = {name: np.array([value], dtypes[name]) for name, value in inputs.items()}
    tensors["text_input"] = np.array([text.encode()], object)
    request = SimpleNamespace(parameters=parameters or {}, cancelled=False)
    answers = list(writer.infer(tensors, request))
    assert all(len(answer["text_output"]) == 1 for answer in answers)
    return [answer["text_output"][0] for answer in answers]


def test_writer_goes_on_in_english(writer: Any) -> None:
    [text] = write(writer, "And he said", max_tokens=400, seed=1)
    words = re.findall("[A-Za-z']+", text)
    assert len(words) > 200
    assert {"the", "and", "of", "to", "in", "I", "that"} <= set(words)


@pytest.mark.parametrize("wish", [{"temperature": 0.0}, {"seed": 5}, {"temperature": 2.0, "seed": 5}])
def test_writer_says_the_same_whole_and_in_pieces(wish: dict[str, Any], writer: Any) -> None:
    [whole] = write(writer, "Let there be", max_tokens=30, **wish)
    pieces = write(writer, "Let there be", max_tokens=30, stream=True, **wish)
    assert len(pieces) == 30
    assert all(pieces)
    assert "".join(pieces) == whole
    assert [whole] == write(writer, "Let there be", max_tokens=30, **wish)


def test_writer_takes_parameters_for_inputs_and_inputs_first(writer: Any) -> None:
    wish = {"max_tokens": 9, "temperature": 1, "seed": 4, "stream": True}
    pieces = write(writer, "A wise man", wish)
    assert pieces == write(writer, "A wise man", **wish)
    assert len(write(writer, "A wise man", wish, max_tokens=3)) == 3
    assert len(write(writer, "A wise man", {"max_tokens": 3, "top_p": 0.5, "stop": "."}, stream=True)) == 3


def test_writer_draws_by_the_seed(writer: Any) -> None:
    assert len({tuple(write(writer, "A wise man", max_tokens=20, seed=seed)) for seed in range(5)}) == 5
    unseeded = {tuple(write(writer, "A wise man", max_tokens=20)) for _ in range(5)}
    assert len(unseeded) > 1


WISHES: list[tuple[str, dict[str, Any], str]] = [
    ("", {}, "text_input is empty"),
    ("a" * 2001, {}, "text_input has 2001 characters, the writer reads 2000 at most"),
    ("na\u00efve", {}, "text_input has the character '\u00ef', the writer knows white space and !'(),-.:;?ABC"),
    ("a", {"max_tokens": 0}, "max_tokens must be a whole number from 1 to 1024, not 0"),
    ("a", {"max_tokens": -1}, "max_tokens must be a whole number from 1 to 1024, not -1"),
    ("a", {"max_tokens": 2**40}, "max_tokens must be a whole number from 1 to 1024, not 1099511627776"),
    ("a", {"max_tokens": 5.0}, "max_tokens must be a whole number from 1 to 1024, not 5.0"),
    ("a", {"max_tokens": True}, "max_tokens must be a whole number from 1 to 1024, not True"),
    ("a", {"temperature": -0.5}, "temperature must be a number from 0 to 2.0, not -0.5"),
    ("a", {"temperature": float("nan")}, "temperature must be a number from 0 to 2.0, not nan"),
    ("a", {"temperature": float("inf")}, "temperature must be a number from 0 to 2.0, not inf"),
    ("a", {"temperature": "hot"}, "temperature must be a number from 0 to 2.0, not hot"),
    ("a", {"temperature": False}, "temperature must be a number from 0 to 2.0, not False"),
    ("a", {"seed": -1}, "seed must be a whole number, 0 or more, not -1"),
    ("a", {"seed": "x"}, "seed must be a whole number, 0 or more, not x"),
    ("a", {"stream": 1}, "stream must be true or false, not 1"),
]


@pytest.mark.parametrize(("text", "parameters", "complaint"), WISHES)
def test_writer_says_what_it_cannot_do(text: str, parameters: dict[str, Any], complaint: str, writer: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        write(writer, text, parameters)
    assert caught.value.text.startswith(complaint)


def test_writer_wants_utf_8(writer: Any) -> None:
    request = SimpleNamespace(parameters={}, cancelled=False)
    with pytest.raises(InvalidArgument, match="text_input is not UTF-8"):
        next(writer.infer({"text_input": np.array([b"\xff"], object)}, request))


def test_writer_stops_when_nobody_waits(writer: Any) -> None:
    request = SimpleNamespace(parameters={}, cancelled=True)
    assert list(writer.infer({"text_input": np.array([b"And"], object)}, request)) == []


@given(st.data())
def test_writer_reads_all_of_a_prompt(writer: Any, data: st.DataObject) -> None:
    letters = sorted(piece for piece in writer.pieces if len(piece) == 1)
    joined = st.lists(st.sampled_from(writer.pieces), min_size=1).map("".join)
    prompt = data.draw(st.text(letters, min_size=1, max_size=60) | joined)
    assert "".join(writer.pieces[code] for code in writer.prompt(prompt.encode())) == prompt


@pytest.fixture(scope="module")
def trainer() -> Any:
    return load_module(DEMO / "make_language_model.py")


def test_writer_reads_as_it_was_trained(writer: Any, trainer: Any) -> None:
    with np.load(DEMO / "models/writer/weights.npz") as file:
        weights = {name: file[name].astype(np.float32) for name in file.files if name != "pieces"}
    codes = writer.prompt(b"In the beginning God created the heaven and the earth.")
    state = np.zeros((1, trainer.HIDDEN), np.float32)
    _, states, _ = trainer.forward(weights, np.array(codes)[:, None], state)
    read = state[0]
    for code in codes:
        read = writer.read(read, code)
    np.testing.assert_allclose(read, states[-1, 0], atol=1e-4)
    assert trainer.loss_of(weights, np.array(codes)) < 4.0


def test_gradients_worked_out_by_hand(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small step along a gradient changes the loss as much as the gradient says."""
    for name, size in (("PIECES", 11), ("EMBEDDING", 5), ("HIDDEN", 7)):
        monkeypatch.setattr(trainer, name, size)
    rng = np.random.default_rng(1)
    shapes = {"embedding": (11, 5), "bias": 11, "into": (5, 21), "into_bias": 21, "over": (7, 21), "over_bias": 21}
    weights = {
        name: rng.standard_normal(shape).astype(np.float32) for name, shape in (shapes | {"out": (7, 5)}).items()
    }
    read, follows = rng.integers(0, 11, (2, 6, 3))
    state = rng.standard_normal((3, 7)).astype(np.float32)
    _, gradients, _ = trainer.learn(weights, read, follows, state)
    for name, gradient in gradients.items():
        length = np.linalg.norm(gradient)
        step = 0.01 * gradient / length
        ahead, behind = (
            trainer.learn(weights | {name: weights[name] + sign * step}, read, follows, state)[0] for sign in (1, -1)
        )
        assert (ahead - behind) / 0.02 == pytest.approx(length, rel=0.01, abs=1e-4), name


def test_pieces_are_what_often_stands_together(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "the then the them, a hat\n"
    monkeypatch.setattr(trainer, "PIECES", len(set(text)) + 3)
    pieces = trainer.find_pieces(text)
    assert pieces[: len(set(text))] == sorted(set(text))
    assert pieces[-3:] == ["th", "the", " the"]
    assert "".join(pieces[code] for code in trainer.encode(text, pieces)) == text


def test_running_sum_adds_row_by_row() -> None:
    sums, steps = np.array([[10], [-3]], np.int32), np.array([[1], [2]], np.int32)
    answer = load("demo/models/running_sum.py:RunningSum").infer({"SUM": sums, "INPUT": steps}, request=None)
    assert answer["OUTPUT"].tolist() == answer["NEXT"].tolist() == [[11], [-1]]
    assert answer["NEXT"].dtype == np.int32


# ------------------------------------------------------------------------------------------------------- configuration


def test_the_configuration_names_files_that_exist() -> None:
    models = yaml.safe_load((DEMO.parent / "demo.yaml").read_text())["models"]
    paths = [options["path"].split(":")[0] for options in models.values()]
    paths += [*models["digits"]["class_labels"].values(), models["digits"]["example"], models["writer"]["example"]]
    paths += [options["text"]["tokenizer"] for options in models.values() if "text" in options]
    paths.append(models["writer"]["text"]["chat_template"])
    assert len(paths) == 15
    assert [path for path in paths if not (DEMO.parent / path).exists()] == []


def test_files_are_small() -> None:
    sizes = {path.name: path.stat().st_size for path in DEMO.rglob("*") if path.is_file()}
    assert sizes.pop("weights.npz") < 2_000_000
    assert (DEMO / "models/embedder/1/model.onnx").stat().st_size < 5_000_000
    del sizes["model.onnx"]
    assert max(sizes.values()) < 200_000
