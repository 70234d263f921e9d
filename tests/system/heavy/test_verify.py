"""Models signed with OpenSSF's model-signing itself, which the gateway checks in .venv-verify."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from client_scripts import environment
from serving import ROOT, running

pytestmark = pytest.mark.heavy

PYTHON = ROOT / ".venv-verify/bin/python"
SCRIPT = Path(__file__).parent / "model_signatures.py"
MODEL = ROOT / "config/demo/models/half_plus_two/1"

REFUSED = {
    "a byte": "model.sig: weights.py differs",
    "a file added": "model.sig: numpy.py came",
    "a file removed": "model.sig: weights.py is missing",
    "a file renamed": "model.sig: numpy.py came; weights.py is missing",
    "a link that leads out": "weights.py is a link that leads out of the folder",
    "another key": "Key mismatch",
    "no signature": "no-signature/model.sig cannot be read: No such file or directory; model_signing sign makes it",
    "of another model": "model.sig: weights.py differs",
    "a file that the signer left out": "was made to ignore weights.py: sign it, too, or remove it",
    "forged": "not verified by the key ours.pub: signature forged/model.sig: InvalidSignature",
    "garbage": "not verified by the key ours.pub: signature garbage/model.sig: no signature of this kind",
    "no key": "ca.crt: Valid PEM but no BEGIN PUBLIC KEY",
    "one file, changed": "model.py differs",
    "another authority": "not verified by certificates of ca.crt",
    "certified, changed": "model.sig: weights.py differs",
    "a key in place of a certificate": "not verified by certificates of ca.crt",
    "no trust root": "ours.pub: 1 validation error for ClientTrustConfig Invalid JSON",
}


def script(folder: Path, *arguments: str) -> str:
    if not PYTHON.exists():
        pytest.fail("model-signing is not installed: say `make test-system`", pytrace=False)
    done = subprocess.run(
        [PYTHON, SCRIPT, *arguments], cwd=folder, env=environment(), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_signatures(tmp_path: Path) -> None:
    found = json.loads(script(tmp_path))
    wrong = {name: text for name, text in found.items() if REFUSED.get(name, "") not in text}
    assert not wrong
    assert {name for name, text in found.items() if text} == REFUSED.keys()


def test_a_gateway_serves_what_is_signed(tmp_path: Path) -> None:
    for version in "12":
        shutil.copytree(MODEL, tmp_path / "models/m" / version)
        script(tmp_path, "sign", "key", f"models/m/{version}")
        shutil.copy(tmp_path / "key.pub", tmp_path / f"key{version}.pub")
    file = tmp_path / "gateway.yaml"
    listen = {"http": [{"bind": "127.0.0.1:0"}], "grpc": []}
    model = {"backend": "onnx", "path": "models/m"}
    control = {"require_verification": True, "verify": {"public_key": "key2.pub"}}
    text = {"listen": listen, "models": {"m": model}, "model_control": control, "readiness": "lenient"}
    file.write_text(yaml.safe_dump(text))
    with running(file, python=PYTHON) as gateway:
        config = gateway.get("/v2/models/m/config").json
        assert config["parameters"]["verified_by"] == {"string_value": "the key key2.pub"}
        assert gateway.stop() == 0
    file.write_text(yaml.safe_dump(text | {"models": {"m": model | {"versions": "all"}}}))
    with running(file, python=PYTHON) as gateway:
        versions = {each["version"]: each for each in gateway.get("/v1/models/m").json["model_version_status"]}
        assert versions["2"]["state"] == "AVAILABLE"
        assert versions["1"]["state"] == "END"
        error = versions["1"]["status"]["error_message"]
        assert error.startswith("not verified by the key key2.pub: signature model.sig: Key mismatch")
        assert gateway.stop() == 0
