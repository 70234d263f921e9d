"""What a process looks up, connects to and writes: by a library that is preloaded into it where this machine has a C
compiler, and anyway by what the kernel shows of its sockets and by what lies in its folders afterwards.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

SOURCE = Path(__file__).parent / "watch.c"
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
LOOKS_EVERY_S = 0.002
_FOLDERS = ("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR")


@dataclass
class Watch:
    """Of one process. `environment` is what it must be started with; `folders` are its own, empty at first."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    folders: list[Path] = field(default_factory=list)
    _sockets: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for name in _FOLDERS:
            place = self.folder / name.lower()
            place.mkdir(mode=0o700)
            self.folders.append(place)
            self.environment[name] = str(place)
        if COMPILER:
            library = self.folder / "watch.so"
            subprocess.run([COMPILER, "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], check=True)
            self.environment |= {"LD_PRELOAD": str(library), "WATCH_LOG": str(self.folder / "watch.log")}

    @contextlib.contextmanager
    def looking(self, pid: int) -> Iterator[None]:
        """Look at the process's sockets, again and again."""
        over = threading.Event()

        def look() -> None:
            while not over.wait(LOOKS_EVERY_S):
                self._sockets |= set(peers(pid))

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def found(self) -> list[str]:
        """What it has done beyond listening on this machine's own addresses; Python's compiled modules do not count."""
        log = self.folder / "watch.log"
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        seen = [line for line in lines if not _is_of_this_machine(line)]
        left = [f"left {path}" for place in self.folders for path in place.rglob("*")]
        return sorted({*seen, *left, *(f"connected {peer}" for peer in self._sockets)})


def _is_of_this_machine(line: str) -> bool:
    kind, _, rest = line.partition(" ")
    match kind:
        case "write":
            is_device = rest.startswith("/dev/") and not rest.startswith("/dev/shm")  # noqa: S108 - not ours to use
            return is_device or "/__pycache__" in rest
        case "lookup":
            return rest == "-" or _is_loopback(rest)
        case _:
            return kind == "bind" and _is_loopback(rest.partition(" ")[0])


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def peers(pid: int) -> Iterator[str]:
    """The other ends of a process's internet sockets that are not on this machine."""
    own = set()
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                own.add(str(entry.readlink()))
    for table in ("tcp", "tcp6", "udp", "udp6"):
        with contextlib.suppress(OSError):
            yield from others(Path(f"/proc/{pid}/net/{table}").read_text(), own)


def others(table: str, own: Container[str]) -> Iterator[str]:
    """The same of a table of the kernel's, for the sockets that are the process's `own`."""
    for line in table.splitlines()[1:]:
        cells = line.split()
        host = _address(cells[2].partition(":")[0])
        if f"socket:[{cells[9]}]" in own and not (host.is_loopback or host.is_unspecified):
            yield str(host)


def _address(text: str) -> IPv4Address | IPv6Address:
    """The kernel prints words of 32 bits in the machine's own order."""
    data = b"".join(int(text[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(text), 8))
    host = ip_address(data)
    return host.ipv4_mapped or host if isinstance(host, IPv6Address) else host


@contextlib.contextmanager
def watched(watch: Watch, command: Sequence[str | Path], cwd: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The command, in a process of its own that is watched; killed at the end if it has not ended by then."""
    environment: Mapping[str, str] = {**os.environ, **watch.environment}
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=cwd, env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        with watch.looking(process.pid):
            yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
