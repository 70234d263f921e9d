"""Compressed bodies: every way that pieces can fall, bounds, and memory that is given back."""

import gc
import gzip
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

from tensorgate.adapters import inflate as module
from tensorgate.adapters.inflate import inflate
from tensorgate.gateway.contract.errors import BodyTooLarge

GZIP = 16 + zlib.MAX_WBITS
SIZES = [0, 1, 7, 8, 9, 15, 16, 17, 64, 1000]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("given", [1, 3, 1 << 16])
@pytest.mark.parametrize("noise", [0, 256])
def test_pieces_of_any_size(size: int, given: int, noise: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PIECE_BYTES", 8)
    monkeypatch.setattr(module, "_GIVEN_BYTES", given)
    plain = np.random.default_rng(size).bytes(size) if noise else bytes(size)
    body = gzip.compress(plain)
    assert bytes(inflate(body, GZIP, size)) == plain
    assert bytes(inflate(memoryview(zlib.compress(plain)), zlib.MAX_WBITS, 1 << 20)) == plain
    with pytest.raises(BodyTooLarge):
        inflate(body, GZIP, size - 1)
    for broken in (body[:-1], body[: len(body) // 2], body + b"x", b"", b"x" + body):
        with pytest.raises(zlib.error):
            inflate(broken, GZIP, 1 << 20)


def test_a_bomb_is_left_where_the_limit_is(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    pieces = module._pieces

    def counted(*args: object) -> object:
        for piece in pieces(*args):  # type: ignore[arg-type]
            made.append(len(piece))
            yield piece

    monkeypatch.setattr(module, "_pieces", counted)
    bomb = gzip.compress(bytes(64 << 20))
    with pytest.raises(BodyTooLarge):
        inflate(bomb, GZIP, 5 << 20)
    assert sum(made) <= 6 << 20


def test_what_is_read_is_given_back_when_nobody_looks_at_it() -> None:
    body = gzip.compress(bytes(200 << 20))
    gc.collect()
    before = _resident()
    plain = inflate(body, GZIP, 1 << 30)
    kept = plain[1 << 20 : 2 << 20]
    assert len(plain) == 200 << 20
    assert _resident() - before > 190 << 20
    del plain
    assert bytes(kept) == bytes(1 << 20)
    del kept
    assert _resident() - before < 20 << 20


def _resident() -> int:
    """Bytes of memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith("VmRSS")]
    return int(line.split()[1]) << 10


def test_the_parser_of_a_large_document_is_not_kept() -> None:
    """It would have 13 bytes for each of the document's, in every thread that reads."""
    script = """
import ctypes, platform
from pathlib import Path
from tensorgate.adapters.json.body import read

def resident():
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) >> 10

body = b"[" + b"0," * (8 << 20) + b"0]"
read(b"[1]", 10)
before = resident()
value = read(body, 10)
assert len(value) and resident() - before > 60
del value
print(resident() - before)
"""
    root = Path(__file__).parents[2]
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=root)
    assert int(said.stdout) < 20
