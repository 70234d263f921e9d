"""Take the pictures of docs/page.md: `.venv/bin/python tests/system/write_page_pictures.py`. It needs Chromium."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[1] / "shared"))

from browser import Browser, chromium
from page_world import FAULTS, faulty, make_errors, make_traffic
from serving import Gateway, demo_config, running

DOCS = Path(__file__).parents[2] / "docs"
MAX_BYTES = 150_000
TURNS = 400
PANEL = "[data-model=writer]"


async def keep(browser: Browser, name: str) -> None:
    picture = await browser.picture()
    if len(picture) > MAX_BYTES:
        raise SystemExit(f"{name} has {len(picture)} bytes")
    (DOCS / name).write_bytes(picture)


async def normal(gateway: Gateway, folder: Path) -> None:
    async with chromium(folder / "profile") as browser:
        await browser.look_like(1180, 900)
        await browser.go(gateway.url)
        calls = threading.Thread(target=make_traffic, args=(gateway, TURNS))
        calls.start()
        await browser.value("live && live.series.calls > 0")
        await asyncio.to_thread(calls.join)
        await browser.value("live.series.calls > 1000")
        await keep(browser, "page.png")
        await browser.look_like(390, 840, phone=True)
        await browser.value("document.documentElement.scrollWidth <= innerWidth")
        await keep(browser, "page-phone.png")
        await browser.look_like(1180, 760)
        await browser.click(f"{PANEL} > summary")
        await browser.value(f"!!document.querySelector('{PANEL} [data-kind=generate_stream]')")
        await browser.click(f"{PANEL} [data-kind=generate_stream]")
        await browser.click(f"{PANEL} .run")
        await browser.value(f"document.querySelector('{PANEL} .told').innerText.includes('the first after')")
        await browser.click(f"{PANEL} [data-language=JavaScript]")
        await browser.value(f"document.querySelector('{PANEL}').scrollIntoView() || 1")
        await keep(browser, "page-try.png")


async def wrong(gateway: Gateway, folder: Path) -> None:
    async with chromium(folder / "profile") as browser:
        await browser.look_like(1180, 900, dark=True)
        await browser.go(gateway.url)
        await asyncio.to_thread(make_traffic, gateway, 20)
        await asyncio.to_thread(make_errors, gateway)
        for words in FAULTS.values():
            await browser.value(f"document.querySelector('#problems').innerText.includes({words!r})")
        await keep(browser, "page-faults.png")


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        folder = Path(place)
        file = folder / "gateway.yaml"
        file.write_text(demo_config())
        asyncio.run(normal(stack.enter_context(running(file)), folder))
    with tempfile.TemporaryDirectory() as place, faulty(Path(place)) as gateway:
        asyncio.run(wrong(gateway, Path(place)))


if __name__ == "__main__":
    main()
