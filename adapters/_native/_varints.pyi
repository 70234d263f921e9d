from typing import Any, Literal, TypeAlias

import numpy as np

from tensorgate.gateway.contract.call import Buffer

Kind: TypeAlias = Literal["u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8"]

def encode(numbers: np.ndarray[Any, Any], kind: Kind, /) -> bytes: ...
def decode(data: Buffer, /) -> bytearray | None: ...
