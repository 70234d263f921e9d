"""Whole gateways that share their ports, as many as are asked for: what one gets without doors, a yardstick for them.

    python -m benchmarks.gateways NUMBER serve CONFIGURATION

Each has all of a gateway, its own models, queues and counters included. The kernel divides connections among them:
every socket is bound with SO_REUSEPORT, which the gateway itself never does for a server of one process.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from typing import Any

from tensorgate.gateway.cli import main as command

ONE = "one"
bind = socket.socket.bind


def bind_shared(self: socket.socket, address: Any) -> None:
    """Instead of socket.bind."""
    if self.family in (socket.AF_INET, socket.AF_INET6):
        self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    bind(self, address)


def start(number: int, arguments: list[str]) -> int:
    """Until all have ended; SIGTERM ends them."""
    again = [sys.executable, "-m", "benchmarks.gateways", ONE, *arguments]
    children = [subprocess.Popen(again) for _ in range(number)]  # noqa: S603 - our own command

    def stop(*_: Any) -> None:
        for child in children:
            child.terminate()

    signal.signal(signal.SIGTERM, stop)
    return max(abs(child.wait()) for child in children)


def main() -> int:
    how_many, *arguments = sys.argv[1:]
    if how_many != ONE:
        return start(int(how_many), arguments)
    socket.socket.bind = bind_shared  # type: ignore[method-assign, assignment]
    return command.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
