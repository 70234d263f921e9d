from typing import Any, Literal

import numpy as np

from tensorgate.gateway.contract.call import Buffer

def scan(
    text: Buffer, start: int, kind: Literal["f", "d", "i", "u"], /
) -> tuple[bytearray, tuple[int, ...], int] | None: ...
def depth(text: Buffer, /) -> int: ...
def long_arrays(text: Buffer, least: int, /) -> list[tuple[int, int]]: ...
def format_rows(numbers: np.ndarray[Any, Any], kind: Literal["f", "d"], columns: int, between: str, /) -> list[str]: ...
def format_floats(numbers: np.ndarray[Any, Any], /) -> bytes: ...
def format_nested(
    numbers: np.ndarray[Any, Any],
    kind: Literal["f", "d", "w", "b", "B", "h", "i", "q"],
    shape: tuple[int, ...],
    seams: tuple[bytes, ...],
    /,
) -> bytearray: ...
