"""Models for clients that want to see again what they sent, and those of Triton's own examples."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np


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


class Repeat:
    """INT32 `IN` [n], UINT32 `DELAY` [n] and `WAIT` [1], both ms -> `OUT` and `IDX` [1], once for each value of `IN`,
    each after its delay. A value below 0 ends them with an error.
    """

    def __init__(self, context: Any) -> None:
        """Nothing to prepare."""

    def infer(self, inputs: Mapping[str, Any], request: Any) -> Iterator[Mapping[str, Any]]:
        for index, (value, delay) in enumerate(zip(inputs["IN"], inputs["DELAY"], strict=True)):
            time.sleep(int(delay) / 1000)  # real time: a slow model
            if value < 0:
                raise ValueError(f"value {index} is below 0")
            yield {"OUT": value.reshape(1), "IDX": np.array([index], np.uint32)}
        time.sleep(int(inputs["WAIT"][0]) / 1000)  # real time: a slow model


class Colours:
    """FP32 `picture` [b, height, width, 3] -> how much red, green and blue there is, FP32 `colours` [b, 3]."""

    def __init__(self, context: Any) -> None:
        """Nothing to prepare."""

    def infer(self, inputs: Mapping[str, Any], request: Any) -> Mapping[str, Any]:
        return {"colours": inputs["picture"].mean(axis=(1, 2))}


class Slow:
    """INT32 `x` -> the same, after that many ms."""

    def __init__(self, context: Any) -> None:
        """Nothing to prepare."""

    def infer(self, inputs: Mapping[str, Any], request: Any) -> Mapping[str, Any]:
        time.sleep(int(inputs["x"][0]) / 1000)  # real time: a slow model
        return dict(inputs)
