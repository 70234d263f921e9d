"""A number of threads, which Triton's backends read as text."""

from __future__ import annotations

from tensorgate.adapters.importers.common import Source


def threads(source: Source, key: str, value: str, option: str) -> dict[str, int]:
    """The option, if it is set; 0 is what it is without. Raises ValueError."""
    if not (value.isascii() and value.isdecimal() and len(value) < 6):
        raise source.wrong("parameters", f'{key} is "{value[:40]}", expected a number of threads')
    return {option: int(value)} if int(value) else {}
