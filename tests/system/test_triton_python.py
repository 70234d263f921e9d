"""Triton's Python models in a running gateway: asked over HTTP, in three dialects, failing, counted, stopped."""

import http.client
import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml
from serving import Gateway, Series, running
from waiting import wait_until

FILES = {
    "add_sub/1/model.py": """
        import json
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def initialize(self, args):
                config = json.loads(args["model_config"])
                output = pb_utils.get_output_config_by_name(config, "OUTPUT0")
                self.dtype = pb_utils.triton_string_to_numpy(output["data_type"])
                family = pb_utils.MetricFamily("add_sub_calls", "Calls of execute.", pb_utils.MetricFamily.COUNTER)
                self.calls = family.Metric(labels={"version": args["model_version"]})

            def execute(self, requests):
                self.calls.increment(1)
                responses = []
                for request in requests:
                    a = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
                    b = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
                    if a.flat[0] == 500:
                        raise ValueError("a is odd")
                    if a.flat[0] < 0:
                        error = pb_utils.TritonError("negative", int(-a.flat[0]))
                        responses.append(pb_utils.InferenceResponse(error=error))
                        continue
                    out_0 = pb_utils.Tensor("OUTPUT0", (a + b).astype(self.dtype))
                    out_1 = pb_utils.Tensor("OUTPUT1", (a - b).astype(self.dtype))
                    responses.append(pb_utils.InferenceResponse(output_tensors=[out_0, out_1]))
                return responses
        """,
    "shout/1/model.py": """
        import numpy as np
        import triton_python_backend_utils as pb_utils
        from words import loud

        class TritonPythonModel:
            @staticmethod
            def auto_complete_config(config):
                config.add_input({"name": "text", "data_type": "TYPE_STRING", "dims": [-1]})
                config.add_output({"name": "shout", "data_type": "TYPE_STRING", "dims": [-1]})
                return config

            async def execute(self, requests):
                responses = []
                for request in requests:
                    text = pb_utils.get_input_tensor_by_name(request, "text").as_numpy()
                    number = np.array([float(len(text))], np.float32)
                    asked = pb_utils.InferenceRequest(
                        model_name="add_sub", requested_output_names=["OUTPUT0"],
                        inputs=[pb_utils.Tensor("INPUT0", number[None]), pb_utils.Tensor("INPUT1", number[None])])
                    answer = await asked.async_exec()
                    twice = int(pb_utils.get_output_tensor_by_name(answer, "OUTPUT0").as_numpy()[0, 0])
                    words = [loud(word) for word in text] + [str(twice)]
                    responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("shout", np.array(words, object))]))
                return responses
        """,
    "shout/1/words.py": """
        def loud(word):
            return word.decode().upper()
        """,
    "square/1/model.py": """
        import threading
        import time
        import numpy as np
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def initialize(self, args):
                self.cancelled = 0

            def execute(self, requests):
                for request in requests:
                    number = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
                    threading.Thread(target=self.answer, args=(request.get_response_sender(), number)).start()

            def answer(self, sender, number):
                pb_utils.Logger.log_info("starts")
                if number[0] < 0:
                    while not sender.is_cancelled():
                        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", number)]))
                        time.sleep(0.01)
                    return
                for _ in range(number[0]):
                    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", number)]))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        """,
}


def tensor(name: str, shape: list[int], datatype: str = "FP32") -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape}


MODELS = {
    "add_sub": {
        "backend": "triton_python",
        "path": "add_sub",
        "max_batch_size": 8,
        "instances": 2,
        "inputs": [tensor("INPUT0", [-1, 1]), tensor("INPUT1", [-1, 1])],
        "outputs": [tensor("OUTPUT0", [-1, 1]), tensor("OUTPUT1", [-1, 1])],
    },
    "shout": {"backend": "triton_python", "path": "shout"},
    "square": {
        "backend": "triton_python",
        "path": "square",
        "decoupled": True,
        "inputs": [tensor("IN", [1], "INT32")],
        "outputs": [tensor("OUT", [1], "INT32")],
    },
}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("repository")
    for name, text in FILES.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text))
    file = folder / "gateway.yaml"
    listen = {"http": [{"bind": "127.0.0.1:0"}], "metrics": {"bind": "127.0.0.1:0"}}
    grps = {"initially_online": True}
    file.write_text(yaml.safe_dump({"listen": listen, "models": MODELS, "drain_seconds": 3, "grps": grps}))
    with running(file) as made:
        yield made
        assert made.stop() == 0, made.said


def add_sub(a: float, b: float = 1.0) -> dict[str, Any]:
    pair = (("INPUT0", a), ("INPUT1", b))
    return {"inputs": [tensor(name, [1, 1]) | {"data": [value]} for name, value in pair]}


