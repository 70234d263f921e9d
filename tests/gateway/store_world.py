"""A web server of files with every fault that one can have, at will; and what is fetched from it."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tensorgate.gateway.config import StoresConfig
from tensorgate.gateway.stores.stores import Stores

HOST = "127.0.0.1"


@dataclass
class Fault:
    """What goes wrong with one request: it is answered with a `status`, redirected to a URL, cut after so many bytes,
    runs `before` first, or is answered `whole` though a range was asked for; `headers` go with a status.
    """

    status: int = 0
    redirect: str = ""
    cut: int | None = None
    before: Callable[[], object] = lambda: None
    whole: bool = False
    headers: dict[str, str] = field(default_factory=dict)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FileServer

    def do_GET(self) -> None:
        self._serve(body=True)

    def do_HEAD(self) -> None:
        self._serve(body=False)

    def _serve(self, body: bool) -> None:
        server, path = self.server, self.path.lstrip("/")
        server.asked.append((self.command, path, dict(self.headers)))
        faults = server.faults.get((self.command, path), [])
        fault = faults.pop(0) if faults else Fault()
        fault.before()
        if fault.redirect:
            return self._answer(302, b"", body, Location=fault.redirect)
        if fault.status or path not in server.files:
            return self._answer(fault.status or 404, b"no", body, **fault.headers)
        content = server.files[path]
        head = {"ETag": f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'} if server.tags else {}
        wanted, condition = self.headers.get("Range"), self.headers.get("If-Range")
        if wanted is None or fault.whole or condition not in (None, head.get("ETag")):
            return self._answer(200, content, body, fault.cut, **head)
        start = int(wanted.removeprefix("bytes=").rstrip("-"))
        part = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"}
        return self._answer(206, content[start:], body, fault.cut, **head, **part)

    def _answer(self, status: int, content: bytes, body: bool, cut: int | None = None, **headers: str) -> None:
        self.send_response(status)
        for name, text in headers.items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content if cut is None else content[:cut])
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


class FileServer(ThreadingHTTPServer):
    """Serves `files` by their paths; `faults` of (method, path) are used up one by one; `asked` has all requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__((HOST, 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.faults: dict[tuple[str, str], list[Fault]] = {}
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self.tags = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is killed, or has had enough."""

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_port}"

    def put(self, folder: str, files: Mapping[str, bytes]) -> None:
        """Files of a folder, and the SHA256SUMS of all that it has."""
        self.files |= {f"{folder}/{path}": content for path, content in files.items()}
        below = {path: content for path, content in self.files.items() if path.startswith(f"{folder}/")}
        below.pop(f"{folder}/SHA256SUMS", None)
        lines = [
            f"{hashlib.sha256(content).hexdigest()}  {path[len(folder) + 1 :]}\n" for path, content in below.items()
        ]
        self.files[f"{folder}/SHA256SUMS"] = "".join(lines).encode()

    def gets(self, path: str) -> list[dict[str, str]]:
        """The headers of each GET of a path."""
        return [headers for method, asked, headers in self.asked if (method, asked) == ("GET", path)]


@contextmanager
def serving_files() -> Iterator[FileServer]:
    """A running server."""
    with FileServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@dataclass
class World:
    """A cache, a clock that moves when somebody sleeps, and what was said."""

    folder: Path
    said: list[str] = field(default_factory=list)
    slept: list[float] = field(default_factory=list)
    now: float = 0.0

    def stores(self, **options: Any) -> Stores:
        config = StoresConfig.model_validate({"cache": {"folder": str(self.folder)}, **options})
        return Stores(config, self.said.append, self._sleep, lambda: self.now)

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
