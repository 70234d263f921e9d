"""The load: wrk, a thread for each of its cores, keeps a number of connections busy with one body."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.servers import HOST, Failed, Server, Silent, pinned

SCRIPT = Path(__file__).parent / "post.lua"
ERRORS = ("connect_errors", "read_errors", "write_errors", "timeouts", "bad_answers")


@dataclass(frozen=True, slots=True)
class Load:
    """How to press: `seconds` each time, from `connections`, sent from `core`, or from these."""

    seconds: int
    connections: int
    core: int | set[int]

    @property
    def threads(self) -> int:
        """One for each core, as far as there are connections."""
        return min(self.connections, len(self.core)) if isinstance(self.core, set) else 1


@dataclass(frozen=True, slots=True)
class Round:
    """What one run of wrk saw; CPU time is the server's, user and system."""

    requests_per_s: float
    p50_us: float
    p99_us: float
    cpu_us_per_request: float

    def facts(self) -> dict[str, float]:
        return asdict(self)


def find_wrk() -> str:
    path = shutil.which("wrk")
    if path is None:
        raise Failed("wrk is missing; it makes the load. Install it with `apt install wrk`, or as your system does.")
    return path


def press(server: Server, path: str, body_file: Path, load: Load, headers: Mapping[str, str]) -> Round:
    """One round. Raises Failed for a socket error, a timeout, a status of 400 or more, or no answer at all."""
    command = [find_wrk(), f"-t{load.threads}", f"-c{load.connections}", f"-d{load.seconds}s", "--timeout", "20s"]
    command += ["-s", str(SCRIPT), f"http://{HOST}:{server.port}{path}", "--", str(body_file)]
    command += [word for header in headers.items() for word in header]
    before = server.cpu_us()
    with pinned(load.core):
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own command
    after = server.cpu_us()
    if done.returncode != 0:
        raise Failed(f"wrk failed: {done.stderr or done.stdout}")
    return read_round(done.stdout, after - before, server.name)


def read_round(output: str, cpu_us: float, name: str) -> Round:
    """wrk's output, of which post.lua wrote the last line, and the server's CPU time in it."""
    facts = json.loads(output.splitlines()[-1])
    wrong = {error: facts[error] for error in ERRORS if facts[error]}
    if wrong:
        raise Failed(f"{name} did not answer everything well: {wrong}; a comparison of errors means nothing")
    if not facts["requests"]:
        raise Silent(f"{name} answered nothing in {facts['duration_us'] / 1e6:.0f} s")
    requests = facts["requests"]
    return Round(requests / facts["duration_us"] * 1e6, facts["p50_us"], facts["p99_us"], cpu_us / requests)
