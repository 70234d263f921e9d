"""The command line of tensorflow_model_server, served by the gateway: imported into YAML, then `tensorgate serve`.

The process that is started becomes the gateway, so who kills it kills that. With a period for polling the models' file
a second one looks at it, imports it again when it has changed, and sends SIGHUP; it ends after the gateway.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

POLL = "--model_config_file_poll_wait_seconds="
SOCKET = "--grpc_socket_path="
FILE = "--model_config_file="


def imported(yaml: Path, words: list[str]) -> bool:
    """Whether the old server would have started; what is refused stands in the YAML as a comment."""
    command = [sys.executable, "-m", "tensorgate", "import", "tf-serving", "-o", yaml, "--", *words]
    return subprocess.run(command, check=False).returncode < 2


def value(words: list[str], flag: str) -> str:
    return next((word.removeprefix(flag) for word in words if word.startswith(flag)), "")


def watch(gateway: int, yaml: Path, words: list[str]) -> None:
    file = Path(value(words, FILE))
    seen = file.read_bytes()
    while os.getppid() == gateway:
        time.sleep(float(value(words, POLL)))  # real time: the period that the old server was told
        now = file.read_bytes()
        if now != seen and imported(yaml, words):
            os.kill(gateway, signal.SIGHUP)
        seen = now


def main(words: list[str]) -> None:
    yaml = Path(tempfile.mkdtemp()) / "gateway.yaml"
    if not imported(yaml, words):
        sys.exit(1)
    if socket := value(
        words, SOCKET
    ):  # the original takes it over from a server that listens there; the gateway refuses
        Path(socket).unlink(missing_ok=True)
    gateway = os.getpid()
    if float(value(words, POLL) or 0) > 0 and os.fork() == 0:
        watch(gateway, yaml, words)
        os._exit(0)
    os.execv(sys.executable, [sys.executable, "-m", "tensorgate", "serve", str(yaml)])  # noqa: S606


if __name__ == "__main__":
    main(sys.argv[1:])
