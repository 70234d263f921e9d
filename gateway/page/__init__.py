"""The operator's page: HTML, a style and a script, which asks for what it shows once a second.

    /                the page; the same at the paths where a dialect's users look for it
    /page/style.css, /page/page.js
    /overview.json   the state of the server, calls and errors: see PageQuery for what can be asked
    /models.json     models, and requests of each dialect that call them

The browser runs the page's own script and nothing else (Content-Security-Policy), and the script puts names and answers
into the document as text, never as markup. What is fixed is the same for everybody and tells nothing. Where callers
have to say who they are, the page asks for a key or a token, keeps it for as long as its tab is open, and sends it
along as a header; what it reads is behind the gate.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from html import escape
from importlib.resources import files
from typing import Any, Final, Protocol

import orjson

from tensorgate.gateway.contract.call import Reply
from tensorgate.gateway.contract.dialect import Dialect
from tensorgate.gateway.page.status import PageQuery, Status

SCRIPTS: Final = (
    "base.js",
    "session.js",
    "charts.js",
    "table.js",
    "server.js",
    "snippets.js",
    "try.js",
    "models.js",
    "main.js",
)
"""Sent as one file, in this order: a request each would be nine."""
STYLE_PATH: Final = "/page/style.css"
SCRIPT_PATH: Final = "/page/page.js"
DATA_PATHS: Final = ("/overview.json", "/models.json")
"""What the script asks for."""

_ROOT = b"{root}"
"""In the HTML: the way from its address to the gateway's root, which may lie below a proxy's prefix."""
_INLINE_SCRIPT = re.compile(rb"<script>(.*?)</script>", re.DOTALL)
_SAFE: Final = {"X-Content-Type-Options": "nosniff"}
_FRESH: Final = {"Cache-Control": "no-store", **_SAFE}
_JSON: Final = {"Content-Type": "application/json", "Vary": "Accept-Encoding", **_FRESH}
_MIN_GZIP_BYTES: Final = 1 << 10
"""Less fits into one packet anyway."""
_MAX_INLINE_GZIP_BYTES: Final = 64 << 10
"""More is compressed in a thread: the loop has 15 ms of work with a megabyte."""
_GZIP_WINDOW: Final = 16 + zlib.MAX_WBITS


class Asking(Protocol):
    """What a page needs of a request: see transport.http_exchange.HttpExchange."""

    @property
    def target(self) -> str: ...

    @property
    def headers(self) -> Mapping[str, str]: ...


ReadPage = Callable[[Any], Awaitable[Reply]]
"""Takes an Asking."""


def html_paths(dialects: Iterable[Dialect]) -> tuple[str, ...]:
    """Where the HTML is, on a port that speaks these dialects."""
    return ("/", *(path for dialect in dialects for path in dialect.page_paths))


def open_paths(dialects: Iterable[Dialect]) -> tuple[str, ...]:
    """All that is the same for everybody."""
    return (*html_paths(dialects), STYLE_PATH, SCRIPT_PATH)


# Never stale: the page is a file of this very package, and the path is its key.
@lru_cache(maxsize=8)
def page(path: str) -> Reply:
    """The HTML at a path."""
    html = files(__name__).joinpath("page.html").read_bytes()
    root = "../" * (path.count("/") - 1) or "./"
    return _html(html.replace(_ROOT, escape(root).encode()), ["'self'"], "'self'")


def self_contained(html: bytes) -> Reply:
    """HTML whose own scripts are all that the browser may run, and that may talk to this gateway alone."""
    digests = [base64.b64encode(hashlib.sha256(script).digest()).decode() for script in _INLINE_SCRIPT.findall(html)]
    return _html(html, [f"'sha256-{digest}'" for digest in digests], "'unsafe-inline'")


def _html(html: bytes, scripts: Iterable[str], styles: str) -> Reply:
    policy = "; ".join(
        (
            "default-src 'none'",
            "script-src " + " ".join(scripts),
            "style-src " + styles,
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


@cache
def _fixed(name: str) -> tuple[bytes, bytes, dict[str, str]]:
    """(as it is, compressed, headers) of a file of this package; never stale, for it is part of the program."""
    here = files(__name__)
    parts = [f"scripts/{script}" for script in SCRIPTS] if name == SCRIPT_PATH else ["style.css"]
    text = b"\n".join(here.joinpath(part).read_bytes() for part in parts)
    kind = "text/javascript" if name == SCRIPT_PATH else "text/css"
    tag = hashlib.sha256(text).hexdigest()[:20]
    headers = {"Cache-Control": "no-cache", "ETag": f'"{tag}"', "Vary": "Accept-Encoding", **_SAFE}
    return text, _gzip(text, 9), {"Content-Type": f"{kind}; charset=utf-8", **headers}


def _fixed_page(name: str) -> ReadPage:
    async def read(asking: Asking) -> Reply:
        text, compressed, headers = _fixed(name)
        if headers["ETag"] in asking.headers.get("if-none-match", ""):
            return Reply(b"", 304, headers)
        if _takes_gzip(asking):
            return Reply(compressed, headers={**headers, "Content-Encoding": "gzip"})
        return Reply(text, headers=headers)

    return read


def _takes_gzip(asking: Asking) -> bool:
    """Whether the client says so. Source: RFC 9110, 12.5.3."""
    for each in asking.headers.get("accept-encoding", "").lower().split(","):
        coding, _, weight = each.partition(";")
        if coding.strip() == "gzip":
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def _gzip(text: bytes, level: int) -> bytes:
    packer = zlib.compressobj(level, zlib.DEFLATED, _GZIP_WINDOW)
    return packer.compress(text) + packer.flush()


async def json_reply(asking: Asking, content: Any) -> Reply:
    """Compressed where that is taken and worth it."""
    text = orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS)
    if len(text) < _MIN_GZIP_BYTES or not _takes_gzip(asking):
        return Reply(text, headers=_JSON)
    # Level 1 takes a third of the time of the usual one, and a tenth more bytes.
    packed = _gzip(text, 1) if len(text) <= _MAX_INLINE_GZIP_BYTES else await asyncio.to_thread(_gzip, text, 1)
    return Reply(packed, headers={**_JSON, "Content-Encoding": "gzip"})


def html_pages(dialects: Sequence[Dialect]) -> dict[str, ReadPage]:
    """Exact paths -> what answers them with all that is fixed."""

    def html(path: str) -> ReadPage:
        async def read(asking: Asking) -> Reply:
            return page(path)

        return read

    fixed = {path: _fixed_page(path) for path in (STYLE_PATH, SCRIPT_PATH)}
    return {path: html(path) for path in html_paths(dialects)} | fixed


def pages(overview: Status, dialects: Sequence[Dialect]) -> Mapping[str, ReadPage]:
    """Exact paths -> what answers them, on a port that speaks these dialects."""

    def answers(content: Callable[[PageQuery | None], Any]) -> ReadPage:
        async def answer(asking: Asking) -> Reply:
            try:
                query = PageQuery.read(asking.target) if "?" in asking.target else None
            except ValueError as error:
                return Reply(orjson.dumps({"error": str(error)}), 400, _JSON)
            return await json_reply(asking, content(query))

        return answer

    return html_pages(dialects) | {
        "/overview.json": answers(lambda query: overview.live(query or PageQuery())),
        "/models.json": answers(lambda query: overview.models(dialects, query)),
    }
