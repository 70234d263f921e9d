"""A model whose files are not what its entry asks for: what the dialects, the log and the operator's page say of it."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import grpc
import yaml
from serving import DEMO, command, one_process, running

from tensorgate.adapters.protobuf.messages import message
from tensorgate.gateway.models.file_digest import files_digest

MODEL = DEMO.parent / "demo/models/half_plus_two/1"


def test_what_is_said_of_it(tmp_path: Path) -> None:
    for name in ("good", "bad"):
        shutil.copytree(MODEL, tmp_path / name / "1")
    proof = {"sha256": files_digest(MODEL).sha256}
    (tmp_path / "bad/1/model.onnx").write_bytes(b"something else")
    models = {name: {"backend": "onnx", "path": name, "verify": proof} for name in ("good", "bad")}
    bind = {"bind": "127.0.0.1:0"}
    listen = {"http": [bind], "grpc": [dict(bind)], "metrics": dict(bind)}
    control = {"mode": "explicit", "load": ["*"], "require_verification": True}
    file = tmp_path / "gateway.yaml"
    text = {"listen": listen, "models": models, "model_control": control, "readiness": "lenient"}
    file.write_text(yaml.safe_dump(text))
    reason = f"not verified: the SHA-256 of 1 is {files_digest(tmp_path / 'bad/1').sha256}, and verify.sha256 says "
    with running(file) as gateway:
        (status,) = gateway.get("/v1/models/bad").json["model_version_status"]
        assert (status["state"], status["status"]["error_code"]) == ("END", "FAILED_PRECONDITION")
        assert status["status"]["error_message"].startswith(reason)
        index = {each["name"]: each for each in gateway.post("/v2/repository/index", {}).json}
        assert (index["bad"]["state"], index["good"]["state"]) == ("UNAVAILABLE", "READY")
        assert index["bad"]["reason"].startswith(reason)
        assert str(tmp_path) not in index["bad"]["reason"]
        refused = gateway.post("/v2/repository/models/bad/load", {})
        assert refused.status == 400
        assert reason in refused.json["error"]
        for call in ("/v2/models/bad/infer", "/v1/models/bad:predict", "/v1/embeddings"):
            assert gateway.post(call, {"model": "bad", "input": "a", "inputs": [], "instances": [1]}).status >= 400
        with grpc.insecure_channel(f"127.0.0.1:{gateway.grpc_port}") as channel:
            ask = channel.unary_unary(
                "/tensorflow.serving.ModelService/GetModelStatus",
                request_serializer=lambda request: request.SerializeToString(),
                response_deserializer=message("tensorflow.serving.GetModelStatusResponse").FromString,
            )
            (told,) = ask(
                message("tensorflow.serving.GetModelStatusRequest")(model_spec={"name": "bad"})
            ).model_version_status
            assert told.status.error_message.startswith(reason)
        page = {each["name"]: each for each in gateway.get("/models.json").json}
        assert page["bad"]["versions"][0]["reason"].startswith(reason)
        assert page["good"]["verified"]["sha256"] == proof["sha256"]
        told_of = command("models", "good", "--url", gateway.url).stdout
        assert f"\n  verified by its digest, sha256 {proof['sha256']}\n" in told_of
        assert f"FAILED bad version 1: not verified: the SHA-256 of {tmp_path}/bad/1" in gateway.said
        assert f"verified by its digest, sha256 {proof['sha256']}" in gateway.said
        assert gateway.stop() == 0


MODEL_OF_ITS_OWN = """
import os
import numpy as np

class Model:
    def infer(self, inputs, request):
        return {"pid": np.array([os.getpid()])}
"""


@one_process(reason="it looks for the process of one model")
def test_a_process_that_starts_again_takes_no_other_files(tmp_path: Path) -> None:
    source = tmp_path / "model.py"
    source.write_text(MODEL_OF_ITS_OWN)
    tensors: dict[str, Any] = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1]}]}
    tensors["outputs"] = [{"name": "pid", "datatype": "INT64", "shape": [1]}]
    proof = {"sha256": files_digest(source).sha256}
    model = {"backend": "python", "path": "model.py:Model", "process": "own", **tensors, "verify": proof}
    file = tmp_path / "gateway.yaml"
    file.write_text(yaml.safe_dump({"listen": {"http": [{"bind": "127.0.0.1:0"}], "grpc": []}, "models": {"m": model}}))
    with running(file) as gateway:
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}
        (pid,) = gateway.post("/v2/models/m/infer", body).json["outputs"][0]["data"]
        source.write_text(MODEL_OF_ITS_OWN.replace("import os", f"import os\nopen('{tmp_path}/ran', 'w')"))
        os.kill(pid, signal.SIGKILL)
        gateway.wait_until_said("not verified: the SHA-256 of")
        assert not (tmp_path / "ran").exists()
        assert gateway.stop() == 0


def test_what_is_loaded_on_demand_proves_its_origin_each_time(tmp_path: Path) -> None:
    for name in ("good", "bad"):
        shutil.copytree(MODEL, tmp_path / "models" / name / "1")
        (tmp_path / "models" / name / "model.yaml").write_text("backend: onnx\nmax_batch_size: 8\n")
    file = tmp_path / "gateway.yaml"
    control = {"require_verification": True, "verify": {"sha256": files_digest(MODEL).sha256}}
    sections = {"repositories": ["models"], "residency": {"on_demand": True}, "model_control": control}
    file.write_text(yaml.safe_dump({"listen": {"http": [{"bind": "127.0.0.1:0"}], "grpc": []}, **sections}))
    (tmp_path / "models/bad/1/more.py").write_text("")
    with running(file) as gateway:
        good, bad = (gateway.post(f"/v1/models/{name}:predict", {"instances": [1.0]}) for name in ("good", "bad"))
        assert (good.status, good.json["predictions"]) == (200, [2.5])
        assert bad.status >= 400
        gateway.wait_until_said("model bad was asked for, and failed to load: not verified: the SHA-256 of")
        assert gateway.stop() == 0
