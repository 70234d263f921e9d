"""How a client script runs: every check_* function of it against one gateway, and the outcome of each is told.

The scripts run in the clients' environment, apart from the gateway's, so they speak to their tests by what they print:
its last line is a JSON object, name of check -> null if it passed, else the traceback.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

Error = TypeVar("Error", bound=Exception)

GIVES_UP_S = 45.0
PREFIX = "check_"
IMAGES = Path(__file__).parents[3] / "config/demo/images"
SHOWN = (0, 2, 3, 5, 7, 9)


def main(names: Mapping[str, Any]) -> None:
    """Run the checks among a script's names against the address HOST:PORT of its command line, and exit with 1 if one
    of them failed.
    """
    (address,) = sys.argv[1:]
    outcomes = {name: _failure(check, address) for name, check in names.items() if name.startswith(PREFIX)}
    sys.stdout.write(json.dumps(outcomes) + "\n")
    sys.exit(any(outcomes.values()))


def _failure(check: Callable[[str], None], address: str) -> str | None:
    try:
        check(address)
    except Exception:
        return traceback.format_exc()
    return None


def raised(kind: type[Error], call: Callable[[], object]) -> Error:
    """What a call raises, which must be of that kind."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__} was raised")


def wait_until(happened: Callable[[], object], what: Callable[[], object] = lambda: "") -> None:
    """As the tests' own, which another environment has."""
    give_up = time.perf_counter() + GIVES_UP_S
    while not happened():
        if time.perf_counter() > give_up:
            raise AssertionError(f"it did not happen. {what()}")
        time.sleep(0.01)  # real time: until others have gone on


def images() -> list[Any]:
    """The pictures of SHOWN, 8 rows of 8 greys each, 0..16."""
    return [json.loads((IMAGES / f"{digit}.json").read_bytes()) for digit in SHOWN]
