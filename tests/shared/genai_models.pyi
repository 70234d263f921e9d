from pathlib import Path
from typing import Any, Literal

CONTEXT: int
END: int
Kind = Literal["plain", "paged"]

def likelihoods(tokens: list[int]) -> Any: ...
def words_after(tokens: list[int], count: int) -> list[int]: ...
def write_model(folder: Path, kind: Kind) -> Path: ...
