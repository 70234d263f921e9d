"""Libraries for NVIDIA's GPUs, cut to one architecture: they hold the same kernels for ten, and a machine has one.

An ELF file keeps them in sections named .nv_fatbin: containers, each with entries of a header and a program. What is
not for the architecture is overwritten with zeros, in place, so that every offset stays and the file packs small. PTX,
from which the driver would compile for others, goes, too. Source: cuobjdump's listing of the same files.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

_CONTAINER: Final = 0xBA55ED50
_PROGRAM: Final = 2
"""An entry's kind: 1 is PTX, 2 a program of one architecture."""


class Entry(NamedTuple):
    """A program's place in the file."""

    kind: int
    architecture: int
    offset: int
    nbytes: int


def entries(content: bytes | bytearray) -> Iterator[Entry]:
    """Every program and every PTX of an ELF file of 64 bits."""
    for begin, nbytes in _sections(content):
        at, end = begin, begin + nbytes
        while at < end:
            if struct.unpack_from("<I", content, at)[0] != _CONTAINER:
                at += 8
                continue
            _, _, header, size = struct.unpack_from("<IHHQ", content, at)
            entry, at = at + header, at + header + size
            while entry < at:
                kind, _, own_header, own_size = struct.unpack_from("<HHIQ", content, entry)
                (architecture,) = struct.unpack_from("<I", content, entry + 28)
                yield Entry(kind, architecture, entry + own_header, own_size)
                entry += own_header + own_size


def _sections(content: bytes | bytearray) -> Iterator[tuple[int, int]]:
    """Offset and size of those that hold containers."""
    if content[:5] != b"\x7fELF\x02":
        raise ValueError("this is no ELF file of 64 bits")
    (table,) = struct.unpack_from("<Q", content, 0x28)
    size, count, names = struct.unpack_from("<HHH", content, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", content, table + number * size) for number in range(count)]
    texts = headers[names][4]
    for header in headers:
        start = texts + header[0]
        if b"nv_fatbin" in content[start : content.index(0, start)]:
            yield header[4], header[5]


def keep(content: bytearray, architecture: int) -> int:
    """Blank all but the programs of one architecture, 90 for sm_90; raises ValueError if there is none. -> bytes
    blanked
    """
    found = list(entries(content))
    wanted = [entry for entry in found if (entry.kind, entry.architecture) == (_PROGRAM, architecture)]
    if not wanted:
        there = sorted({entry.architecture for entry in found if entry.kind == _PROGRAM})
        raise ValueError(f"there are programs for sm_{', sm_'.join(map(str, there))}, and none for sm_{architecture}")
    blanked = 0
    for entry in found:
        if entry not in wanted:
            content[entry.offset : entry.offset + entry.nbytes] = bytes(entry.nbytes)
            blanked += entry.nbytes
    return blanked
