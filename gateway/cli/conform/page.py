"""The report as one HTML page: nothing is loaded from elsewhere, and outcomes are filtered without a script."""

from __future__ import annotations

import time
from collections.abc import Iterator
from html import escape
from itertools import combinations, groupby
from typing import Final

from tensorgate.gateway.cli.conform.judging import JudgedCase, JudgedServer, Verdict
from tensorgate.gateway.cli.conform.report import LEVELS, shown_reply, shown_request, totals

_STYLE: Final = """
:root{color-scheme:light dark;--ground:#fff;--text:#1b1f24;--soft:#59636e;--line:#d5dae0;--card:#f6f8fa;
--passed:#1a7f37;--differs:#c4231c;--not-offered:#7a6200}
@media (prefers-color-scheme:dark){:root{--ground:#0f1318;--text:#e6edf3;--soft:#9aa6b2;--line:#30363d;--card:#171c23;
--passed:#4ac26b;--differs:#ff7b72;--not-offered:#d9b530}}
body{background:var(--ground);color:var(--text);font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;
padding:0 1rem}
h1{font-size:1.5rem;margin:0}h2{font-size:1.05rem;margin:1.6rem 0 .4rem}p{color:var(--soft);margin:.2rem 0}
fieldset{border:0;padding:0;margin:1rem 0;display:flex;gap:1.2rem;flex-wrap:wrap}
details,.row{border-top:1px solid var(--line);padding:.35rem 0}summary{cursor:pointer}
b{display:inline-block;min-width:6.5rem;font-weight:600}
.passed b{color:var(--passed)}.differs b{color:var(--differs)}.not-offered b{color:var(--not-offered)}
small{color:var(--soft);margin-left:.5rem}
pre{background:var(--card);border:1px solid var(--line);border-radius:6px;padding:.6rem;overflow-x:auto;
white-space:pre-wrap;overflow-wrap:anywhere;font-size:13px}
table{border-collapse:collapse;width:100%;font-size:13px}td,th{border:1px solid var(--line);padding:.3rem .5rem;
text-align:left;vertical-align:top;overflow-wrap:anywhere}
"""


def html(report: JudgedServer) -> str:
    """The page."""
    name = escape(report.server.name or "a server without a name")
    title = f"{escape(report.suite.title)}: {name}"
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(report.time))
    is_clean = len(report.of(Verdict.PASSED)) == len(report.cases)
    boxes = "".join(
        f'<label><input type="checkbox" id="{_id(verdict)}"{" checked" if is_clean or verdict != "passed" else ""}> '
        f"{verdict} {len(report.of(verdict))}</label>"
        for verdict in Verdict
    )
    kinds = [kind for count in range(1, len(Verdict) + 1) for kind in combinations(Verdict, count)]
    hide = "".join(
        f"body{''.join(f':has(#{_id(each)}:not(:checked))' for each in kind)} .only-{'-'.join(map(_id, kind))},"
        for kind in kinds
    )
    hide = f"{hide[:-1]}{{display:none}}"
    notes = "".join(f"<p>{escape(note)}</p>" for note in report.server.notes)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width">'
        f"<style>{_STYLE}{hide}</style><h1>{title}</h1>"
        f"<p>{escape(totals(report))}, {when}</p>{notes}<fieldset>{boxes}</fieldset>{''.join(_groups(report))}</html>\n"
    )


def _id(verdict: Verdict) -> str:
    return verdict.replace(" ", "-")


def _groups(report: JudgedServer) -> Iterator[str]:
    def clause(judged: JudgedCase) -> tuple[str, str]:
        return judged.case.transport, judged.case.clause

    for (transport, name), cases in groupby(sorted(report.cases, key=clause), key=clause):
        group = list(cases)
        kind = "-".join(_id(each) for each in Verdict if any(judged.verdict is each for judged in group))
        yield f'<section class="only-{kind}"><h2>{escape(name)} <small>{transport}</small></h2>'
        yield from map(_case, group)
        yield "</section>"


def _case(judged: JudgedCase) -> str:
    kind = _id(judged.verdict)
    head = (
        f"<b>{judged.verdict}</b>{escape(judged.case.name)}"
        f"<small>{LEVELS[judged.level]}{f', {escape(judged.case.extension)}' if judged.case.extension else ''}</small>"
    )
    if judged.request is None or judged.reply is None:
        return f'<div class="row only-{kind} {kind}">{head}</div>'
    rows = "".join(
        f"<tr><td>{escape(each.what)}<td>{escape(each.expected)}<td>{escape(each.got)}" for each in judged.differences
    )
    return (
        f'<details class="only-{kind} {kind}"><summary>{head}</summary>'
        f"<table><tr><th>what<th>expected<th>got{rows}</table>"
        f"<pre>{escape(shown_request(judged.request))}</pre><pre>{escape(shown_reply(judged.reply))}</pre></details>"
    )
