"""Real MLServer and KServe servers, asked by `tensorgate conform`: directly, and behind a gateway."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import yaml
from peer_servers import GRPS, GRPS_SOURCES, KSERVE, MLSERVER, grps, kserve, mlserver
from serving import HOST, command, running

from tensorgate.adapters.grps.conformance import KNOWN

pytestmark = pytest.mark.heavy

Serve = Callable[[Path], AbstractContextManager[tuple[int, int]]]


def outcomes(folder: Path, name: str, http: str, grpc: str, dialect: str = "v2") -> dict[tuple[str, str], str]:
    """Transport and case -> passed, differs or not offered."""
    file = folder / f"{name}.json"
    asked = command("conform", "--dialect", dialect, "--http", http, "--grpc", grpc, "--json", file)
    assert asked.returncode in (0, 1), asked.stdout + asked.stderr
    cases = json.loads(file.read_text())["cases"]
    return {(each["transport"], each["name"]): each["outcome"] for each in cases}


def check_translated(folder: Path, transport: str, address: str) -> None:
    """Callers of TensorFlow Serving are answered by its models, whatever it takes and gives over this transport."""
    sums = {"INPUT0": [[1, 2, 3, 4]], "INPUT1": [[1, 1, 1, 1]]}
    table = [
        ("conform_identity_fp32", {"instances": [1.5, 2.0]}, {"predictions": [1.5, 2.0]}),
        ("conform_identity_bytes", {"instances": ["a", "é"]}, {"predictions": ["a", "é"]}),
        ("conform_add_sub", {"inputs": sums}, {"outputs": {"OUTPUT0": [[2, 3, 4, 5]], "OUTPUT1": [[0, 1, 2, 3]]}}),
    ]
    server = {"dialect": "open_inference", "transport": transport, "address": address}
    told = {
        "listen": {"http": [{"bind": f"{HOST}:0"}]},
        "upstreams": {"old": {**server, "models": [row[0] for row in table]}},
    }
    (folder / "translating.yaml").write_text(yaml.safe_dump(told))
    with running(folder / "translating.yaml") as gateway:
        for name, asked, expected in table:
            answer = gateway.post(f"/v1/models/{name}:predict", asked)
            assert (answer.status, answer.json) == (200, expected), (transport, name)


@pytest.mark.parametrize(("program", "serve", "least"), [(MLSERVER, mlserver, 110), (KSERVE, kserve, 110)])
def test_what_a_server_keeps_it_keeps_behind_a_gateway(program: Path, serve: Serve, least: int, tmp_path: Path) -> None:
    if not program.exists():
        pytest.fail(f"{program} is not installed: say `make test-system`", pytrace=False)
    with serve(tmp_path / "server") as (http, grpc):
        direct = outcomes(tmp_path, "direct", f"http://{HOST}:{http}", f"{HOST}:{grpc}")
        server = {"dialect": "open_inference", "address": f"{HOST}:{grpc}", "other_address": f"{HOST}:{http}"}
        listen = {"http": [{"bind": f"{HOST}:0"}], "grpc": [{"bind": f"{HOST}:0"}]}
        told = {"listen": listen, "upstreams": {"old": {**server, "models": "all"}}}
        (tmp_path / "front.yaml").write_text(yaml.safe_dump(told))
        for transport, port in (("http", http), ("grpc", grpc)):
            check_translated(tmp_path, transport, f"{HOST}:{port}")
        with running(tmp_path / "front.yaml") as gateway:
            behind = outcomes(tmp_path, "behind", gateway.url, f"{HOST}:{gateway.grpc_port}")
    passed = [sum(outcome == "passed" for outcome in each.values()) for each in (direct, behind)]
    print(f"directly {passed[0]} of {len(direct)} cases pass, behind the gateway {passed[1]}")  # noqa: T201 - a figure
    assert passed[0] >= least
    worse = {name: behind.get(name) for name, outcome in direct.items() if outcome == "passed" != behind.get(name)}
    assert worse == {}


def test_a_real_grps_server_keeps_all_directly_and_behind_a_gateway(tmp_path: Path) -> None:
    if GRPS_SOURCES not in os.environ:
        pytest.skip(f"{GRPS_SOURCES} names no checkout of https://github.com/NetEase-Media/grps")
    if not GRPS.exists():
        pytest.fail(f"{GRPS} is not installed: say `make test-system`", pytrace=False)
    with grps(tmp_path / "server") as (http, rpc):
        direct = outcomes(tmp_path, "direct", f"http://{HOST}:{http}", f"{HOST}:{rpc}", "grps")
        server = {"dialect": "grps", "address": f"{HOST}:{rpc}", "other_address": f"{HOST}:{http}"}
        listen = {"http": [{"bind": f"{HOST}:0"}], "grpc": [{"bind": f"{HOST}:0"}]}
        told = {"listen": listen, "upstreams": {"old": {**server, "models": [f"{name}-1" for name in KNOWN]}}}
        (tmp_path / "front.yaml").write_text(yaml.safe_dump(told | {"grps": {"initially_online": True}}))
        with running(tmp_path / "front.yaml") as gateway:
            behind = outcomes(tmp_path, "behind", gateway.url, f"{HOST}:{gateway.grpc_port}", "grps")
    assert len(direct) > 170
    assert {*direct.values()} == {"passed"}
    assert behind == direct
