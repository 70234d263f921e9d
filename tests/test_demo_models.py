"""The files below config/demo/ are what config/demo.yaml says of them."""

import importlib.util
import json
import struct
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import yaml

from gateway.errors import InvalidArgument

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


@pytest.mark.parametrize(("model", "addend"), [("half_plus_two", 2), ("half_plus_three", 3)])
@pytest.mark.parametrize("x", [5.0, [1.0, 2.0, 5.0], [[1.0], [2.0]]], ids=["scalar", "vector", "column"])
def test_half_plus_takes_any_rank(model: str, addend: int, x: Any) -> None:
    (y,) = run(f"{model}/1", x=np.array(x, np.float32))
    np.testing.assert_array_equal(y, np.array(x, np.float32) / 2 + np.float32(addend), strict=True)


@pytest.mark.parametrize("model", ["half_plus_two", "half_plus_three"])
def test_half_plus_declares_no_rank(model: str) -> None:
    graph = onnx.load(DEMO / "models" / model / "1/model.onnx").graph
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
    spec = importlib.util.spec_from_file_location(Path(file).stem, DEMO.parent / file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)(SimpleNamespace(name="demo", xp=np, parameters=context))


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


def test_running_sum_adds_row_by_row() -> None:
    sums, steps = np.array([[10], [-3]], np.int32), np.array([[1], [2]], np.int32)
    answer = load("demo/models/running_sum.py:RunningSum").infer({"SUM": sums, "INPUT": steps}, request=None)
    assert answer["OUTPUT"].tolist() == answer["NEXT"].tolist() == [[11], [-1]]
    assert answer["NEXT"].dtype == np.int32


# ------------------------------------------------------------------------------------------------------- configuration


def test_the_configuration_names_files_that_exist() -> None:
    models = yaml.safe_load((DEMO.parent / "demo.yaml").read_text())["models"]
    paths = [options["path"].split(":")[0] for options in models.values()]
    paths += [*models["digits"]["class_labels"].values(), models["digits"]["example"]]
    assert len(paths) == 9
    assert [path for path in paths if not (DEMO.parent / path).exists()] == []


def test_files_are_small() -> None:
    sizes = [path.stat().st_size for path in DEMO.rglob("*") if path.is_file()]
    assert max(sizes) < 200_000
