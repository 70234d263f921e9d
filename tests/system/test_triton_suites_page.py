"""docs/triton-suites.md says what the table of Triton's suites says."""

from __future__ import annotations

from serving import ROOT
from triton_suites import FETCH, SUITES, page

PAGE = ROOT / "docs/triton-suites.md"


def test_the_page_is_that_of_the_table() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.endswith(f"\n\n{page()}")
    assert all(command in text for command in FETCH.split("; "))


def test_names_of_suites_are_told_apart() -> None:
    assert len({suite.name for suite in SUITES}) == len(SUITES)
