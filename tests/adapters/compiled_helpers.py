"""What tests of the compiled helpers need, and whether it is there."""

import importlib.util
import shutil

import pytest


def is_built(name: str) -> bool:
    return importlib.util.find_spec(f"tensorgate.adapters._native.{name}") is not None


def needs(name: str) -> pytest.MarkDecorator:
    """Skip a test where a helper is not built, and cannot be: with a compiler, it has to be there."""
    return pytest.mark.skipif(
        not is_built(name) and shutil.which("g++") is None, reason="no compiler here, so there is no compiled helper"
    )
