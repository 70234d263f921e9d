"""/docs in a real browser: what it shows of the documents, and requests of every dialect sent with the mouse."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, chromium
from serving import Gateway, demo_config, running

pytestmark = pytest.mark.heavy
MARKUP = "<img src=x onerror=alert(1)>"
CALLS = {
    "/v2/models/half_plus_two/infer": lambda answer: answer["outputs"][0]["data"],
    "/v1/models/half_plus_two:predict": lambda answer: answer["predictions"],
    "/grps/v1/infer/predict": lambda answer: answer["gtensors"]["tensors"][0]["flat_float32"],
}
SHOWN = (
    "[...document.querySelectorAll('details')].find(node => node.querySelector('summary code').innerText === {path})"
)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("docs")
    (folder / "echo.py").write_text("class Echo:\n    def infer(self, inputs, request):\n        return inputs\n")
    tensors = [{"name": MARKUP, "datatype": "FP32", "shape": [1]}]
    markup = {"backend": "python", "path": str(folder / "echo.py:Echo"), "inputs": tensors, "outputs": tensors}
    file = folder / "gateway.yaml"
    file.write_text(demo_config({MARKUP: markup}))
    with running(file) as made:
        yield made
        assert made.stop() == 0, made.said


def in_browser(url: str, folder: Path, steps: Any) -> None:
    async def run() -> None:
        async with chromium(folder) as browser:
            await browser.go(url)
            await steps(browser)
            assert browser.complaints == []

    asyncio.run(run())


@pytest.mark.parametrize("path", CALLS)
def test_an_operation_is_shown_and_sent(path: str, gateway: Gateway, tmp_path: Path) -> None:
    async def steps(browser: Browser) -> None:
        node = SHOWN.format(path=json.dumps(path))
        await browser.value(f"{node}.querySelector('summary').click() || 1")
        inside = f"{node}.querySelector('.inside')"
        assert "x" in await browser.value(f"{inside}.innerText")
        await browser.value(f"{inside}.querySelector('textarea').value")
        await browser.value(f"{inside}.querySelector('button.run').click() || 1")
        told = await browser.value(
            f"(text => text.startsWith('200') && text)({inside}.querySelector('label + pre').innerText)"
        )
        answer = json.loads(told.partition("\n\n")[2])
        numbers = CALLS[path](answer)  # type: ignore[no-untyped-call]
        assert numbers == [2.5] * len(numbers)

    in_browser(f"{gateway.url}/docs?model=half_plus_two", tmp_path / "profile", steps)


def test_the_whole_server_is_listed_and_filtered(gateway: Gateway, tmp_path: Path) -> None:
    count = "document.querySelectorAll('details').length"

    async def steps(browser: Browser) -> None:
        every = await browser.value(f"{count} > 60 && {count}")
        await browser.value("document.querySelector('#filter').focus() || 1")
        await browser.write("digits:predict")
        assert await browser.value(f"{count} === 1 && {count}") == 1
        assert every > 60
        assert await browser.value("document.querySelectorAll('h2').length") == 1

    in_browser(f"{gateway.url}/v2/docs", tmp_path / "profile", steps)


def test_names_are_text(gateway: Gateway, tmp_path: Path) -> None:
    async def steps(browser: Browser) -> None:
        await browser.value("document.querySelector('#title').innerText.includes('onerror')")
        await browser.value("document.querySelectorAll('details summary').forEach(each => each.click()) || 1")
        await browser.value("document.querySelector('#operations').innerText.includes('onerror')")
        assert await browser.value("document.querySelectorAll('img').length === 0")

    in_browser(f"{gateway.url}/docs?model=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E", tmp_path / "profile", steps)


def test_a_key_is_asked_for(tmp_path: Path) -> None:
    keys = {"alice": {"sha256": hashlib.sha256(b"secret").hexdigest()}}
    file = tmp_path / "gateway.yaml"
    file.write_text(demo_config(auth={"keys": keys}))

    async def run(gateway: Gateway) -> None:
        async with chromium(tmp_path / "profile") as browser:
            await browser.go(f"{gateway.url}/docs")
            assert await browser.value("api === null && !why.hidden && why.innerText") == "Credentials are required"
            await browser.value("document.querySelector('#key').focus() || 1")
            await browser.write("secret")
            await browser.value("document.querySelector('#key').dispatchEvent(new Event('change')) || 1")
            await browser.value("document.querySelectorAll('details').length > 60")

    with running(file) as gateway:
        asyncio.run(run(gateway))
        assert gateway.stop() == 0, gateway.said
