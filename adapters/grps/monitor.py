"""GET of one series of the monitor page of grps v1.1.0: query -> MonitorSeries, Points -> JSON."""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import parse_qs

import orjson

from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.questions import MonitorSeries, Points

_MARK: Final = "*"
"""The names of all numbers that are the server's own begin with it."""
_NAMES: Final = {
    "qps": "requests_per_second",
    "fail_rate(%)": "error_percent",
    "latency_avg(ms)": "mean_latency_ms",
    "latency_max(ms)": "max_latency_ms",
    "latency_cdf(ms)": "latency_percentiles_ms",
    "cpu_usage(%)": "cpu_percent",
    "mem_usage(%)": "memory_percent",
}
"""Its name here -> that of MonitorSeries"""
_GPU: Final = re.compile(r"(gpu[0-9]+)_mem_usage\(MIB\)")


def decode_series(call: Call, resolve: Resolve) -> MonitorSeries:
    """?name=*qps"""
    name = parse_qs(call.raw_target.partition("?")[2]).get("name", [""])[0]
    if not name.startswith(_MARK):
        return MonitorSeries("")
    gpu = _GPU.fullmatch(name, 1)
    return MonitorSeries(f"{gpu[1]}_memory_mib" if gpu else _NAMES.get(name[1:], ""))


def encode_series(points: Points | None, question: Any) -> Reply:
    """{"label": "trend", "data": [[x, y], …]}, or words where there is no such number."""
    if points is None:
        return Reply(b"key not found", headers={"Content-Type": "text/plain"})
    data = [[x, round(y, 2)] for x, y in points.points]
    return Reply(orjson.dumps({"label": points.kind, "data": data}), headers={"Content-Type": "application/json"})
