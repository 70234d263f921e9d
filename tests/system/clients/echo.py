"""A model for clients that want to see again what they sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Echo:
    """Inputs of any names -> outputs of the same names, untouched."""

    def __init__(self, context: Any) -> None:
        pass

    def infer(self, inputs: Mapping[str, Any], request: Any) -> Mapping[str, Any]:
        return dict(inputs)
