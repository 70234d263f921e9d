"""What stores fail with. Texts are for operators; they name the URL, and never a credential or an answer's body."""

from __future__ import annotations


class NotThere(FileNotFoundError):
    """There is no such file, bucket or revision."""

    def __str__(self) -> str:
        return str(self.args[0])


class NotAllowed(PermissionError):
    """The store refuses who asks, or a redirect leads where none may lead."""

    def __str__(self) -> str:
        return str(self.args[0])


class Unreachable(ConnectionError):
    """The store did not answer, or not well, however often it was asked. It may later."""


class Changed(Unreachable):
    """A file is another one than was listed."""


class Damaged(ValueError):
    """What came has another digest than it should have."""
