"""The operator's page in a real browser: what it shows while there is traffic, and calls made with the mouse."""

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
PANEL = "[data-model=half_plus_two]"
ANSWERS = {
    "Open Inference V2": lambda answer: answer["outputs"][0]["data"],
    "TensorFlow Serving": lambda answer: answer["predictions"],
    "grps": lambda answer: answer["ndarray"],
}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("page")
    (folder / "broken.py").write_text("class Broken:\n    def infer(self, inputs, request): ...\n    x = 1 / 0\n")
    tensors = [{"name": "x", "datatype": "FP32", "shape": [1]}]
    markup = {"backend": "python", "path": str(folder / "broken.py:Broken"), "inputs": tensors, "outputs": tensors}
    file = folder / "gateway.yaml"
    file.write_text(demo_config({"<img src=x onerror=alert(1)>": markup}, readiness="lenient"))
    with running(file) as made:
        yield made
        assert made.stop() == 0, made.said
        assert "Traceback" not in made.said_itself, made.said


def in_browser(gateway: Gateway, folder: Path, steps: Any, path: str = "/") -> None:
    async def run() -> None:
        async with chromium(folder) as browser:
            await browser.go(gateway.url + path)
            await steps(browser)
            assert browser.complaints == []

    asyncio.run(run())


async def text(browser: Browser, selector: str) -> str:
    told: str = await browser.value(f"document.querySelector({json.dumps(selector)}).innerText")
    return told


def test_traffic_is_shown_as_it_comes(gateway: Gateway, tmp_path: Path) -> None:
    async def steps(browser: Browser) -> None:
        await browser.value("document.querySelector('#state').innerText.startsWith('ready: ')")
        assert "is not served" in await text(browser, "#problems")
        assert "No call has reached a model" in await text(browser, "#calls")
        for number in range(40):
            body = {"instances": [float(number)]} if number % 4 else {"instances": "no list"}
            await asyncio.to_thread(gateway.post, "/v1/models/half_plus_two:predict", body)
        rows = (
            "[...document.querySelectorAll('#calls tbody tr')].map(row => [...row.cells].map(cell => cell.innerText))"
        )
        all_counted = "rows.length == 1 && +rows[0][6] == 40"  # the page may have looked in between
        [served] = await browser.value(f"(rows => {all_counted} && rows)({rows})")
        assert (served[:2], served[6:8]) == (["TensorFlow Serving", "half_plus_two"], ["40", "10"])
        assert await browser.value("getComputedStyle(document.querySelector('#calls tbody td.bad')).color")
        await browser.click("#calls tbody tr:nth-child(1)")
        assert "of half_plus_two in TensorFlow Serving" in await text(browser, "#chosen")
        peak = await browser.value(
            "live && shown().rate.some(rate => rate > 0) && document.querySelectorAll('#rate path').length"
        )
        assert peak == 2
        await asyncio.to_thread((tmp_path / "traffic.png").write_bytes, await browser.picture())

    in_browser(gateway, tmp_path / "profile", steps)


def test_every_dialect_can_be_tried_with_the_mouse(gateway: Gateway, tmp_path: Path) -> None:
    async def steps(browser: Browser) -> None:
        await browser.click(f"{PANEL} > summary")
        tabs = await browser.value(f"[...document.querySelectorAll('{PANEL} [role=tab]')].map(tab => tab.innerText)")
        assert tabs == list(ANSWERS)
        for number, (title, numbers) in enumerate(ANSWERS.items()):
            await browser.click(f"{PANEL} [role=tab]:nth-child({number + 1})")
            line = await text(browser, f"{PANEL} .curl")
            assert line.startswith(f"curl -s '{gateway.url}/")
            await browser.click(f"{PANEL} .run")
            told = await browser.value(
                f"(told => told.startsWith('200') && told)(document.querySelector('{PANEL} .told').innerText)"
            )
            assert " ms " in told
            answer = json.loads(await text(browser, f"{PANEL} .answer"))
            assert numbers(answer) == [2.5] * len(numbers(answer)), title  # type: ignore[no-untyped-call]

    in_browser(gateway, tmp_path / "profile", steps)


def test_a_body_can_be_changed_and_its_refusal_is_shown(gateway: Gateway, tmp_path: Path) -> None:
    async def steps(browser: Browser) -> None:
        await browser.click(f"{PANEL} > summary")
        await browser.click(f"{PANEL} [role=tab]:nth-child(2)")
        await browser.value(f"document.querySelector('{PANEL} textarea').select() || 1")
        await browser.click(f"{PANEL} textarea")
        await browser.value("document.activeElement.select() || 1")
        await browser.write("""{"instances": [4, "it's"]}""")
        assert """'{"instances": [4, "it'"'"'s"]}'""" in await text(browser, f"{PANEL} .curl")
        await browser.click(f"{PANEL} .run")
        await browser.value(f"document.querySelector('{PANEL} .told').innerText.startsWith('400')")
        assert "is not of expected type: float" in await text(browser, f"{PANEL} .answer")

    async def run() -> None:
        async with chromium(tmp_path / "profile") as browser:
            await browser.go(gateway.url)
            await steps(browser)  # the browser's console tells of the 400, as it should

    asyncio.run(run())


