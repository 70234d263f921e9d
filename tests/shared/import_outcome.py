"""What a run of `tensorgate import` gave, for the tests of every importer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml


@dataclass
class Outcome:
    """The exit status, what was written, and the lines of the report."""

    status: int
    yaml: str
    report: list[str]

    @property
    def config(self) -> Any:
        return yaml.safe_load(self.yaml)

    def said(self, words: str) -> str:
        """The only line of the report with these words."""
        (line,) = [line for line in self.report if words in line]
        return line
