"""The site of the papers: made without a warning, read and searched in a browser that has no network."""

import asyncio
import subprocess
from pathlib import Path

import pytest
from browser import chromium
from serving import ROOT

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("papers") / "site"
    made = subprocess.run(
        [ROOT / ".venv-docs/bin/python", "docs/site.py", target], cwd=ROOT, capture_output=True, text=True
    )
    assert made.returncode == 0, made.stdout + made.stderr
    return target


def test_every_page_that_is_listed_is_there(site: Path) -> None:
    pages = {path.with_suffix("").name for path in (site / "docs").glob("*.html")}
    assert pages == {path.with_suffix("").name for path in (ROOT / "docs").glob("*.md")}
    assert (site / "deploy/README.html").is_file()


def test_it_is_searched_without_a_server(site: Path, tmp_path: Path) -> None:
    async def run() -> None:
        async with chromium(tmp_path) as browser:
            await browser.go(f"file://{site}/search.html?q=canary")
            await browser.value("document.querySelectorAll('#search-results li').length > 3")
            await browser.value("document.querySelector('#search-results').innerText.includes('Roll out')")
            await browser.go(f"file://{site}/index.html")
            await browser.value("document.querySelector('img').naturalWidth > 100")
            addresses = "[...document.querySelectorAll('script[src], link[rel=stylesheet], img')]"
            assert await browser.value(f"{addresses}.every(each => (each.src || each.href).startsWith('file:'))")

    asyncio.run(run())