def test_names_are_text_and_failures_are_told(gateway: Gateway, tmp_path: Path) -> None:
    async def steps(browser: Browser) -> None:
        cards = "[...document.querySelectorAll('.model')].map(card => card.innerText)"
        told = await browser.value(f"(cards => cards.length && cards)({cards})")
        [card] = [each for each in told if each.startswith("<img src=x onerror=alert(1)>")]
        assert "unavailable" in card
        assert await browser.value("document.querySelectorAll('img').length === 0")
        await browser.click("[data-model^='<img'] > summary")
        assert "division by zero" in await text(browser, "[data-model^='<img'] .bad:not(.pill)")

    in_browser(gateway, tmp_path / "profile", steps, "/grps/v1/monitor/metrics")


# ------------------------------------------------------------------------------------------------------- who is asking

KEYS = {"root": "root's kéy", "alice": "alices-key"}


async def sign_in(browser: Browser, key: str) -> None:
    await browser.click("#key")
    await browser.write(key)
    await browser.click("#in")


async def is_asked(browser: Browser, why: str) -> None:
    await browser.value(
        f"!document.querySelector('#sign').hidden && document.querySelector('#why').innerText === '{why}'"
    )


SHOWN = "!document.querySelector('main').hidden && document.querySelector('#state').innerText === 'ready'"


async def run_it(browser: Browser, status: int) -> None:
    await browser.click(f"{PANEL} .run")
    await browser.value(f"document.querySelector('{PANEL} .told').innerText.startsWith('{status}')")


async def administrators_page(browser: Browser) -> None:
    """Nothing is shown before the key, nothing of it is in the address, and it is gone after signing out."""
    await is_asked(browser, "Credentials are required")
    assert await browser.value(
        "document.querySelector('main').hidden && document.querySelector('#models').innerText === ''"
    )
    await sign_in(browser, "no key")
    await is_asked(browser, "The credentials are not valid")
    await sign_in(browser, KEYS["alice"])
    await is_asked(browser, "This is for administrators")
    await sign_in(browser, KEYS["root"])
    await browser.value(f"{SHOWN} && document.querySelector('#sign').hidden")
    await browser.click(f"{PANEL} > summary")
    await run_it(browser, 200)
    assert '-H "Authorization: Bearer $KEY"' in await text(browser, f"{PANEL} .curl")
    assert "root's" not in await browser.value("location.href + document.body.innerText")
    await browser.value("window.isOld = true; location.reload(); true")
    await browser.value(f"!window.isOld && {SHOWN} && document.querySelector('#sign').hidden")
    await browser.click("#out")
    await is_asked(browser, "Credentials are required")


async def everybodys_page(browser: Browser) -> None:
    """What is shown is open; a call is not, and asks for the key when it is refused."""
    await browser.value(f"{SHOWN} && document.querySelector('#sign').hidden")
    await browser.click(f"{PANEL} > summary")
    assert "$KEY" not in await text(browser, f"{PANEL} .curl")
    for tab, why in enumerate(("credentials are required", "Credentials are required", "Credentials are required.")):
        await browser.click(f"{PANEL} [role=tab]:nth-child({tab + 1})")
        await run_it(browser, 401)
        await is_asked(browser, why)
    await sign_in(browser, KEYS["alice"])
    await browser.value("document.querySelector('#sign').hidden")
    assert "$KEY" in await text(browser, f"{PANEL} .curl")
    await run_it(browser, 200)


@pytest.mark.parametrize(("page", "steps"), [("admins", administrators_page), ("open", everybodys_page)])
def test_who_is_not_known_signs_in(page: str, steps: Any, tmp_path: Path) -> None:
    digests = {name: {"sha256": hashlib.sha256(key.encode()).hexdigest()} for name, key in KEYS.items()}
    file = tmp_path / "gateway.yaml"
    file.write_text(demo_config(auth={"keys": digests, "admins": ["root"], "page": page}))

    async def run(url: str) -> None:
        async with chromium(tmp_path / "profile") as browser:
            await browser.go(url)
            await steps(browser)
            refused = "the server responded with a status of 40"
            assert all(refused in each for each in browser.complaints), browser.complaints

    with running(file) as gateway:
        asyncio.run(run(gateway.url))
        assert gateway.stop() == 0, gateway.said
