"""What the readers of other servers' configurations say alike of models."""

from __future__ import annotations

from pathlib import Path
from typing import Final

NO_BOUND: Final = 65536
"""How many requests may wait where the other server sets no bound."""
NEEDS_TENSORFLOW: Final = "needs TensorFlow here: pip install 'tensorgate[tensorflow]'"


def is_version(entry: Path) -> bool:
    """Whether it is the folder of a version."""
    return entry.name.isascii() and entry.name.isdecimal() and entry.is_dir()
