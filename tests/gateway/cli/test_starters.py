"""`tensorgate new`: each starter passes the check, serves, and answers what it says to try."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import numpy as np
import pytest
from PIL import Image

from tensorgate.gateway.app import App, registries
from tensorgate.gateway.cli import starters
from tensorgate.gateway.cli.main import main
from tensorgate.gateway.cli.starters import STARTERS
from tensorgate.gateway.config import load_config

PHOTO = "photo.jpg"
ANSWERED = {
    "python": "row  similarity: FP32\n0    0.707107\n",
    "onnx": "row  y: FP32\n0    2.5\n1    3\n2    4.5\n",
    "images": "row  colours: FP32\n0    ",
    "text": '"text_output":"one two three"',
    "remote": "",
    "triton": "row  y: FP32\n0    2 4\n",
    "tf-serving": "2.5, 3.0, 4.5",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Image.fromarray(np.full((30, 40, 3), 200, np.uint8)).save(PHOTO)
    return tmp_path


@pytest.mark.parametrize("kind", STARTERS)
def test_a_starter_passes_the_check(kind: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", kind]) == 0
    assert f"tensorgate serve {kind}/gateway.yaml" in capsys.readouterr().out
    assert main(["check", f"{kind}/gateway.yaml", "--load"]) == 0, capsys.readouterr()
    assert main(["new", kind]) == 1
    assert "is there already, and nothing was written" in capsys.readouterr().err


@pytest.fixture
async def served(request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[tuple[str, str]]:
    """A starter that is served on ports of the system's choice -> its kind, and where it speaks HTTP."""
    kind = request.param
    starters.write(kind, folder)
    file = folder / starters.FILE
    text = file.read_text()
    for port in (8000, 8001, 8002, 8500, 8501):
        text = text.replace(f'"0.0.0.0:{port}"', '"127.0.0.1:0"')
    file.write_text(text)
    kinds = registries()
    app = App(load_config(file, kinds), kinds)
    await app.start()
    await app.load(lambda report: None)
    yield kind, app.addresses[0]
    await app.drain()


@pytest.mark.parametrize("served", [kind for kind in STARTERS if ANSWERED[kind]], indirect=True)
async def test_what_it_says_to_try_is_answered(served: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    kind, url = served
    for line in STARTERS[kind].tries:
        words = shlex.split(line)
        if words[0] == "tensorgate":
            status = await asyncio.to_thread(main, [*words[1:], "--url", url])
            assert (status, ANSWERED[kind] in capsys.readouterr().out) == (0, True)
            continue
        path = "/" + next(word for word in words if word.startswith("localhost")).partition("/")[2]
        async with aiohttp.ClientSession() as http, http.post(url + path, data=words[-1]) as answer:
            said = await answer.text()
        assert answer.status == 200, said
        assert ANSWERED[kind] in said or said.count("data: ") == 3, said
