"""Genuine stores, each started empty on a port of its own, and a hub that answers as Hugging Face's does.

They are in .venv-stores (moto, gcp-storage-emulator, MLflow) and in .tools-stores (Azurite, Debian's docker-registry).
"""

from __future__ import annotations

import hashlib
import http.client
import json
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from client_scripts import environment
from heavy_tools import free_ports, wait_until_ready
from serving import HOST, ROOT

from tensorgate.gateway.contract.tensor import NOTHING

PROGRAMS = ROOT / ".venv-stores/bin"
TOOLS = ROOT / ".tools-stores"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's own, the same everywhere."""


def program(path: Path) -> str:
    """The test fails where a program is missing."""
    if not path.exists():
        pytest.fail(f"{path.name} is not there: say `make test-system`", pytrace=False)
    return str(path)


@contextmanager
def started(command: list[str], port: int, log: Path, path: str, **variables: str) -> Iterator[str]:
    """A server, once it answers at a path -> its address."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=log.parent, env=environment() | variables, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        wait_until_ready(process, port, log, path)
        yield f"http://{HOST}:{port}"
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def s3(folder: Path) -> Iterator[str]:
    """moto's S3."""
    (port,) = free_ports(1)
    command = [program(PROGRAMS / "moto_server"), "-H", HOST, "-p", str(port)]
    with started(command, port, folder / "moto.log", "/moto-api/") as address:
        yield address


@contextmanager
def gcs(folder: Path) -> Iterator[str]:
    """gcp-storage-emulator, behind a translator: it speaks Google's JSON API alone, and its downloads have no ETag.
    Google's own store answers the XML API, too, by which obstore lists.
    """
    (port,) = free_ports(1)
    command = [program(PROGRAMS / "gcp-storage-emulator"), "start", "--in-memory", "--host", HOST, "--port", str(port)]
    with (
        started([*command, "--default-bucket", "models"], port, folder / "gcs.log", "/storage/v1/b/models") as address,
        _Translator(address) as server,
    ):
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://{HOST}:{server.server_port}"
        server.shutdown()
        thread.join()


class _XmlHandler(BaseHTTPRequestHandler):
    """Google's XML API: GET /BUCKET?list-type=2 and GET, HEAD /BUCKET/OBJECT."""

    protocol_version = "HTTP/1.1"
    server: _Translator

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        bucket, _, name = url.path.lstrip("/").partition("/")
        known = {each["name"]: each for each in self.server.ask(f"/storage/v1/b/{bucket}/o").get("items", [])}
        if not name:
            prefix = parse_qs(url.query).get("prefix", [""])[0]
            self._answer(200, _xml([each for path, each in known.items() if path.startswith(prefix)]))
        elif unquote(name) not in known:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        else:
            head = _head(known[unquote(name)])
            range_ = self.headers.get("Range")
            status, content, more = self.server.download(url.path, range_)
            self._answer(status, content, **head, **more)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_PUT(self) -> None:
        bucket, _, name = urlsplit(self.path).path.lstrip("/").partition("/")
        content = self.rfile.read(int(self.headers["Content-Length"]))
        path = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}"
        self._answer(200, b"", **_head(json.loads(self.server.send("POST", path, content)[1])))

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, text in headers.items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def _head(known: Mapping[str, Any]) -> dict[str, str]:
    changed = datetime.fromisoformat(known["updated"])
    return {"ETag": f'"{known["etag"]}"', "Last-Modified": format_datetime(changed, usegmt=True)}


def _xml(found: list[Mapping[str, Any]]) -> bytes:
    entries = "".join(
        f"<Contents><Key>{each['name']}</Key><Size>{each['size']}</Size><ETag>&quot;{each['etag']}&quot;</ETag>"
        f"<LastModified>{each['updated']}</LastModified></Contents>"
        for each in found
    )
    return f"<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>".encode()


class _Translator(ThreadingHTTPServer):
    """Asks the emulator."""

    daemon_threads = True

    def __init__(self, emulator: str) -> None:
        super().__init__((HOST, 0), _XmlHandler)
        self._host = emulator.removeprefix("http://")

    def ask(self, path: str) -> Any:
        return json.loads(self.send("GET", path)[1])

    def download(self, path: str, range_: str | None) -> tuple[int, bytes, dict[str, str]]:
        status, content, headers = self.send("GET", path, headers={"Range": range_} if range_ else {})
        return status, content, {key: text for key, text in headers.items() if key == "Content-Range"}

    def send(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] = NOTHING
    ) -> tuple[int, bytes, dict[str, str]]:
        with closing(http.client.HTTPConnection(self._host)) as connection:
            connection.request(method, path, body, dict(headers))
            answer = connection.getresponse()
            return answer.status, answer.read(), dict(answer.headers)


@contextmanager
def azure(folder: Path) -> Iterator[str]:
    """Azurite's blobs. The address ends with its account."""
    (port,) = free_ports(1)
    script = program(TOOLS / "node_modules/azurite/dist/src/blob/main.js")
    command = ["node", script, "--blobHost", HOST, "--blobPort", str(port), "--location", str(folder / "azurite")]
    command += ["--skipApiVersionCheck", "--loose"]
    account = f"http://{HOST}:{port}/devstoreaccount1"
    log = folder / "azurite.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment(), stdout=output, stderr=subprocess.STDOUT)
    try:
        while process.poll() is None and b"successfully listens" not in log.read_bytes():
            threading.Event().wait(0.1)  # real time: another's server
        assert process.poll() is None, log.read_text()
        yield account
    finally:
        process.terminate()
        process.wait(20)


