"""/docs: one self-contained HTML file that reads /openapi.json, shows its operations and sends requests.

The HTML is the same for everybody and tells nothing; what it reads is behind the gate. As the operator's page it asks
for a key where one is wanted, and keeps it in the tab.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

from tensorgate.gateway.contract.call import Reply
from tensorgate.gateway.page import Asking, self_contained

PATHS: Final = ("/docs", "/v2/docs")
"""Where KServe and vLLM have theirs, and where MLServer has it."""


@cache
def _html() -> Reply:  # never stale: a file of this very package
    return self_contained(files("tensorgate.gateway.openapi").joinpath("docs.html").read_bytes())


async def docs_page(asking: Asking) -> Reply:
    """The HTML, whatever is asked."""
    return _html()
