"""The operator's page in a real browser: what it shows while there is traffic, and calls made with the mouse."""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, chromium
from page_world import FAULTS, faulty, make_errors
from serving import ROOT, Gateway, demo_config, running

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
        await browser.value("document.querySelector('#chosen').innerText.includes('of half_plus_two in TensorFlow')")
        peak = await browser.value(
            "shown().rate.some(rate => rate > 0) && document.querySelectorAll('#rate path').length"
        )
        assert peak == 2
        gaps = await browser.value("document.querySelector('#latency path:last-of-type').getAttribute('d')")
        assert gaps.count("M") <= 3, "seconds in which nothing was asked are no zeros"
        await every_value_can_be_read(browser)
        await every_span_is_drawn(browser)
        await asyncio.to_thread((tmp_path / "traffic.png").write_bytes, await browser.picture())

    in_browser(gateway, tmp_path / "profile", steps)


async def every_value_can_be_read(browser: Browser) -> None:
    """With the mouse on the chart, and by the arrow keys."""
    await browser.point("#rate", 0.999)
    told = await browser.value("document.querySelector('#rate + output').innerText")
    assert told.split("\n")[1].startswith("requests/s ")
    await browser.value("document.querySelector('#charts').focus() || document.activeElement.id === 'charts'")
    await browser.press("ArrowLeft")
    ago = "document.querySelector('#latency + output').innerText"
    before = await browser.value(f"/^[0-9]+ s ago/.test({ago}) && parseInt({ago})")
    await browser.press("ArrowLeft")
    await browser.value(f"parseInt({ago}) === {before} + 1")
    await browser.press("Escape")
    await browser.value(f"{ago} === ''")


async def every_span_is_drawn(browser: Browser) -> None:
    for span, ago in (("hour", "1 h ago"), ("day", "1 day ago"), ("month", "30 days ago"), ("minutes", "2 min ago")):
        await browser.click(f"[data-span={span}]")
        await browser.value(
            f"document.querySelector('#rate').textContent.includes('{ago}') && series.span === '{span}'"
        )


def test_a_title_sorts_and_a_name_finds(gateway: Gateway, tmp_path: Path) -> None:
    async def steps(browser: Browser) -> None:
        for model in ("upper", "half_plus_two", "half_plus_three"):
            for number in range(3 if model == "upper" else 1):
                values = ["a"] if model == "upper" else [float(number)]
                await asyncio.to_thread(gateway.post, f"/v1/models/{model}:predict", {"instances": values})
        names = "[...document.querySelectorAll('#calls tbody tr')].map(row => row.cells[1]?.innerText)"
        await browser.value(f"{names}.includes('half_plus_three') && {names}.includes('upper')")
        for column, kind in (("model", "ascending"), ("model", "descending"), ("all_calls", "descending")):
            before = f"document.querySelector('[data-sort={column}]')"
            await browser.click(f"[data-sort={column}]")
            await browser.value(f"{before}.closest('th').getAttribute('aria-sort') === '{kind}'")
            if column == "model":
                wanted = f"[...{names}].sort()" + (".reverse()" if kind == "descending" else "")
                await browser.value(f"String({names}) === String({wanted})")
        await browser.click("#find")
        await browser.write("UPP")
        await browser.value(f"String({names}) === 'upper' && document.querySelectorAll('.model').length === 1")

    in_browser(gateway, tmp_path / "profile", steps)


def test_every_dialect_can_be_tried_with_the_mouse(gateway: Gateway, tmp_path: Path) -> None:
    async def steps(browser: Browser) -> None:
        await browser.click(f"{PANEL} > summary")
        tabs = "[...document.querySelectorAll('" + PANEL + " [role=tab]')].map(tab => tab.dataset.dialect)"
        assert set(await browser.value(f"(tabs => tabs.length && tabs)({tabs})")) == set(ANSWERS)
        for title, numbers in ANSWERS.items():
            await browser.click(f"{PANEL} [data-dialect='{title}']")
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


def test_a_stream_is_shown_as_it_arrives(gateway: Gateway, tmp_path: Path) -> None:
    """Pieces are seen while the call still runs, and it can be stopped."""
    panel = "[data-model=countdown]"

    async def steps(browser: Browser) -> None:
        await browser.click(f"{panel} > summary")
        await browser.value(f"!!document.querySelector('{panel} textarea')")
        for body, end in (('{"start": 3}', "the first after"), ('{"start": 1000}', "stopped")):
            await browser.click(f"{panel} textarea")
            await browser.value("document.activeElement.select() || 1")
            await browser.write(body)
            await browser.click(f"{panel} .run")
            await browser.value(f"/ [2-9] pieces so far/.test(document.querySelector('{panel} .told').innerText)")
            assert "data: " in await text(browser, f"{panel} .answer")
            if end == "stopped":
                await browser.click(f"{panel} .run")
            await browser.value(f"document.querySelector('{panel} .told').innerText.includes('{end}')")
            if end != "stopped":
                assert (await text(browser, f"{panel} .answer")).count("data: ") == 4

    in_browser(gateway, tmp_path / "profile", steps)


