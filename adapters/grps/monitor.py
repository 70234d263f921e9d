"""GET of one series of the monitor page of grps v1.1.0: query -> MonitorSeries, Points -> JSON."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import parse_qs

import orjson

from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.questions import MonitorSeries, Points

_MARK: Final = "*"
"""The names of all numbers that are the server's own begin with it."""


def decode_series(call: Call, resolve: Resolve) -> MonitorSeries:
    """?name=*qps"""
    name = parse_qs(call.raw_target.partition("?")[2]).get("name", [""])[0]
    return MonitorSeries(name[1:] if name.startswith(_MARK) else "")


def encode_series(points: Points | None, question: Any) -> Reply:
    """{"label": "trend", "data": [[x, y], …]}, or words where there is no such number."""
    if points is None:
        return Reply(b"key not found", headers={"Content-Type": "text/plain"})
    data = [[x, round(y, 2)] for x, y in points.points]
    return Reply(orjson.dumps({"label": points.kind, "data": data}), headers={"Content-Type": "application/json"})
