"""NVIDIA's run-time compiler, as a library without a driver: a kernel's text becomes a program of one architecture, and
the compiler says what it needs.

CUDA's headers are those of the wheels beside it. Source: NVRTC, nvrtcCompileProgram; ptxas, --verbose.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from serving import ROOT

HEAVY = ROOT / ".venv-heavy"


class Needs(NamedTuple):
    """What the largest kernel of a program takes, by ptxas; spills are bytes of registers kept in memory."""

    kernels: int
    registers: int
    spilled: int
    stack: int


@cache
def library() -> tuple[Any, Path]:
    """The compiler and the folder of CUDA's headers; the test fails where they are missing."""
    found = sorted(HEAVY.glob("lib/python3*/site-packages/nvidia/cu13/lib/libnvrtc.so.*"))
    if not found:
        pytest.fail("nvidia-cuda-nvrtc is not there: say `make test-system`", pytrace=False)
    return ctypes.CDLL(str(found[0])), found[0].parents[1] / "include"


def compiled(text: str, architecture: str, options: Sequence[str] = ()) -> tuple[Needs, str]:
    """What a text needs on an architecture, sm_90 and so on; and all that the compiler complains of, warnings
    included.
    """
    nvrtc, headers = library()
    given = [
        f"--gpu-architecture={architecture}",
        f"-I{headers}",
        f"-I{headers / 'cccl'}",
        "--ptxas-options=-v",
        "-default-device",
        *options,
    ]
    program = ctypes.c_void_p()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernel.cu", 0, None, None) == 0
    array = (ctypes.c_char_p * len(given))(*(each.encode() for each in given))
    failed = nvrtc.nvrtcCompileProgram(program, len(given), array)
    size = ctypes.c_size_t()
    assert nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)) == 0
    log = ctypes.create_string_buffer(size.value)
    assert nvrtc.nvrtcGetProgramLog(program, log) == 0
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    said = log.value.decode()
    assert not failed, said
    return _needs(said), "\n".join(line for line in said.splitlines() if re.search(r"warning|error|remark", line))


def _needs(log: str) -> Needs:
    def all_of(pattern: str) -> list[int]:
        return [int(number) for number in re.findall(pattern, log)]

    registers = all_of(r"Used (\d+) registers")
    spilled = all_of(r"(\d+) bytes spill (?:stores|loads)")
    return Needs(len(registers), max(registers), sum(spilled), max(all_of(r"(\d+) bytes stack frame")))
