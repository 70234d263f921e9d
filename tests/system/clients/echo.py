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


class Told:
    """INT32 `INPUT` + `START` + `END` * `CORRID` -> `OUTPUT`, as far as it is told."""

    def __init__(self, context: Any) -> None:
        """Nothing to prepare."""

    def infer(self, inputs: Mapping[str, Any], request: Any) -> Mapping[str, Any]:
        told = inputs["INPUT"] + inputs["START"]
        if "END" in inputs:
            told = told + inputs["END"] * inputs["CORRID"].astype("int32")
        return {"OUTPUT": told}
