"""What to install for a part that is optional: the packages of an extra, by the names under which an index has them."""

from __future__ import annotations

import re

_OF_AN_EXTRA = re.compile(r"""(.*?)\s*;.*\bextra\s*==\s*['"]([^'"]+)['"]""")


def install_command(extra: str) -> str:
    """A command line for whoever misses `extra`. It works wherever tensorgate itself was installed from."""
    from importlib import metadata  # nobody who misses nothing pays for it

    try:
        requirements = metadata.requires("tensorgate") or []
    except metadata.PackageNotFoundError:  # run from its files
        requirements = []
    found = [match[1] for each in requirements if (match := _OF_AN_EXTRA.fullmatch(each)) and match[2] == extra]
    packages = " ".join(f"'{each}'" for each in found)
    return f"pip install {packages}" if packages else f"pip install -e '.[{extra}]'"
