"""A picture of a run of `benchmarks.gpu`, from the file that it wrote: what reached how much of the raw model's rate.

    python -m benchmarks.gpu_plot benchmarks/results/gpu-20260101-120000.json docs/gpu.svg

Bars, one for each rate that was compared with a raw one; a line at 1. Nothing is drawn that the file does not hold.
"""
# ruff: noqa: T201 - a command speaks by print

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

WIDTH, LEFT, RIGHT, ROW, HEAD = 960, 430, 110, 20, 64
SECTIONS = ("throughput", "served", "images", "decode")
"""Those whose figures are rates: more is better."""
COLOURS = {"throughput": "#3b6ea5", "served": "#5a9367", "images": "#b07d3c", "decode": "#8a5a83"}


def bars(figures: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, float, str]]:
    """Section, name, ratio to the raw rate, and what stands beside the bar."""
    made = []
    for each in figures:
        if each["section"] in SECTIONS and each["against"]:
            ratio = each["value"] / each["against"]
            made.append((each["section"], each["name"], ratio, f"{ratio:.2f}  {each['value']:,.0f} {each['unit']}"))
    return sorted(made, key=lambda bar: SECTIONS.index(bar[0]))


def draw(content: Mapping[str, Any]) -> str:
    """The file's content as SVG; raises ValueError if it has nothing to draw."""
    found = bars(content["figures"])
    if not found:
        raise ValueError("no rate in this file was compared with another")
    widest = max(1.0, *(ratio for _, _, ratio, _ in found))
    scale = (WIDTH - LEFT - RIGHT) / widest
    height = HEAD + ROW * len(found) + 24
    machine = content["machine"]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        _text(12, 22, "tensorgate against the raw model, which is 1", 'font-size="16" font-weight="bold"'),
        _text(12, 42, f"{machine.get('gpu') or machine['cpu']}, {content['finished'][:10]}", 'fill="#555555"'),
    ]
    for number, (section, name, ratio, told) in enumerate(found):
        top = HEAD + ROW * number
        wide = f"{ratio * scale:.1f}"
        parts.append(_text(LEFT - 8, top + 14, name, 'text-anchor="end"'))
        parts.append(f'<rect x="{LEFT}" y="{top + 3}" width="{wide}" height="{ROW - 6}" fill="{COLOURS[section]}"/>')
        parts.append(_text(LEFT + ratio * scale + 6, top + 14, told, 'fill="#555555"'))
    one = f"{LEFT + scale:.1f}"
    parts.append(f'<line x1="{one}" x2="{one}" y1="{HEAD - 6}" y2="{height - 18}" stroke="black"/>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _text(x: float, y: float, words: str, style: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(words)}</text>'


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_plot", description=__doc__)
    parser.add_argument("results", type=Path, help="the file that benchmarks.gpu wrote")
    parser.add_argument("picture", type=Path, help="the SVG file to write")
    options = parser.parse_args(arguments)
    options.picture.write_text(draw(json.loads(options.results.read_text())))
    print(f"wrote {options.picture}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
