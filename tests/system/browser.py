"""A headless Chromium, driven by its own DevTools protocol over a WebSocket: load a page, look, click, type."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

WAITS_S = 15.0


class Browser:
    """One tab. Whatever its console complains of is in `complaints`."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self.complaints: list[str] = []

    async def listen(self) -> None:
        async for message in self._socket:
            said = json.loads(message.data)
            if "id" in said:
                self._waiting.pop(said["id"]).set_result(said)
            elif said["method"] == "Log.entryAdded" and said["params"]["entry"]["level"] == "error":
                self.complaints.append(said["params"]["entry"]["text"])
            elif said["method"] == "Runtime.exceptionThrown":
                self.complaints.append(str(said["params"]["exceptionDetails"]))

    async def send(self, method: str, **params: Any) -> Any:
        number = next(self._numbers)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        said = await asyncio.wait_for(self._waiting[number], WAITS_S)
        assert "error" not in said, said
        return said["result"]

    async def go(self, url: str) -> None:
        await self.send("Page.navigate", url=url)

    async def value(self, script: str) -> Any:
        """What an expression is worth in the page, once it is worth anything but null, false or an error."""
        give_up = asyncio.get_running_loop().time() + WAITS_S
        while True:
            result = await self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
            found = None if "exceptionDetails" in result else result["result"].get("value")
            if found not in (None, False):
                return found
            assert asyncio.get_running_loop().time() < give_up, f"{script}: {result}"  # real time: a browser's
            await asyncio.sleep(0.05)  # real time: until the page has gone on

    async def click(self, selector: str) -> None:
        """With the mouse, in the middle of the first element that the selector finds."""
        quoted = json.dumps(selector)
        script = "(e => {e.scrollIntoView({block: 'center'}); const r = e.getBoundingClientRect();"
        place = await self.value(
            f"{script} return [r.x + r.width / 2, r.y + r.height / 2]}})(document.querySelector({quoted}))"
        )
        for kind in ("mousePressed", "mouseReleased"):
            await self.send("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)

    async def write(self, text: str) -> None:
        await self.send("Input.insertText", text=text)

    async def press(self, key: str) -> None:
        """A key by its name: Enter, ArrowLeft, …"""
        for kind in ("keyDown", "keyUp"):
            await self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    async def point(self, selector: str, part: float) -> None:
        """Move the mouse to this part of an element's width."""
        quoted = json.dumps(selector)
        script = "(e => {e.scrollIntoView({block: 'center'}); const r = e.getBoundingClientRect();"
        place = await self.value(
            f"{script} return [r.x + r.width * {part}, r.y + r.height / 2]}})(document.querySelector({quoted}))"
        )
        await self.send("Input.dispatchMouseEvent", type="mouseMoved", x=place[0], y=place[1])

    async def look_like(self, width: int, height: int, *, dark: bool = False, phone: bool = False) -> None:
        """Be a screen of this size, in the dark or not, with a finger or a mouse."""
        await self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.send("Emulation.setEmulatedMedia", features=[scheme])

    async def picture(self) -> bytes:
        """What is to be seen, as PNG."""
        shot = await self.send("Page.captureScreenshot", format="png")
        return base64.b64decode(shot["data"])


@asynccontextmanager
async def chromium(folder: Path, width: int = 1280, height: int = 1400) -> AsyncIterator[Browser]:
    """A browser with one empty tab; its profile lies in the folder."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.fail("there is no Chromium: say `apt-get install chromium`", pytrace=False)
    options = (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--remote-debugging-port=0",
        "--no-first-run",
        "--no-proxy-server",
    )
    place = (f"--user-data-dir={folder}", f"--window-size={width},{height}", "about:blank")
    process = await asyncio.create_subprocess_exec(program, *options, *place, stderr=asyncio.subprocess.PIPE)
    try:
        assert process.stderr is not None
        port = b""
        while not port:
            line = await asyncio.wait_for(process.stderr.readline(), WAITS_S)
            assert line, "the browser ended"
            found = re.search(rb"ws://127\.0\.0\.1:(\d+)/", line)
            port = found[1] if found else b""
        drain = asyncio.ensure_future(process.stderr.read())
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port.decode()}/json") as answer:
                [tab] = [each for each in await answer.json() if each["type"] == "page"]
            async with session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                browser = Browser(socket)
                listening = asyncio.ensure_future(browser.listen())
                for domain in ("Page", "Runtime", "Log"):
                    await browser.send(f"{domain}.enable")
                yield browser
                listening.cancel()
        process.terminate()
        await drain
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
