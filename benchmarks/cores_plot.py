"""The picture of `benchmarks.cores`, from the file that it wrote: requests per second over cores, ours and Triton's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

PANEL, TALL, LEFT, TOP, GAP = 220, 190, 60, 96, 26
WIDTH = 2 * GAP + 4 * PANEL + LEFT
CASES = {
    "v2/16": "JSON, 16 floats",
    "v2/150528": "JSON, 3 MB",
    "binary/150528": "binary, 600 KB",
    "raw/16": "gRPC, 16 floats",
}
SERIES = {
    "tensorgate": (("doors", "one"), "#3b6ea5"),
    "whole gateways": (("gateways",), "#9db6d2"),
    "Triton": (("triton",), "#b07d3c"),
}
"""What is drawn: the first of these contenders that a number of doors has, and a colour."""


def points(medians: Mapping[str, Any], case: str, contenders: Sequence[str]) -> list[tuple[int, float]]:
    """Doors and requests per second, in order."""
    found = []
    for doors, by_case in sorted(medians.items(), key=lambda item: int(item[0])):
        of_case = by_case.get(case, {})
        name = next((each for each in contenders if each in of_case), None)
        if name is not None:
            found.append((int(doors), of_case[name]["requests_per_s"]))
    return found


def draw(content: Mapping[str, Any]) -> str:
    """The file's content as SVG; raises ValueError if it has nothing to draw."""
    medians = content["medians"]
    cases = [case for case in CASES if any(case in by_case for by_case in medians.values())]
    if not cases:
        raise ValueError(f"this file has none of {', '.join(CASES)}")
    height = TOP + TALL + 60
    options, finished = content["options"], content["finished"][:10]
    shared = "shared with the load" if options["servers"] == options["load"] else "the load on others"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        _text(12, 22, "requests per second over cores", 'font-size="16" font-weight="bold"'),
        _text(12, 42, f"{content['machine']['cpu']}, cores {shared}, {finished}", 'fill="#555555"'),
    ]
    for number, (name, (_, colour)) in enumerate(SERIES.items()):
        parts.append(f'<rect x="{12 + 140 * number}" y="54" width="12" height="12" fill="{colour}"/>')
        parts.append(_text(30 + 140 * number, 64, name))
    for number, case in enumerate(cases):
        parts += _panel(LEFT + number * (PANEL + GAP // 2), CASES[case], case, medians)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(left: float, title: str, case: str, medians: Mapping[str, Any]) -> list[str]:
    wide, bottom = PANEL - 60, TOP + TALL
    drawn = {colour: points(medians, case, contenders) for contenders, colour in SERIES.values()}
    all_points = [point for line in drawn.values() for point in line]
    most, highest = max(doors for doors, _ in all_points), max(rate for _, rate in all_points)
    parts = [
        _text(left, TOP - 8, title, 'font-weight="bold"'),
        f'<path d="M{left} {TOP} V{bottom} H{left + wide}" fill="none" stroke="black"/>',
        _text(left - 4, TOP + 10, f"{highest:,.0f}", 'text-anchor="end" fill="#555555"'),
        _text(left - 4, bottom, "0", 'text-anchor="end" fill="#555555"'),
    ]
    grey = 'text-anchor="middle" fill="#555555"'
    numbers = sorted({doors for doors, _ in all_points})
    parts += [_text(left + wide * doors / most, bottom + 16, str(doors), grey) for doors in numbers]
    for colour, line in drawn.items():
        places = [(left + wide * doors / most, bottom - TALL * rate / highest) for doors, rate in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
    return parts


def _text(x: float, y: float, words: str, style: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(words)}</text>'
