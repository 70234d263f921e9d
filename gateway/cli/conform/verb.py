"""What the verb does with its options."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from tensorgate.adapters import CONFORMANCE
from tensorgate.adapters.conformance.case import ConformanceSuite
from tensorgate.gateway.cli.client import ClientError
from tensorgate.gateway.cli.conform import against, page, report
from tensorgate.gateway.cli.conform.asking import clients
from tensorgate.gateway.cli.conform.judging import judge

PrintLine = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ConformOptions:
    """Where to ask, what, and where reports go."""

    dialect: str
    http: str | None = None
    grpc: str | None = None
    against_http: str | None = None
    against_grpc: str | None = None
    logs: Sequence[Path] = ()
    models: Sequence[str] = ()
    timeout_s: float = 10.0
    show: int = 20
    json: Path | None = None
    junit: Path | None = None
    html: Path | None = None


def suite_of(dialect: str) -> ConformanceSuite:
    """The suite of a dialect, imported now."""
    module, _, name = CONFORMANCE[dialect].partition(":")
    suite: ConformanceSuite = getattr(import_module(module), name)
    return suite


def conform(options: ConformOptions, print_line: PrintLine) -> int:
    """Ask a server -> exit status: 1 where something that clients rely on differs. Raises ClientError."""
    addresses = {
        name: address
        for name, address in (
            ("http", options.http),
            ("grpc", options.grpc),
            ("against http", options.against_http),
            ("against grpc", options.against_grpc),
        )
        if address is not None
    }
    suite = suite_of(options.dialect)
    with ExitStack() as stack:
        asked = clients(options.http, options.grpc, options.timeout_s)
        others = clients(options.against_http, options.against_grpc, options.timeout_s)
        for client in (*asked.values(), *others.values()):
            stack.callback(client.close)
        if others and not asked.keys() & others.keys():
            raise ClientError("the two servers have no transport in common")
        cases = against.recorded_cases(options.logs, asked) if options.logs else None
        if others:
            found = against.judge_against(suite, asked, others, addresses, cases, options.models)
        elif cases is not None:
            found = against.judge_recorded(suite, asked, addresses, cases)
        else:
            found = judge(suite, asked, addresses, options.models)
    for line in report.lines(found, options.show):
        print_line(line)
    if options.json:
        _write(options.json, (json.dumps(report.plain(found), indent=2, ensure_ascii=False) + "\n").encode())
    if options.junit:
        _write(options.junit, report.junit(found))
    if options.html:
        _write(options.html, page.html(found).encode())
    return 1 if found.fails else 0


def write_repository(dialect: str, folder: Path, print_line: PrintLine) -> int:
    """Write the models whose behaviour the cases know. Raises ClientError."""
    suite = suite_of(dialect)
    files = suite.repository(str(folder.resolve()))
    if not files:
        raise ClientError(f"{suite.title} has no models that any server of it could be given")
    for name, data in files.items():
        file = folder / name
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ClientError(str(error)) from None
        _write(file, data)
    print_line(f"{folder}: {len(files)} files. Serve them: {suite.serve_hint.format(folder=folder)}")
    return 0


def _write(file: Path, data: bytes) -> None:
    try:
        file.write_bytes(data)
    except OSError as error:
        raise ClientError(str(error)) from None
