"""Words at which a text that grows piece by piece ends. A word may come in two pieces, so that what may be its
beginning is held back until it is known.
"""

from __future__ import annotations

from collections.abc import Iterable


class StopWords:
    """Of one text. The word itself is never given."""

    __slots__ = ("_held", "_words", "found")

    def __init__(self, words: Iterable[str]) -> None:
        self._words = [word for word in words if word]
        self._held = ""
        self.found: str | None = None
        """The word that has come first."""

    def take(self, piece: str) -> str:
        """The next piece -> what may be given now; nothing once a word was found."""
        if self.found is not None:
            return ""
        text = self._held + piece
        if not self._words:
            return text
        first = min(((at, word) for word in self._words if (at := text.find(word)) >= 0), default=None)
        if first is not None:
            self._held, self.found = "", first[1]
            return text[: first[0]]
        held = max(_overlap(text, word) for word in self._words)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def rest(self) -> str:
        """What was held back, of a text that is over."""
        rest, self._held = self._held, ""
        return rest


def _overlap(text: str, word: str) -> int:
    """How many characters at the end of a text may be the beginning of a word."""
    for length in range(min(len(word) - 1, len(text)), 0, -1):
        if text.endswith(word[:length]):
            return length
    return 0
