"""The operator's page: one self-contained HTML file, which asks for what it shows once a second.

    /                the page; the same at the paths where a dialect's users look for it
    /overview.json   the state of the server and the calls of the last two minutes
    /models.json     every model, and a request of each dialect that calls it

The page runs its own script and nothing else (Content-Security-Policy), and puts names and answers into the document
as text, never as markup. The HTML is the same for everybody and tells nothing. Where callers have to say who they are,
it asks for a key or a token, keeps it for as long as its tab is open, and sends it along as a header; what it reads is
behind the gate.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from html import escape
from importlib.resources import files
from typing import Any, Final

import orjson

from tensorgate.gateway.contract.call import Reply
from tensorgate.gateway.contract.dialect import Dialect
from tensorgate.gateway.page.status import Status

_PATHS = b'data-paths=""'
"""The paths that end the page's own address and are no prefix of a proxy: the script cuts them off."""
_SCRIPT = re.compile(rb"<script>(.*?)</script>", re.DOTALL)
_FRESH = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_JSON = {"Content-Type": "application/json", **_FRESH}


def html_paths(dialects: Iterable[Dialect]) -> tuple[str, ...]:
    """Where the HTML is, on a port that speaks these dialects."""
    return ("/", *(path for dialect in dialects for path in dialect.page_paths))


# Never stale: the page is a file of this very package, and the paths are its key.
@lru_cache(maxsize=8)
def page(paths: tuple[str, ...]) -> Reply:
    """The HTML of a port."""
    html = files(__name__).joinpath("index.html").read_bytes()
    return self_contained(html.replace(_PATHS, b'data-paths="%b"' % escape(" ".join(paths[1:])).encode()))


def self_contained(html: bytes) -> Reply:
    """HTML whose own scripts are all that the browser may run, and that may talk to this gateway alone."""
    scripts = [base64.b64encode(hashlib.sha256(script).digest()).decode() for script in _SCRIPT.findall(html)]
    policy = "; ".join(
        (
            "default-src 'none'",
            "script-src " + " ".join(f"'sha256-{script}'" for script in scripts),
            "style-src 'unsafe-inline'",
            "img-src data:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )
    return Reply(
        html, headers={"Content-Type": "text/html; charset=utf-8", "Content-Security-Policy": policy, **_FRESH}
    )


DATA_PATHS: Final = ("/overview.json", "/models.json")
"""What the HTML asks for."""


def html_pages(dialects: Sequence[Dialect]) -> dict[str, Callable[[], Awaitable[Reply]]]:
    """Exact paths -> what answers them with the HTML."""
    paths = html_paths(dialects)

    async def html() -> Reply:
        return page(paths)

    return dict.fromkeys(paths, html)


def pages(overview: Status, dialects: Sequence[Dialect]) -> Mapping[str, Callable[[], Awaitable[Reply]]]:
    """Exact paths -> what answers them, on a port that speaks these dialects."""

    def answers(content: Callable[[], Any]) -> Callable[[], Awaitable[Reply]]:
        async def answer() -> Reply:
            return Reply(orjson.dumps(content()), headers=_JSON)

        return answer

    return html_pages(dialects) | {
        "/overview.json": answers(overview.live),
        "/models.json": answers(lambda: overview.models(dialects)),
    }
