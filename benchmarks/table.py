"""Lines of words and figures as a table: words to the left, figures to the right."""

from __future__ import annotations

from collections.abc import Sequence


def table(head: Sequence[str], lines: Sequence[Sequence[str]], left: int = 1) -> str:
    """The first `left` columns hold words."""
    widths = [max(len(line[column]) for line in (head, *lines)) for column in range(len(head))]
    return "\n".join(_align(line, widths, left) for line in (head, *lines))


def _align(line: Sequence[str], widths: Sequence[int], left: int) -> str:
    cells = [
        text.ljust(width) if column < left else text.rjust(width)
        for column, (text, width) in enumerate(zip(line, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()
