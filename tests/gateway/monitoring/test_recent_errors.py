"""The last errors of each kind: bounded, newest first, the same sums through another process."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from tensorgate.gateway.contract.errors import Code, ErrorReason
from tensorgate.gateway.monitoring.recent_errors import MAX_KINDS, MAX_TEXT_CHARS, ErrorKey, RecentError, RecentErrors
from tensorgate.gateway.telemetry.call_outcome import CallOutcome, FailureKind


def failed(model: str, text: str = "no") -> CallOutcome:
    outcome = CallOutcome()
    endpoint: Any = SimpleNamespace(method="infer")
    call: Any = SimpleNamespace(dialect="v2", transport="http")
    outcome.endpoint, outcome.call, outcome.named, outcome.error_text = endpoint, call, (model, 1), text
    outcome.code, outcome.failure = Code.INVALID_ARGUMENT, FailureKind("DtypeMismatch", ErrorReason.DTYPE)
    return outcome


def key(model: str) -> ErrorKey:
    return ErrorKey("v2", "http", model, "1", "infer", Code.INVALID_ARGUMENT, ErrorReason.DTYPE)


@pytest.fixture
def errors() -> RecentErrors:
    return RecentErrors(itertools.count(1.0).__next__)


def test_the_newest_text_of_a_kind_and_how_many_there_were(errors: RecentErrors) -> None:
    errors.note(failed("a", "first"))
    errors.note(failed("b"))
    errors.note(failed("a", "second"))
    assert errors.read() == [RecentError(key("a"), "second", 1, 3, 2), RecentError(key("b"), "no", 2, 2, 1)]


def test_the_newest_kinds_are_kept_and_texts_are_cut(errors: RecentErrors) -> None:
    errors.note(failed("again"))
    for number in range(MAX_KINDS):
        errors.note(failed(str(number), "x" * 10_000))
        errors.note(failed("again"))
    found = errors.read()
    assert [each.key.model for each in found[:2]] == ["again", str(MAX_KINDS - 1)]
    assert len(found) == MAX_KINDS
    assert "0" not in {each.key.model for each in found}
    assert len(found[1].text) == MAX_TEXT_CHARS


def test_what_was_taken_adds_up_elsewhere_in_any_order(errors: RecentErrors) -> None:
    sums = RecentErrors()
    errors.note(failed("a", "first"))
    one = errors.take()
    errors.note(failed("a", "second"))
    assert errors.read()[0].count == 1
    for each in (*errors.take(), *one):
        sums.add(each)
    assert sums.read() == [RecentError(key("a"), "second", 1, 2, 2)]
    assert errors.read() == []
