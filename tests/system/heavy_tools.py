"""The genuine programs in .tools-heavy, which unpack.py puts there, and how they start."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

import pytest
from client_scripts import environment
from serving import ROOT

TOOLS = ROOT / ".tools-heavy"
NUMPY = TOOLS / "numpy"


def program(path: str) -> Path:
    """A program below the folder; the test fails where it is missing."""
    found = TOOLS / path
    if not found.exists():
        pytest.fail(f"{path} is not there: say `make test-system`", pytrace=False)
    return found


def surroundings(**more: str) -> dict[str, str]:
    """The environment variables of such a program: it finds its libraries, and no proxy."""
    libraries = os.pathsep.join((str(TOOLS / "nvidia_pytriton.libs"), sysconfig.get_config_var("LIBDIR")))
    return environment() | {"LD_LIBRARY_PATH": libraries} | more