SHELLS = {
    "curl": ["bash", "-c"],
    "requests": [sys.executable, "-c"],
    "grpcio": [sys.executable, "-c"],
    "tritonclient": [str(ROOT / ".venv-clients/bin/python"), "-c"],
    "JavaScript": ["node", "--input-type=module", "-e"],
}


GRPC_CALLS = (("countdown", "streaming"), ("running_sum", "infer"), ("upper", "predict"), ("add_sub", "predict"))


def test_snippets_run(gateway: Gateway, tmp_path: Path) -> None:
    """What is copied from the page is a program, and answers what the page shows."""
    told: dict[str, str] = {}

    async def steps(browser: Browser) -> None:
        await browser.click(f"{PANEL} > summary")
        await browser.value(f"!!document.querySelector('{PANEL} .curl')")
        names = await browser.value(
            f"[...document.querySelectorAll('{PANEL} [data-language]')].filter(e => !e.hidden).map(e => e.innerText)"
        )
        assert set(names) == {"curl", "requests", "tritonclient", "grpcio", "JavaScript", "Go", "grpcurl"}
        for name in names:
            await browser.click(f"{PANEL} [data-language='{name}']")
            told[name] = await browser.value(f"document.querySelector('{PANEL} .curl').textContent")

        for model, kind in (("half_plus_three", "classify"), ("half_plus_three", "regress"), ("add_sub", "predict")):
            panel = f"[data-model={model}]"
            await browser.click(f"{panel} > summary")
            await browser.value(f"!!document.querySelector('{panel} [data-kind={kind}]')")
            await browser.click(f"{panel} [data-kind={kind}]")
            await browser.click(f"{panel} [data-language=tensorflow-serving-api]")
            written = await browser.value(f"document.querySelector('{panel} .curl').textContent")
            assert {"classify": "stub.Classify(", "regress": "stub.Regress(", "predict": "stub.Predict("}[
                kind
            ] in written
            compile(written, f"{model} {kind}", "exec")
            await browser.click(f"{panel} > summary")
        for model, kind in (
            ("countdown", "streaming"),
            ("running_sum", "infer"),
            ("upper", "predict"),
            ("add_sub", "predict"),
        ):
            panel = f"[data-model={model}]"
            await browser.click(f"{panel} > summary")
            await browser.value(f"!!document.querySelector('{panel} [data-kind={kind}]')")
            await browser.click(f"{panel} [data-kind={kind}]")
            await browser.click(f"{panel} [data-language=grpcio]")
            told[f"{model} {kind}"] = await browser.value(f"document.querySelector('{panel} .curl').textContent")
            await browser.click(f"{panel} > summary")

    in_browser(gateway, tmp_path / "profile", steps)
    for name in map(" ".join, GRPC_CALLS):
        ran = subprocess.run([*SHELLS["grpcio"], told[name]], capture_output=True, text=True, timeout=60, check=False)
        assert ran.returncode == 0, (name, told[name], ran.stderr)
    for name, shell in SHELLS.items():
        ran = subprocess.run([*shell, told[name]], capture_output=True, text=True, timeout=60, check=False)
        assert ran.returncode == 0, (name, ran.stderr)
        assert ("raw_output_contents" if name == "grpcio" else "2.5") in ran.stdout, (name, ran.stdout)


def test_a_body_can_be_changed_and_its_refusal_is_shown(gateway: Gateway, tmp_path: Path) -> None:
    async def steps(browser: Browser) -> None:
        await browser.click(f"{PANEL} > summary")
        await browser.value(f"!!document.querySelector('{PANEL} [data-kind=predict]')")
        await browser.click(f"{PANEL} [data-kind=predict]")
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
    whys = ("credentials are required", "Credentials are required", "Credentials are required.")
    for title, why in zip(ANSWERS, whys, strict=True):
        await browser.click(f"{PANEL} [data-dialect='{title}']")
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


# ------------------------------------------------------------------------------------------------------- what is wrong


LOOKS = {"light": (1280, False, False), "dark": (1280, True, False), "phone": (390, False, True)}


def test_every_fault_is_told_in_words_on_every_screen(tmp_path: Path) -> None:
    """Light, dark and on a phone, where nothing has to be scrolled sideways."""

    async def look(gateway: Gateway) -> None:
        async with chromium(tmp_path / "profile") as browser:
            for name, (width, dark, phone) in LOOKS.items():
                await browser.look_like(width, 900, dark=dark, phone=phone)
                await browser.go(gateway.url)
                told = "document.querySelector('#problems').innerText"
                for fault, words in FAULTS.items():
                    await asyncio.to_thread(make_errors, gateway)  # each time: they are told while they are fresh
                    assert await browser.value(f"{told}.includes({json.dumps(words)})"), (name, fault)
                assert await browser.value("document.querySelector('#state').classList.contains('bad')")
                assert await browser.value("document.documentElement.scrollWidth <= innerWidth"), name
                back = await browser.value(
                    "getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).map(Number)"
                )
                assert (sum(back) < 3 * 60) == dark
                await browser.value("document.querySelector('#lists').innerText.includes('Callers')")
            assert browser.complaints == []

    with faulty(tmp_path) as gateway:
        asyncio.run(look(gateway))
