"""What backends of NumPy and a few lines have in common, for tests of what stands around a backend."""

from typing import Literal


class PaperBackend:
    """Computes in a thread, or on the loop, one answer for each request; requests may share a batch."""

    runs_on: Literal["thread", "loop"] = "thread"
    inline = True
    decoupled = False
    merges = True
    in_flight = 1
    platform = "test"

    def close(self) -> None:
        pass
