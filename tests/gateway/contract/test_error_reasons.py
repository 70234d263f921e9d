"""Every kind of error says why in a word of the closed list, and the list is documented."""

from __future__ import annotations

import pkgutil
import re
from importlib import import_module

import pytest
from serving import ROOT

from tensorgate import adapters
from tensorgate.gateway.contract.errors import (
    ErrorReason,
    GatewayError,
    InputCount,
    InvalidArgument,
    MalformedJson,
    ModelNotFound,
    kinds,
)
from tensorgate.gateway.crossing.failures import error_of, failure_of

for module in pkgutil.walk_packages(adapters.__path__, f"{adapters.__name__}."):
    if ".conformance" not in module.name and "._native" not in module.name:
        import_module(module.name)
KINDS = sorted(
    {kind for kind in kinds() if kind.__module__.startswith("tensorgate.")},
    key=lambda kind: f"{kind.__module__}.{kind.__name__}",
)


def test_there_are_kinds_of_dialects_too() -> None:
    assert {kind.__module__.split(".")[1] for kind in KINDS} >= {"gateway", "adapters"}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_has_a_reason(kind: type[GatewayError]) -> None:
    above = kind.__mro__[: kind.__mro__.index(GatewayError)]
    assert any("error_reason" in vars(each) for each in above)
    assert isinstance(kind.error_reason, ErrorReason)


def test_the_guide_has_every_reason() -> None:
    text = (ROOT / "docs" / "operate.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| `(\w+)` \|", text.partition("| reason |")[2].partition("\n\n")[0], re.MULTILINE)
    assert table == [*ErrorReason]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ModelNotFound("m"), ErrorReason.UNKNOWN_MODEL),
        (ModelNotFound("m", 3), ErrorReason.UNKNOWN_MODEL),
        (ModelNotFound("m", 3, serves=True), ErrorReason.UNKNOWN_VERSION),
        (ModelNotFound("m", 3, known=True), ErrorReason.UNAVAILABLE),
        (InputCount("m", (), ("x",), 1, 1), ErrorReason.MISSING_INPUT),
        (InputCount("m", ("x", "z"), (), 1, 1), ErrorReason.UNKNOWN_INPUT),
        (MalformedJson("The document is empty."), ErrorReason.MALFORMED),
        (MalformedJson("nesting", max_depth=5), ErrorReason.TOO_DEEP),
        (InvalidArgument("x"), ErrorReason.MALFORMED),
        (InvalidArgument("x", ErrorReason.DTYPE), ErrorReason.DTYPE),
    ],
    ids=repr,
)
def test_what_is_known_of_an_error_says_more_than_its_kind_here_and_in_another_process(
    error: GatewayError, reason: ErrorReason
) -> None:
    assert error.error_reason is reason
    assert error_of(failure_of(1, error)).error_reason is reason
