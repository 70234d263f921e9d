"""A model of sequences: each request adds to the sum of those before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorgate import ModelContext, ModelRequest


class RunningSum:
    """INT32 `INPUT` [n, 1] -> INT32 `OUTPUT` [n, 1]: what each of n sequences adds up to, this request included.

    The YAML file says under `sequences:` that `NEXT` of one request is `SUM` of the sequence's next one. The gateway
    keeps it until the sequence has ended or been idle for too long, starts a new one at 0, and shows it to no caller:
    so the class remembers nothing, and requests of different sequences share a run.
    """

    def __init__(self, context: ModelContext) -> None:
        """Nothing to prepare."""

    def infer(self, inputs: Mapping[str, Any], request: ModelRequest) -> Mapping[str, Any]:
        """A class that keeps state of its own finds the sequence's id, start and end in `request.sequence`."""
        total = inputs["SUM"] + inputs["INPUT"]
        return {"OUTPUT": total, "NEXT": total}
