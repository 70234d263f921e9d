"""Write docs/conformance/: what this gateway, and other servers that are here, answer to `tensorgate conform`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))  # where pytest finds what tests share

from conform_servers import serving_classes, serving_repository
from heavy_tools import TOOLS, triton
from peer_servers import GRPS, GRPS_SOURCES, KSERVE, MLSERVER, grps, kserve, mlserver
from serving import HOST, ROOT, command

FOLDER = ROOT / "docs/conformance"


def ask(name: str, dialect: str, http: int, grpc: int, folder: Path) -> str:
    """Write the reports on one server -> its row of the table."""
    page, data = FOLDER / f"{name}-{dialect}.html", folder / "report.json"
    addresses = ("--http", f"http://{HOST}:{http}", "--grpc", f"{HOST}:{grpc}")
    reports = ("--json", data, "--html", page)
    asked = command("conform", "--dialect", dialect, *addresses, *reports, timeout=600)
    assert asked.returncode in (0, 1), asked.stderr
    report = json.loads(data.read_text())
    weights = {"required": 0, "extension": 0, "recommended": 0}
    for case in report["cases"]:
        weights[case["level"]] += case["outcome"] == "differs"
    server = report["server"] or name
    differs = weights["required"] + weights["extension"]
    lacking = report["totals"]["not offered"]
    return (
        f"| {server} | {dialect} | {report['totals']['passed']} | {differs} | {weights['recommended']} | {lacking} | "
        f"[page]({page.name}) |\n"
    )


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    FOLDER.mkdir(exist_ok=True)
    rows = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        with serving_repository(folder) as gateway:
            rows.append(ask("tensorgate", "v2", gateway.port, gateway.grpc_port, folder))
        with serving_classes(folder) as gateway:
            rows += [
                ask("tensorgate", name, gateway.port, gateway.grpc_port, folder) for name in ("tf_serving", "grps")
            ]
        if (TOOLS / "pytriton").exists():
            with triton(folder / "models", folder / "triton.log") as (http, grpc):
                rows.append(ask("triton", "v2", http, grpc, folder))
        for name, program, serve in (("mlserver", MLSERVER, mlserver), ("kserve", KSERVE, kserve)):
            if program.exists():
                with serve(folder / name) as (http, grpc):
                    rows.append(ask(name, "v2", http, grpc, folder))
        if GRPS_SOURCES in os.environ and GRPS.exists():
            with grps(folder / "grps") as (http, rpc):
                rows.append(ask("grps", "grps", http, rpc, folder))
    day = time.strftime("%Y-%m-%d", time.gmtime())
    head = "| server | dialect | passed | differ | differ, recommended | not offered | report |\n" + "|---" * 7 + "|\n"
    text = f"# What servers answer\n\nWritten by `make conformance` on {day}. [conform.md](../conform.md) says how.\n\n"
    (FOLDER / "README.md").write_text(text + head + "".join(rows))


if __name__ == "__main__":
    main()