@contextmanager
def registry(folder: Path) -> Iterator[str]:
    """Debian's docker-registry -> its host and port."""
    (port,) = free_ports(1)
    config = folder / "registry.yml"
    config.write_text(
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {folder}/registry}}}}\n"
        f"http: {{addr: '{HOST}:{port}'}}\nlog: {{level: warn}}\n"
    )
    command = [program(TOOLS / "usr/bin/docker-registry"), "serve", str(config)]
    with started(command, port, folder / "registry.log", "/v2/") as address:
        yield address.removeprefix("http://")


def push(host: str, name: str, tag: str, files: Mapping[str, bytes]) -> str:
    """Push files as `oras push` does -> the manifest's digest. Source: OCI distribution specification 1.1, push."""

    def ask(method: str, url: str, body: bytes = b"", kind: str = "application/octet-stream") -> Any:
        with closing(http.client.HTTPConnection(host)) as connection:
            connection.request(method, url, body, {"Content-Type": kind})
            answer = connection.getresponse()
            said = answer.read()
        assert answer.status < 300, said
        return answer.headers

    def blob(content: bytes) -> dict[str, Any]:
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        place = urlsplit(ask("POST", f"/v2/{name}/blobs/uploads/")["Location"])
        ask("PUT", f"{place.path}?{place.query}&digest={digest}", content)
        return {"mediaType": "application/octet-stream", "digest": digest, "size": len(content)}

    kind = "application/vnd.oci.image.manifest.v1+json"
    title = "org.opencontainers.image.title"
    layers = [{**blob(content), "annotations": {title: path}} for path, content in files.items()]
    config = blob(b"{}") | {"mediaType": "application/vnd.oci.empty.v1+json"}
    manifest = {"schemaVersion": 2, "mediaType": kind, "config": config, "layers": layers}
    return str(ask("PUT", f"/v2/{name}/manifests/{tag}", json.dumps(manifest).encode(), kind)["Docker-Content-Digest"])


@contextmanager
def mlflow(folder: Path) -> Iterator[str]:
    """MLflow's tracking server, with artifacts of its own."""
    (port,) = free_ports(1)
    command = [program(PROGRAMS / "mlflow"), "server", "--host", HOST, "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", str(folder / "art")]
    path = f"{PROGRAMS}:/usr/bin:/bin"
    with started(command, port, folder / "mlflow.log", "/health", PATH=path) as address:
        yield address


class _Hub(BaseHTTPRequestHandler):
    """The addresses of huggingface.co that a model is read by. Large files are redirected to another host, as there."""

    protocol_version = "HTTP/1.1"
    server: Hub

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        parts = unquote(url.path).strip("/").split("/")
        self.server.asked.append((self.path, self.headers.get("Authorization")))
        if parts[:1] == ["cdn"]:
            return self._file(self.server.files["/".join(parts[1:])])
        if self.headers.get("Authorization") != f"Bearer {self.server.token}":
            return self._answer(401, b"{}")
        if parts[:2] == ["api", "models"] and parts[4:5] == ["revision"]:
            return self._answer(200, json.dumps({"sha": COMMIT}).encode())
        if parts[:2] == ["api", "models"] and parts[4:6] == ["tree", COMMIT]:
            return self._tree(int(parse_qs(url.query).get("cursor", ["0"])[0]))
        if parts[2:4] == ["resolve", COMMIT] and (path := "/".join(parts[4:])) in self.server.files:
            if path in self.server.large:
                there = f"http://localhost:{self.server.server_port}/cdn/{path}"
                return self._answer(302, b"", Location=there)
            return self._file(self.server.files[path])
        return self._answer(404, b"{}")

    def _tree(self, cursor: int) -> None:
        """One entry a page, to be paged through."""
        entries: list[dict[str, Any]] = []
        for path, content in self.server.files.items():
            git = hashlib.sha1(b"blob %d\0%b" % (len(content), content), usedforsecurity=False).hexdigest()
            entry: dict[str, Any] = {"type": "file", "path": path, "size": len(content), "oid": git}
            if path in self.server.large:
                entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content)}
            entries.append(entry)
        entries.append({"type": "directory", "path": "onnx", "oid": "0" * 40, "size": 0})
        here = f"http://{self.headers['Host']}{self.path.partition('&cursor')[0]}&cursor={cursor + 1}"
        more = {"Link": f'<{here}>; rel="next"'} if cursor + 1 < len(entries) else {}
        self._answer(200, json.dumps(entries[cursor : cursor + 1]).encode(), **more)

    def _file(self, content: bytes) -> None:
        wanted = self.headers.get("Range")
        if wanted is None:
            return self._answer(200, content)
        start = int(wanted.removeprefix("bytes=").rstrip("-"))
        part = f"bytes {start}-{len(content) - 1}/{len(content)}"
        return self._answer(206, content[start:], **{"Content-Range": part})

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, text in headers.items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Hub(ThreadingHTTPServer):
    """A hub with one repository; `asked` has each request's target and its Authorization."""

    daemon_threads = True

    def __init__(self, files: Mapping[str, bytes], large: set[str], token: str) -> None:
        super().__init__((HOST, 0), _Hub)
        self.files, self.large, self.token = dict(files), large, token
        self.asked: list[tuple[str, str | None]] = []


@contextmanager
def hub(files: Mapping[str, bytes], large: set[str], token: str) -> Iterator[Hub]:
    """A running hub."""
    with Hub(files, large, token) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()