def test_add_sub_in_two_dialects(gateway: Gateway) -> None:
    answer = gateway.post("/v2/models/add_sub/infer", add_sub(5))
    assert answer.status == 200
    assert [(o["name"], o["datatype"], o["shape"], o["data"]) for o in answer.json["outputs"]] == [
        ("OUTPUT0", "FP32", [1, 1], [6.0]),
        ("OUTPUT1", "FP32", [1, 1], [4.0]),
    ]
    rows = gateway.post("/v1/models/add_sub:predict", {"instances": [{"INPUT0": [2], "INPUT1": [3]}] * 2}).json
    assert rows == {"predictions": [{"OUTPUT0": [5.0], "OUTPUT1": [-1.0]}] * 2}


def test_everyone_gets_their_own_answer(gateway: Gateway) -> None:
    def ask(number: int) -> Any:
        return gateway.post("/v2/models/add_sub/infer", add_sub(number, 1000.0)).json["outputs"][0]["data"]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(100))) == [[1000.0 + number] for number in range(100)]


def test_errors_have_the_status_that_the_model_says(gateway: Gateway) -> None:
    statuses = {code: gateway.post("/v2/models/add_sub/infer", add_sub(-code)) for code in range(1, 8)}
    assert {code: answer.status for code, answer in statuses.items()} == {
        1: 500,
        2: 404,
        3: 400,
        4: 503,
        5: 501,
        6: 400,
        7: 400,
    }
    assert {answer.body for answer in statuses.values()} == {b'{"error":"negative"}'}
    failed = gateway.post("/v2/models/add_sub/infer", add_sub(500))
    assert failed.status == 500
    text = r"Failed to process the request\(s\) for model 'add_sub_[01]', message: ValueError: a is odd"
    assert re.fullmatch(text, failed.json["error"])


def test_a_model_that_completes_itself_has_a_helper_and_asks_another(gateway: Gateway) -> None:
    metadata = gateway.get("/v2/models/shout").json
    assert (metadata["platform"], metadata["inputs"]) == (
        "python",
        [{"name": "text", "datatype": "BYTES", "shape": [-1]}],
    )
    body = {"inputs": [tensor("text", [2], "BYTES") | {"data": ["straße", "b"]}]}
    answer = gateway.post("/v2/models/shout/infer", body).json
    assert answer["outputs"][0]["data"] == ["STRASSE", "B", "4"]


def square(number: int) -> dict[str, Any]:
    return {"gtensors": {"tensors": [{"name": "IN", "dtype": "DT_INT32", "shape": [1], "flat_int32": [number]}]}}


def test_a_decoupled_model_streams(gateway: Gateway) -> None:
    refused = gateway.post("/v2/models/square/infer", {"inputs": [tensor("IN", [1], "INT32") | {"data": [1]}]})
    assert refused.status == 501
    answer = gateway.post("/grps/v1/infer/predict?streaming=true&model=square-1", square(3))
    assert answer.body.count(b'"flat_int32"') == 3


def test_a_client_that_leaves_ends_its_stream(gateway: Gateway) -> None:
    for _ in range(5):
        read_a_little(gateway, "/grps/v1/infer/predict?streaming=true&model=square-1", square(-1))
    wait_until(lambda: not gateway.metrics().total("tensorgate_running_requests", model="square"))


def read_a_little(gateway: Gateway, path: str, body: Any) -> None:
    """And hang up."""
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=5)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    assert connection.getresponse().read(10)
    connection.close()


def test_metrics_of_the_model_stand_beside_ours(gateway: Gateway) -> None:
    gateway.post("/v2/models/add_sub/infer", add_sub(5))
    series: Series = gateway.metrics()
    assert series.total("add_sub_calls", version="1") >= 1
    assert series.total("tensorgate_batch_rows_count", model="add_sub") >= 1


def test_a_stream_that_never_ends_does_not_keep_the_gateway_from_ending(tmp_path: Path) -> None:
    text = FILES["square/1/model.py"].replace("while not sender.is_cancelled()", "while True")
    file = tmp_path / "square/1/model.py"
    file.parent.mkdir(parents=True)
    file.write_text(dedent(text))
    listen = {"http": [{"bind": "127.0.0.1:0"}]}
    yaml_file = tmp_path / "gateway.yaml"
    config = {"listen": listen, "models": {"square": MODELS["square"]}, "drain_seconds": 1}
    yaml_file.write_text(yaml.safe_dump(config | {"grps": {"initially_online": True}}))
    with running(yaml_file) as gateway, ThreadPoolExecutor(1) as pool:
        path = "/grps/v1/infer/predict?streaming=true&model=square-1"
        asking = pool.submit(lambda: gateway.request("POST", path, json.dumps(square(-1)).encode()))
        wait_until(lambda: gateway.metrics().total("tensorgate_running_requests", model="square"))
        assert gateway.stop() == 0, gateway.said
        asking.exception(50)
