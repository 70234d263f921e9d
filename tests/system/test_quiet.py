"""A server makes no connection, and writes no file, that its YAML does not name; nor does any library in it.

ONNX Runtime 1.31 and later carries a collector's client, switched on; it is C++, so that Python's audit hooks see
nothing of it.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import grpc
import pytest
from serving import HOST, ROOT, Gateway, demo_config
from watching import COMPILER, Watch, others, peers, watched

ADD = [{"name": name, "datatype": "INT32", "shape": [1, 16], "data": [1] * 16} for name in ("INPUT0", "INPUT1")]
TEXT = [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a"]}]


def test_the_demo_is_quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One request of each dialect and transport, of ONNX models and Python's, and the end of the process."""
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)  # which this process has set, for itself
    file, log = tmp_path / "demo.yaml", tmp_path / "demo.log"
    file.write_text(demo_config(every={"device": "cpu"}))
    watch = Watch(tmp_path)
    with watched(watch, [sys.executable, "-m", "tensorgate", "serve", file], ROOT, log) as process:
        gateway = Gateway(process, log)
        gateway.wait_until_ready()
        assert gateway.post("/v2/models/add_sub/infer", {"inputs": ADD}).status == 200
        assert gateway.post("/v2/models/upper/infer", {"inputs": TEXT}).status == 200
        assert gateway.post("/v1/models/half_plus_two:predict", {"instances": [1.0]}).json == {"predictions": [2.5]}
        path = "/grps/v1/infer/predict?model=half_plus_two-1&return-ndarray=true"
        assert gateway.post(path, {"ndarray": [1.0]}).status == 200
        assert gateway.metrics().names()
        with grpc.insecure_channel(f"{HOST}:{gateway.grpc_port}") as channel:
            assert channel.unary_unary("/inference.GRPCInferenceService/ServerReady")(b"") == b"\x08\x01"
            status = channel.unary_unary("/tensorflow.serving.ModelService/GetModelStatus")
            assert status(b"\x0a\x0f\x0a\x0dhalf_plus_two")
        assert gateway.stop() == 0
    assert watch.found() == []


LOUD = """
import os, socket, sqlite3, sys, tempfile
home = os.environ["HOME"]
open(home + "/opened", "w").close()
os.close(os.open("made", os.O_CREAT | os.O_RDWR, dir_fd=os.open(home, os.O_RDONLY)))
os.mkdir(home + "/folder")
sqlite3.connect(home + "/base").execute("create table t (x)")
os.rename(home + "/opened", home + "/renamed")
with tempfile.NamedTemporaryFile():
    pass
try:
    socket.getaddrinfo("collector.invalid", 443)
except OSError:
    pass
try:
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(("192.0.2.1", 53))
except OSError:
    pass
"""


def test_what_is_not_quiet_is_seen(tmp_path: Path) -> None:
    """Whether a compiler is there or not, though with one more is: what is gone again, and names."""
    watch = Watch(tmp_path)
    log = tmp_path / "log"
    with watched(watch, [sys.executable, "-c", LOUD], ROOT, log) as loud:
        assert loud.wait(30) == 0, log.read_text()
    found = watch.found()
    home = tmp_path / "home"
    assert {f"left {home}/{name}" for name in ("renamed", "made", "folder", "base")} <= set(found)
    if COMPILER:
        assert {f"write {home}/{name}" for name in ("opened", "made", "folder", "base", "renamed")} <= set(found)
        assert any(line.startswith(f"write {watch.folders[1]}/") for line in found)
        assert {"lookup collector.invalid", "connect 192.0.2.1 53"} <= set(found)


def test_other_ends_are_told_from_the_kernel_s_tables() -> None:
    """What is looked at where there is no compiler. The rows are of a machine whose low bytes come first."""
    row = "   1: 0100007F:1F90 {}:0035 01 00000000:00000000 00:00000000 00000000     0        0 {} 1 x 100 0 0 10 0"
    ends = {
        "00000000": None,
        "0100007F": None,
        "08080808": "8.8.8.8",
        "00000000000000000000000001000000": None,
        "0000000000000000FFFF00000100007F": None,
        "0000000000000000FFFF000008080808": "8.8.8.8",
        "60480120000000000000000088880000": "2001:4860::8888",
    }
    table = "head\n" + "".join(f"{row.format(end, number)}\n" for number, end in enumerate(ends))
    found = [*others(table, {f"socket:[{number}]" for number in range(len(ends))})]
    if sys.byteorder == "little":
        assert found == [end for end in ends.values() if end]
    assert [*others(table, set())] == []
    with socket.create_server((HOST, 0)) as server, socket.create_connection(server.getsockname()):
        assert [*peers(os.getpid())] == []
