"""The file of a tokenizer, as the library `tokenizers` reads and writes it: tokenizer.json."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any


def open_tokenizer(path: Path) -> Any:
    """A `tokenizers.Tokenizer`. Raises ImportError saying what to install, ValueError for another file."""
    try:
        library = importlib.import_module("tokenizers")
    except ImportError:
        raise ImportError("tokenizers are read by the library of that name: pip install 'tensorgate[text]'") from None
    try:
        return library.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises Exception itself, with a text
        raise ValueError(f"{path} is no tokenizer.json: {error}") from None
