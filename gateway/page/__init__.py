"""The operator's page: one self-contained HTML file, which asks for what it shows once a second.

    /                the page, /grps/v1/monitor/metrics the same for grps' users
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
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any

import orjson

from tensorgate.gateway.contract.call import Reply
from tensorgate.gateway.contract.dialect import Dialect
from tensorgate.gateway.page.status import Status

SHELLS = ("/", "/grps/v1/monitor/metrics")
"""Where the HTML is."""

_SCRIPT = re.compile(rb"<script>(.*?)</script>", re.DOTALL)
_FRESH = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_JSON = {"Content-Type": "application/json", **_FRESH}


# Never stale: the page is a file of this very package.
@lru_cache(maxsize=1)
def page() -> Reply:
    """The HTML, with a policy that lets the browser run this script alone and talk to this gateway alone."""
    html = files(__name__).joinpath("index.html").read_bytes()
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


def pages(overview: Status, dialects: Sequence[Dialect]) -> Mapping[str, Callable[[], Awaitable[Reply]]]:
    """Exact paths -> what answers them, on a port that speaks these dialects."""

    def answers(content: Callable[[], Any]) -> Callable[[], Awaitable[Reply]]:
        async def answer() -> Reply:
            return Reply(orjson.dumps(content()), headers=_JSON)

        return answer

    async def html() -> Reply:
        return page()

    shells = SHELLS if any(dialect.name == "grps" for dialect in dialects) else SHELLS[:1]
    return {
        **dict.fromkeys(shells, html),
        "/overview.json": answers(overview.live),
        "/models.json": answers(lambda: overview.models(dialects)),
    }
