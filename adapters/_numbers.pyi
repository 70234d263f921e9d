from typing import Literal

from gateway.ports import Buffer

def scan(
    text: Buffer, start: int, kind: Literal["f", "d", "i", "u"], /
) -> tuple[bytearray, tuple[int, ...], int] | None: ...
