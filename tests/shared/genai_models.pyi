from pathlib import Path
from typing import Literal

CONTEXT: int
END: int
Kind = Literal["plain", "paged"]

def words_after(tokens: list[int], count: int) -> list[int]: ...
def write_model(folder: Path, kind: Kind) -> Path: ...
