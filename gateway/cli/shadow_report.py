"""The text of `tensorgate diff`: responses that differed from a shadow's, and their summary."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tensorgate.gateway.routing.shadow_samples import read_diff_samples

Sample = Mapping[str, Any]


def show(path: Path, route: str | None, *, as_json: bool, print_line: Callable[[str], None]) -> None:
    """Print the samples of a file, of one route or all, and a summary. Raises OSError."""
    samples = [sample for sample in read_diff_samples(path) if route is None or sample.get("route") == route]
    if as_json:
        print_line(json.dumps({"samples": samples, "summary": summary(samples)}, ensure_ascii=False, indent=2))
        return
    for sample in samples:
        for line in _sample_lines(sample):
            print_line(line)
        print_line("")
    for line in _summary_lines(summary(samples)):
        print_line(line)


def summary(samples: Iterable[Sample]) -> Mapping[str, Any]:
    """Per route: counts of results and errors, and per output counts of comparisons and the largest differences."""
    routes: dict[str, Any] = {}
    for sample in samples:
        about = routes.setdefault(sample.get("route", ""), {"results": Counter(), "outputs": {}, "errors": Counter()})
        about["results"][sample["result"]] += 1
        for side in ("primary", "shadow"):
            if error := sample.get(side, {}).get("error"):
                about["errors"][f"{side}: {error.get('kind')}"] += 1
        for output in sample.get("outputs", ()):
            each = about["outputs"].setdefault(output["output"], {"max_absolute": 0.0, "max_relative": 0.0})
            each[output["what"]] = each.get(output["what"], 0) + 1
            for key in ("max_absolute", "max_relative"):
                each[key] = _larger(each[key], output.get(key, 0.0))
    return routes


def _larger(one: float | str, other: float | str) -> float | str:
    return one if float(one) >= float(other) else other


def _sample_lines(sample: Sample) -> Iterable[str]:
    primary, shadow = sample.get("primary", {}), sample.get("shadow", {})
    known = f" id {sample['id']}" if sample.get("id") else ""
    yield f"{sample.get('time', '')}  route {sample.get('route', '')}{known}: {sample['result']}"
    yield f"  {_side(primary)}  against  {_side(shadow)}"
    for output in sample.get("outputs", ()):
        yield from _output(output)


def _side(side: Sample) -> str:
    name = f"{side.get('model', '')} {side.get('version', '')}, {float(side.get('seconds', 0)) * 1e3:.1f} ms"
    error = side.get("error")
    return f"{name}: {error.get('kind')}: {error.get('text')}" if error else name


def _output(output: Sample) -> Iterable[str]:
    name, what = output["output"], output["what"]
    primary, shadow = output.get("primary", "nothing"), output.get("shadow", "nothing")
    if what == "equal":
        yield f"  {name}: {primary}, within the tolerance"
    elif what == "values":
        far = f"by up to {_figure(output['max_absolute'])}, relative {_figure(output['max_relative'])}"
        yield f"  {name}: {primary}, {output['beyond']} of {output['elements']} elements differ {far}"
        for index, mine, theirs in output.get("first", ()):
            yield f"    {index}  {mine}  {theirs}"
    else:
        yield f"  {name}: {what}: {primary} against {shadow}"


def _figure(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


def _summary_lines(routes: Mapping[str, Any]) -> Iterable[str]:
    if not routes:
        yield "no differences"
    for route, about in routes.items():
        yield f"route {route}: " + ", ".join(f"{count} {result}" for result, count in about["results"].items())
        for error, count in about["errors"].items():
            yield f"  {count} times {error}"
        for name, each in about["outputs"].items():
            kinds = ", ".join(f"{each[what]} {what}" for what in each if not what.startswith("max_"))
            far = f"absolute {_figure(each['max_absolute'])}, relative {_figure(each['max_relative'])}"
            yield f"  {name}: {kinds}; largest difference: {far}"
