"""The load over HTTP/2: h2load, a thread for each of its cores, keeps some connections busy with one gRPC message."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from statistics import quantiles

from benchmarks.servers import HOST, Failed, Server, Silent, pinned
from benchmarks.wrk import Load, Round

_REQUESTS = re.compile(r"requests: \d+ total, \d+ started, (\d+) done, (\d+) succeeded, (\d+) failed, (\d+) errored")
_DATA = re.compile(r"traffic: .* \((\d+)\) data")
_RATE = re.compile(r"finished in .*, ([0-9.]+) req/s")


def find_h2load() -> str:
    path = shutil.which("h2load")
    if path is None:
        raise Failed("h2load is missing; it makes the load. Install it with `apt install nghttp2-client`.")
    return path


def press(server: Server, path: str, message_file: Path, answer_bytes: int, load: Load) -> Round:
    """One round. `message_file` has a gRPC message with its prefix; every answer must have this many bytes, prefix
    included: HTTP has no other sign of a call that failed. Raises Failed.
    """
    log = message_file.with_suffix(".log")
    log.unlink(missing_ok=True)
    command = [
        find_h2load(),
        f"-t{load.threads}",
        f"-c{load.connections}",
        "-m1",
        f"-D{load.seconds}",
        f"-d{message_file}",
    ]
    command += ["-H", "content-type: application/grpc", "-H", "te: trailers", f"--log-file={log}"]
    before = server.cpu_us()
    with pinned(load.core):
        done = subprocess.run(  # noqa: S603 - our own command
            [*command, f"http://{HOST}:{server.port}{path}"], capture_output=True, text=True, check=False
        )
    after = server.cpu_us()
    if done.returncode != 0:
        raise Failed(f"h2load failed: {done.stderr or done.stdout}")
    return read_round(done.stdout, log.read_text(), answer_bytes, after - before, server.name)


def read_round(output: str, log: str, answer_bytes: int, cpu_us: float, name: str) -> Round:
    """What h2load printed, its log (a line per request: when it began, its status, its microseconds), and the server's
    CPU time.
    """
    counts, data, rate = _REQUESTS.search(output), _DATA.search(output), _RATE.search(output)
    if counts is None or data is None or rate is None:
        raise Failed(f"h2load said nothing that can be read: {output}")
    requests, succeeded, failed, errored = map(int, counts.groups())
    times = [int(line.split("\t")[2]) for line in log.splitlines()]
    if failed or errored or succeeded != requests:
        raise Failed(f"{name} did not answer everything well: {counts[0]}")
    if len(times) < 2 or not requests:
        raise Silent(f"{name} answered next to nothing")
    if abs(int(data[1]) - requests * answer_bytes) > 64 * answer_bytes:  # answers that were cut off count in data only
        raise Failed(f"{name} gave answers of {int(data[1]) / requests:.0f} bytes, not of {answer_bytes}")
    centiles = quantiles(times, n=100)
    return Round(float(rate[1]), centiles[49], centiles[98], cpu_us / requests)
