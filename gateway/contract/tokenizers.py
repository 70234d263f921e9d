"""A model's tokenizer.json, by the library tokenizers, which is Hugging Face's and an extra."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from tensorgate.gateway.contract.extras import install_command


def open_tokenizer(path: Path) -> Any:
    """A `tokenizers.Tokenizer`. Raises ImportError saying what to install, ValueError for another file."""
    try:
        library = importlib.import_module("tokenizers")
    except ImportError:
        raise ImportError(f"tokenizers are read by the library of that name: {install_command('text')}") from None
    try:
        return library.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises Exception itself, with a text
        raise ValueError(f"{path} is no tokenizer.json: {error}") from None
