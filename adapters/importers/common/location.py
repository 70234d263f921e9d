"""Where models are said to lie: folders of this machine, or stores that they have to be copied from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_URI: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_COPIES: Final = {
    "gs": "gcloud storage cp -r",
    "s3": "aws s3 cp --recursive",
    "hdfs": "hdfs dfs -get",
    "https": "curl -O",
    "http": "curl -O",
}


def local_path(uri: str) -> Path:
    """The path that a URI or a plain path means. Raises ValueError with a remedy for what is not on this machine."""
    found = _URI.fullmatch(uri)
    if found is None or found[1].lower() == "file":
        return Path(found[2] if found else uri)
    copy = _COPIES.get(found[1].lower())
    how = f": {copy} {uri}{'' if copy.startswith('curl') else ' DIR'}" if copy else ""
    raise ValueError(f"{uri} is not on this machine; copy it here and name the folder{how}")
