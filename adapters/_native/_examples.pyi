from typing import Literal, TypeAlias

from tensorgate.gateway.contract.call import Buffer

Column: TypeAlias = tuple[Literal["bytes"], int, list[bytes]] | tuple[Literal["float", "int64"], int, bytearray]

def read(
    body: Buffer, at: int, end: int, names: tuple[bytes, ...], most: int, /
) -> tuple[list[Column], int, int] | None: ...
