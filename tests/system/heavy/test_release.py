"""What a release consists of is made, fits together, and what it locks has no advisory against it."""

import hashlib
import json
import re
import subprocess
from pathlib import Path

import pytest
from serving import ROOT

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]
TOOLS = ROOT / ".venv-dist/bin"
LOCKS = sorted((ROOT / "deploy/locks").glob("*.txt"))


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("release") / "dist"
    command = [TOOLS / "python", "deploy/release/dist.py", target]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr
    return target


def test_its_files(dist: Path) -> None:
    names = sorted(re.sub(r"\d+(?:\.\d+)+", "V", file.name) for file in dist.iterdir())
    kinds = ["SHA256SUMS", "tensorgate-V-cp311-abi3-manylinux_2_34_x86_64.whl", "tensorgate-V-cpu.cdx.json"]
    assert names == [*kinds, "tensorgate-V.tar.gz"]
    for line in (dist / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split("  ")
        assert hashlib.sha256((dist / name).read_bytes()).hexdigest() == digest
    assert len((dist / "SHA256SUMS").read_text().splitlines()) == 3


def test_its_bill_of_materials_is_what_is_locked(dist: Path) -> None:
    (file,) = dist.glob("*.cdx.json")
    told = json.loads(file.read_text())
    assert told["metadata"]["component"]["name"] == "tensorgate"
    locked = set(re.findall(r"^([\w.-]+)==([\w.]+)", (ROOT / "deploy/locks/cpu.txt").read_text(), re.MULTILINE))
    named = {(each["name"].lower().replace("_", "-"), each["version"]) for each in told["components"]}
    assert {(name, version) for name, version in named if name != "tensorgate"} == locked
    assert str(ROOT) not in file.read_text()


@pytest.mark.parametrize("lock", LOCKS, ids=[lock.stem for lock in LOCKS])
def test_no_advisory_is_out_against_what_is_locked(lock: Path) -> None:
    words = [TOOLS / "pip-audit", "--disable-pip", "--no-deps", "--requirement", lock, "--format", "json"]
    for service in ("pypi", "osv"):
        asked = subprocess.run([*words, "--vulnerability-service", service], capture_output=True, text=True)
        answered = asked.stdout.startswith("{") and json.loads(asked.stdout)["dependencies"]
        if answered and not any("skip_reason" in each for each in answered):
            assert [each for each in answered if each["vulns"]] == []
            return
    pytest.skip(f"no service of advisories can be reached from here: {asked.stderr.splitlines()[-1][:200]}")
