"""A gateway in front of another server, whose models are asked in its own dialect: nothing changes for callers."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import yaml
from relays import address, front, infer, listening
from serving import Answer, Gateway, demo_config, running
from waiting import wait_until

from tensorgate.adapters.protobuf.messages import message

MODELS = {
    "open_inference": ("digits", "add_sub", "upper", "countdown", "writer", "running_sum"),
    "tf_serving": ("digits", "half_plus_two", "half_plus_three", "add_sub"),
}
NOT_COMPARED = {"date", "server", "connection", "keep-alive", "transfer-encoding", "content-length", "vary"}


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    file = tmp_path_factory.mktemp("upstream") / "up.yaml"
    file.write_text(demo_config({}))
    with running(file) as gateway:
        yield gateway


@pytest.fixture(scope="module", params=[*MODELS])
def pair(request: Any, upstream: Gateway, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """(dialect, the gateway in front)"""
    dialect = request.param
    server = {
        "dialect": dialect,
        "address": address(upstream, "grpc"),
        "other_address": address(upstream, "http"),
    }
    models = {name: {"backend": "remote", "upstream": server} for name in MODELS[dialect]}
    file = tmp_path_factory.mktemp("front") / "front.yaml"
    file.write_text(front(models))
    with running(file) as gateway:
        yield dialect, gateway
        assert gateway.stop() == 0
        assert "Traceback" not in gateway.said_itself, gateway.said


IMAGE = [[float(n % 17) for n in range(8)]] * 8
ADD_SUB = {
    "id": "a b",
    "inputs": [
        {"name": name, "datatype": "INT32", "shape": [1, 16], "data": list(range(16))} for name in ("INPUT0", "INPUT1")
    ],
    "outputs": [{"name": "OUTPUT1", "parameters": {"binary_data": True}}],
}
X_OF_4 = {"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 8, 8], "data": IMAGE}]}
BEST = {**X_OF_4, "outputs": [{"name": "scores", "parameters": {"classification": 3}}]}
FEATURES = {"examples": [{"x": 1.0}, {"x": 5.0}]}
OVER_HTTP: dict[str, list[tuple[str, str, Any]]] = {
    "open_inference": [
        ("POST", "/v2/models/add_sub/infer", ADD_SUB),
        ("POST", "/v2/models/add_sub/versions/1/infer", ADD_SUB),
        ("POST", "/v2/models/add_sub/versions/9/infer", ADD_SUB),
        ("POST", "/v2/models/digits/versions/1/infer", X_OF_4),
        ("POST", "/v2/models/digits/versions/2/infer", BEST),
        ("POST", "/v2/models/digits/infer", {"inputs": []}),
        ("POST", "/v2/models/digits/infer", b'{"inputs": [{"na'),
        ("GET", "/v2/models/digits", None),
        ("GET", "/v2/models/digits/versions/1", None),
        ("GET", "/v2/models/digits/versions/3", None),
        ("GET", "/v2/models/digits/versions/2/ready", None),
        ("GET", "/v2/models/digits/versions/3/ready", None),
        ("GET", "/v2/models/digits/config", None),
        ("GET", "/v2/models/add_sub/versions/1/config", None),
        ("POST", "/v2/models/writer/generate", {"text_input": "Once", "max_tokens": 5, "seed": 3}),
        (
            "POST",
            "/v2/models/writer/generate_stream",
            {"text_input": "Once", "max_tokens": 5, "stream": True, "seed": 3},
        ),
        ("POST", "/v2/models/writer/generate_stream", {"text": "Once"}),
        ("POST", "/v2/models/countdown/infer", {"inputs": []}),
        ("DELETE", "/v2/models/digits", None),
    ],
    "tf_serving": [
        ("POST", "/v1/models/half_plus_two:predict", {"instances": [1.0, 2.0]}),
        ("POST", "/v1/models/half_plus_three/versions/123:predict", {"instances": [1.0, 2.0]}),
        ("POST", "/v1/models/half_plus_three/versions/124:predict", {"instances": [1.0, 2.0]}),
        ("POST", "/v1/models/digits/labels/canary:predict", {"instances": [IMAGE]}),
        ("POST", "/v1/models/digits/labels/nothing:predict", {"instances": [IMAGE]}),
        ("POST", "/v1/models/half_plus_three:regress", {"signature_name": "tensorflow/serving/regress", **FEATURES}),
        ("POST", "/v1/models/half_plus_three:classify", {"signature_name": "classify_x_to_y", **FEATURES}),
        ("POST", "/v1/models/half_plus_three:classify", {"signature_name": "what", **FEATURES}),
        ("POST", "/v1/models/half_plus_two:predict", b"[1, 2"),
        ("GET", "/v1/models/half_plus_three", None),
        ("GET", "/v1/models/digits/versions/1", None),
        ("GET", "/v1/models/digits/labels/stable", None),
        ("GET", "/v1/models/half_plus_three/metadata", None),
        ("GET", "/v1/models/half_plus_three/versions/7/metadata", None),
    ],
}


@pytest.fixture
def dialect(pair: Any) -> str:
    return str(pair[0])


@pytest.fixture
def relay(pair: Any) -> Gateway:
    found: Gateway = pair[1]
    return found


def seen(answer: Answer) -> Any:
    headers = {name.lower(): value for name, value in answer.headers.items()}
    return answer.status, answer.body, {name: headers[name] for name in sorted(headers.keys() - NOT_COMPARED)}


def test_over_http_every_answer_is_the_servers_own(dialect: str, relay: Gateway, upstream: Gateway) -> None:
    for method, path, body in OVER_HTTP[dialect]:
        there, here = (each.request(method, path, body) for each in (upstream, relay))
        assert seen(here) == seen(there), (method, path)


def test_compressed_and_binary_bodies_go_through_unread(dialect: str, relay: Gateway, upstream: Gateway) -> None:
    if dialect == "open_inference":
        document = json.dumps(
            {
                "inputs": [
                    {
                        "name": name,
                        "datatype": "INT32",
                        "shape": [1, 16],
                        "parameters": {"binary_data_size": 64},
                    }
                    for name in ("INPUT0", "INPUT1")
                ]
            }
        ).encode()
        body = document + np.arange(32, dtype=np.int32).tobytes()
        headers = {"Inference-Header-Content-Length": str(len(document)), "Accept-Encoding": "gzip"}
        path = "/v2/models/add_sub/infer"
    else:
        body = json.dumps({"instances": [n / 4 for n in range(5000)]}).encode()
        headers, path = {"Accept-Encoding": "gzip"}, "/v1/models/half_plus_two:predict"
    there, here = (each.request("POST", path, body, headers) for each in (upstream, relay))
    assert there.status == 200
    assert seen(here) == seen(there)


def ask(gateway: Gateway, method: str, body: bytes) -> Any:
    with grpc.insecure_channel(address(gateway, "grpc")) as channel:
        try:
            return channel.unary_unary(method)(body, timeout=20)
        except grpc.RpcError as error:
            return error.code(), error.details()


def over_grpc(dialect: str) -> list[tuple[str, Any]]:
    """(method, message)"""
    return list(_v2_calls() if dialect == "open_inference" else _tfs_calls())


def _v2_calls() -> Iterator[tuple[str, Any]]:
    tensors = [{"name": name, "datatype": "INT32", "shape": [1, 16]} for name in ("INPUT0", "INPUT1")]
    whole = {"inputs": tensors, "raw_input_contents": [np.arange(16, dtype=np.int32).tobytes()] * 2}
    for method, fields in (
        ("ModelInfer", {"model_name": "add_sub", **whole}),
        ("ModelInfer", {"model_name": "add_sub", "model_version": "4", **whole}),
        ("ModelInfer", {"model_name": "add_sub", "id": "7"}),
        ("ModelMetadata", {"name": "digits", "version": "1"}),
        ("ModelMetadata", {"name": "digits", "version": "8"}),
        ("ModelReady", {"name": "digits", "version": "2"}),
        ("ModelReady", {"name": "digits", "version": "5"}),
        ("ModelConfig", {"name": "digits"}),
    ):
        fields_of: Any = fields
        yield f"/inference.GRPCInferenceService/{method}", message(f"inference.{method}Request")(**fields_of)


def _tfs_calls() -> Iterator[tuple[str, Any]]:
    example = message("tensorflow.Example")()
    example.features.feature["x"].float_list.value.append(4.0)
    inputs = {"example_list": {"examples": [example]}}
    regress = {"name": "half_plus_three", "signature_name": "tensorflow/serving/regress"}
    classify = {"name": "half_plus_three", "signature_name": "classify_x_to_y"}
    x, image = {"x": _floats(2)}, {"image": _floats(1, 8, 8)}
    tasks = [
        {"model_spec": classify, "method_name": "tensorflow/serving/classify"},
        {"model_spec": regress, "method_name": "tensorflow/serving/regress"},
    ]
    metadata = {"model_spec": {"name": "digits"}, "metadata_field": ["signature_def"]}
    for method, kind, fields in (
        ("Predict", "Predict", {"model_spec": {"name": "half_plus_three", "version": {"value": 123}}, "inputs": x}),
        ("Predict", "Predict", {"model_spec": {"name": "digits", "version_label": "canary"}, "inputs": image}),
        ("Predict", "Predict", {"model_spec": {"name": "digits", "version_label": "none"}, "inputs": image}),
        ("Regress", "Regression", {"model_spec": regress, "input": inputs}),
        ("Classify", "Classification", {"model_spec": classify, "input": inputs}),
        ("Classify", "Classification", {"model_spec": regress, "input": inputs}),
        ("MultiInference", "MultiInference", {"tasks": tasks, "input": inputs}),
        ("GetModelMetadata", "GetModelMetadata", metadata),
    ):
        fields_of: Any = fields
        request = message(f"tensorflow.serving.{kind}Request")(**fields_of)
        yield f"/tensorflow.serving.PredictionService/{method}", request
    status = message("tensorflow.serving.GetModelStatusRequest")(model_spec={"name": "half_plus_three"})
    yield "/tensorflow.serving.ModelService/GetModelStatus", status


def _floats(*shape: int) -> Any:
    count = int(np.prod(shape))
    tensor_shape = {"dim": [{"size": size} for size in shape]}
    return message("tensorflow.TensorProto")(dtype=1, float_val=[1.5] * count, tensor_shape=tensor_shape)


def test_over_grpc_every_answer_is_the_servers_own(dialect: str, relay: Gateway, upstream: Gateway) -> None:
    for method, request in over_grpc(dialect):
        there, here = (ask(each, method, request.SerializeToString()) for each in (upstream, relay))
        assert here == there, (method, request)


def stream(gateway: Gateway, requests: list[bytes]) -> list[bytes]:
    """All answers, in the order of their requests: those of several may alternate."""
    with grpc.insecure_channel(address(gateway, "grpc")) as channel:
        call: Any = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        answers = list(call(iter(requests), timeout=20))
    read = message("inference.ModelStreamInferResponse").FromString
    return sorted(answers, key=lambda answer: read(answer).infer_response.id)


def test_streams_of_messages_go_through(dialect: str, relay: Gateway, upstream: Gateway) -> None:
    if dialect != "open_inference":
        return

    def one(name: str, value: int) -> bytes:
        tensor = {"name": name, "datatype": "INT32", "shape": [1]}
        request = message("inference.ModelInferRequest")(
            model_name="countdown", id=str(value), inputs=[tensor], raw_input_contents=[np.int32(value).tobytes()]
        )
        return bytes(request.SerializeToString())

    requests = [one("start", 3), one("what", 2), one("start", 1)]
    there, here = (stream(each, requests) for each in (upstream, relay))
    assert here == there
    assert len(here) > len(requests)


def test_the_front_counts_calls_by_model(dialect: str, relay: Gateway) -> None:
    model = "half_plus_two" if dialect == "tf_serving" else "digits"
    before = relay.metrics().total("tensorgate_requests_total", model=model)
    asked = [each for each in OVER_HTTP[dialect] if f"/{model}" in each[1] and isinstance(each[2], dict)]
    for method, path, body in asked:
        relay.request(method, path, body)
    assert relay.metrics().total("tensorgate_requests_total", model=model) == before + len(asked)


def whole(upstream: Gateway, folder: Path, **changes: Any) -> Path:
    """A gateway whose only models are those of a server."""
    server = {"address": address(upstream, "grpc"), "other_address": address(upstream, "http"), "refresh_seconds": 0.5}
    file = folder / "front.yaml"
    file.write_text(yaml.safe_dump({"listen": listening(), "upstreams": {"old": server | changes}}))
    return file


def test_all_models_of_a_server_that_lists_them(upstream: Gateway, tmp_path: Path) -> None:
    with running(whole(upstream, tmp_path, dialect="open_inference")) as gateway:
        assert gateway.get("/v2/models").json == {"models": sorted(upstream.get("/v2/models").json["models"])}
        for path in ("/v2/models/digits", "/v2/models/digits/versions/2/ready", "/v2/models/nothing"):
            assert seen(gateway.get(path)) == seen(upstream.get(path))
        body = {"instances": [1.0, 5.0]}  # another dialect: it is translated
        there, here = (each.post("/v1/models/half_plus_two:predict", body) for each in (upstream, gateway))
        assert (here.status, here.body) == (200, there.body)


def test_all_models_of_a_server_that_does_not_list_them(upstream: Gateway, tmp_path: Path) -> None:
    """They are found when somebody asks for them, in any dialect; what is nowhere is refused as ever."""
    with running(whole(upstream, tmp_path, dialect="tf_serving")) as gateway:
        assert gateway.get("/v2/models").json == {"models": []}
        for method, path, body in OVER_HTTP["tf_serving"]:
            there, here = (each.request(method, path, body) for each in (upstream, gateway))
            assert seen(here) == seen(there), (method, path)
        answer = infer(gateway, "half_plus_two", x=[3.0])
        assert answer.json["outputs"][0]["data"] == [3.5]
        assert infer(gateway, "add_sub").status == 400  # it is there, and says what it lacks
        for name in ("nothing", "a b", "x" * 300, "%00"):
            answer = gateway.post(f"/v1/models/{name.replace(' ', '%20')}:predict", {"instances": [1]})
            assert answer.status in (400, 404), answer.body
            assert gateway.get(f"/v2/models/{name.replace(' ', '%20')}").status in (400, 404)
        assert set(gateway.get("/v2/models").json["models"]) == {
            "half_plus_two",
            "half_plus_three",
            "digits",
            "add_sub",
        }


def test_a_grps_server_is_whole_though_nobody_says_its_tensors(tmp_path: Path) -> None:
    """Callers of grps reach it by both transports, also who names no model; others are told why they cannot."""
    code = "class Reply:\n    def infer(self, inputs, request):\n        return {'y': inputs['x']}\n"
    (tmp_path / "reply.py").write_text(code)
    tensors = [{"name": "x", "datatype": "BYTES", "shape": [1]}]
    reply: dict[str, Any] = {"backend": "python", "path": "reply.py:Reply"}
    reply["grps"] = {"version": "1.0.0", "reply": {"str_data": "y"}}
    reply |= {"inputs": tensors, "outputs": [{**tensors[0], "name": "y"}]}
    grps = {"initially_online": True, "default_model": "say-1.0.0"}
    (tmp_path / "up.yaml").write_text(yaml.safe_dump({"listen": listening(), "models": {"say": reply}, "grps": grps}))
    with running(tmp_path / "up.yaml") as there:
        server = {"dialect": "grps", "address": address(there, "grpc"), "other_address": address(there, "http")}
        told = {"listen": listening(), "upstreams": {"old": {**server, "models": ["say-1.0.0"]}}}
        (tmp_path / "front.yaml").write_text(yaml.safe_dump({**told, "grps": {"initially_online": True}}))
        with running(tmp_path / "front.yaml") as here:
            for body in (
                {"model": "say-1.0.0", "str_data": "hello"},
                {"str_data": "hello"},
                {"model": "no", "str_data": ""},
            ):
                path = "/grps/v1/infer/predict"
                asked = [each.post(path, body) for each in (there, here)]
                assert (asked[0].status, asked[0].body) == (asked[1].status, asked[1].body)
                if "no" not in body.values():
                    assert (asked[1].status, asked[1].json["str_data"]) == (200, "hello")
            for name in ("say", "no"):  # metadata are asked by the name without a version
                asked = [each.post("/grps/v1/metadata/model", {"str_data": name}) for each in (there, here)]
                assert (asked[0].status, asked[0].body) == (asked[1].status, asked[1].body)
            ask, answer = message("grps.protos.v1.GrpsMessage"), message("grps.protos.v1.GrpsMessage")
            with grpc.insecure_channel(address(here, "grpc")) as channel:
                predict = channel.unary_unary("/grps.protos.v1.GrpsService/Predict")
                said = predict(ask(model="say-1.0.0", str_data="hello").SerializeToString())
                assert answer.FromString(said).str_data == "hello"
            refused = infer(here, "say-1.0.0", x=[1.0])
            assert (refused.status, "callers of grps alone" in refused.json["error"]) == (501, True)
            assert here.get("/readyz").status == 200


class Talkative(grpc.GenericRpcHandler):
    """A server of gRPC in front of another, which says more of each answer than that does."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel
        self.heard: list[Any] = []

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        self.heard += details.invocation_metadata

        def answer(body: bytes, context: grpc.ServicerContext) -> bytes:
            context.send_initial_metadata([("x-served-by", "rack 7"), ("x-key-bin", b"\0\xff")])
            context.set_trailing_metadata([("x-cost", "3"), ("x-request-id", "theirs")])
            call = self._channel.unary_unary(details.method).future(body)
            if call.code() is not grpc.StatusCode.OK:
                context.abort(call.code(), call.details())
            answered: bytes = call.result()
            return answered

        return grpc.unary_unary_rpc_method_handler(answer)


@pytest.mark.parametrize("doors", [1, 2])
def test_metadata_of_the_server_reaches_the_caller(upstream: Gateway, tmp_path: Path, doors: int) -> None:
    between = grpc.server(ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
    with ExitStack() as stack:
        talkative = Talkative(stack.enter_context(grpc.insecure_channel(address(upstream, "grpc"))))
        between.add_generic_rpc_handlers((talkative,))
        port = between.add_insecure_port("127.0.0.1:0")
        between.start()
        stack.callback(lambda: between.stop(0).wait())
        server = {"dialect": "open_inference", "transport": "grpc", "address": f"127.0.0.1:{port}"}
        (tmp_path / "front.yaml").write_text(front({"add_sub": {"backend": "remote", "upstream": server}}))
        options, python = (("--doors", "2"), Path(sys.executable)) if doors > 1 else ((), None)
        gateway = stack.enter_context(running(tmp_path / "front.yaml", *options, python=python))
        infer_method = stack.enter_context(grpc.insecure_channel(address(gateway, "grpc"))).unary_unary(
            "/inference.GRPCInferenceService/ModelInfer"
        )
        own = [("x-request-id", "mine"), ("x-who-bin", b"\xff\0,"), ("x-empty-bin", b"")]
        for inputs, code in (2, grpc.StatusCode.OK), (1, grpc.StatusCode.INVALID_ARGUMENT):
            request = message("inference.ModelInferRequest")(model_name="add_sub")
            for number in range(inputs):
                tensor = request.inputs.add(name=f"INPUT{number}", datatype="INT32", shape=[1, 16])
                tensor.contents.int_contents.extend(range(16))
            call = infer_method.future(request.SerializeToString(), metadata=own)
            assert call.code() is code
            initial, trailing = dict(call.initial_metadata()), dict(call.trailing_metadata())
            assert (initial["x-served-by"], initial["x-key-bin"]) == ("rack 7", b"\0\xff")
            assert (trailing["x-cost"], trailing["x-request-id"]) == ("3", "mine")
        heard = [*map(tuple, talkative.heard)]
        assert {each: heard.count(each) for each in own} == dict.fromkeys(own, 2)


def test_all_versions_of_a_server_for_callers_of_other_dialects(upstream: Gateway, tmp_path: Path) -> None:
    """TensorFlow Serving's versions for those of V2 and grps, by a server that does not list its models."""
    with running(whole(upstream, tmp_path, dialect="tf_serving")) as gateway:
        x = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [2.0]}]}
        assert gateway.post("/v2/models/half_plus_three/infer", x).status == 200
        metadata = gateway.get("/v2/models/half_plus_three").json
        assert metadata["versions"] == ["123"]
        assert gateway.post("/v2/models/half_plus_three/versions/123/infer", x).json["model_version"] == "123"
        assert gateway.post("/v2/models/half_plus_three/versions/1/infer", x).status != 200
        image = {"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 8, 8], "data": IMAGE}]}
        assert gateway.post("/v2/models/digits/infer", image).json["model_version"] == "2"
        assert gateway.get("/v2/models/digits").json["versions"] == ["1", "2"]
        there, here = (each.post("/v2/models/digits/versions/1/infer", image) for each in (upstream, gateway))
        assert here.json["outputs"] == there.json["outputs"]
        asked = {"gtensors": {"tensors": [{"name": "x", "dtype": "DT_FLOAT32", "shape": [1], "flat_float32": [2.0]}]}}
        named = gateway.post("/grps/v1/infer/predict?model=half_plus_three-123", asked)
        assert (named.status, named.json["status"]["code"]) == (200, 200)


def test_versions_of_a_server_that_lists_them(upstream: Gateway, tmp_path: Path) -> None:
    """V2's versions for callers of TensorFlow Serving."""
    with running(whole(upstream, tmp_path, dialect="open_inference")) as gateway:
        for version in (1, 2):
            there, here = (
                each.post(f"/v1/models/digits/versions/{version}:predict", {"instances": [IMAGE]})
                for each in (upstream, gateway)
            )
            assert (here.status, here.body) == (200, there.body)
        assert gateway.post("/v1/models/digits/versions/3:predict", {"instances": [IMAGE]}).status == 404
        states = gateway.get("/v1/models/digits").json["model_version_status"]
        assert [(each["version"], each["state"]) for each in states] == [("2", "AVAILABLE"), ("1", "AVAILABLE")]


def test_versions_come_and_go_with_the_server(upstream: Gateway, tmp_path: Path) -> None:
    config = demo_config({})
    (tmp_path / "up.yaml").write_text(config)
    with running(tmp_path / "up.yaml") as changing, ExitStack() as stack:
        gateway = stack.enter_context(running(whole(changing, tmp_path, dialect="open_inference")))
        path = "/v1/models/digits/versions/1:predict"
        assert gateway.post(path, {"instances": [IMAGE]}).status == 200
        told = yaml.safe_load(config)
        told["models"]["digits"]["versions"] = [2]
        told["models"]["digits"]["labels"] = {}
        (tmp_path / "up.yaml").write_text(yaml.safe_dump(told))
        changing.process.send_signal(signal.SIGHUP)
        wait_until(lambda: gateway.post(path, {"instances": [IMAGE]}).status == 404)
        assert gateway.post("/v1/models/digits:predict", {"instances": [IMAGE]}).status == 200


def test_versions_and_labels_that_the_configuration_names(upstream: Gateway, tmp_path: Path) -> None:
    server = {"dialect": "open_inference", "address": address(upstream, "grpc"), "versions": [1, 2]}
    file = tmp_path / "front.yaml"
    file.write_text(front({"digits": {"backend": "remote", "upstream": server, "labels": {"old": 1}}}))
    with running(file) as gateway:
        body = {"instances": [IMAGE]}
        there = upstream.post("/v1/models/digits/versions/1:predict", body)
        here = gateway.post("/v1/models/digits/labels/old:predict", body)
        assert (here.status, here.body) == (200, there.body)
        assert gateway.post("/v1/models/digits/labels/new:predict", body).status == 400
        assert gateway.get("/v2/models/digits/versions/2/ready").status == 200


def test_named_models_of_a_server_and_no_others(upstream: Gateway, tmp_path: Path) -> None:
    file = whole(upstream, tmp_path, dialect="tf_serving", models=["half_plus_two"])
    with running(file) as gateway:
        body = {"instances": [1.0]}
        assert gateway.post("/v1/models/half_plus_two:predict", body).json == {"predictions": [2.5]}
        assert gateway.post("/v1/models/half_plus_three:predict", body).status == 404


def test_models_come_and_go_with_the_server(tmp_path: Path) -> None:
    (tmp_path / "up.yaml").write_text(demo_config({}, model_control={"mode": "explicit", "load": ["add_sub"]}))
    with ExitStack() as stack:
        upstream = stack.enter_context(running(tmp_path / "up.yaml"))
        gateway = stack.enter_context(running(whole(upstream, tmp_path, dialect="open_inference")))
        assert gateway.get("/v2/models").json == {"models": ["add_sub"]}
        assert upstream.post("/v2/repository/models/digits/load", {}).status == 200
        wait_until(lambda: "digits" in gateway.get("/v2/models").json["models"])
        wait_until(lambda: gateway.get("/v2/models/digits/ready").status == 200)
        assert upstream.post("/v2/repository/models/add_sub/unload", {}).status == 200
        wait_until(lambda: gateway.get("/v2/models").json == {"models": ["digits"]})
        upstream.process.send_signal(signal.SIGKILL)
        wait_until(lambda: gateway.get("/v2/models/digits").status == 503)
        gone = {"error": "the upstream server cannot be reached"}  # at first a connection may still break
        wait_until(lambda: gateway.get("/v2/models/digits").json == gone)


@pytest.mark.parametrize(("transport", "doors"), [("http", 1), ("grpc", 2)])
def test_load_and_unload_are_passed_on_to_a_server_that_is_said_to_take_them(
    tmp_path: Path, transport: str, doors: int
) -> None:
    (tmp_path / "up.yaml").write_text(demo_config({}, model_control={"mode": "explicit", "load": ["add_sub"]}))
    with ExitStack() as stack:
        upstream = stack.enter_context(running(tmp_path / "up.yaml"))
        where = {"address": address(upstream, transport), "transport": transport, "other_address": []}
        file = whole(upstream, tmp_path, dialect="open_inference", control=True, **where)
        options, python = (("--doors", "2"), Path(sys.executable)) if doors > 1 else ((), None)
        gateway = stack.enter_context(running(file, *options, python=python))

        def control(name: str, what: str, body: Any = None) -> Answer:
            return gateway.post(f"/v2/repository/models/{name}/{what}", {} if body is None else body)

        def index(body: Any) -> list[Any]:
            found: list[Any] = gateway.post("/v2/repository/index", body).json
            return found

        assert {"name": "digits"} in index({})
        assert index({"ready": True}) == [{"name": "add_sub", "version": "1", "state": "READY"}]
        assert seen(gateway.get("/v2/models/digits/ready")) == seen(upstream.get("/v2/models/digits/ready"))
        for _ in range(2):  # what has been unloaded comes back
            assert control("digits", "load").status == 200
            assert gateway.get("/v2/models/digits/ready").status == 200
            assert gateway.post("/v2/models/digits/infer", X_OF_4).status == 200
            assert control("digits", "unload").status == 200
            assert gateway.post("/v2/models/digits/infer", X_OF_4).status in (400, 404)
            assert upstream.get("/v2/models/digits/ready").status != 200
        told = upstream.post("/v2/repository/models/nothing/load", {})
        here = control("nothing", "load")
        assert (here.status, here.json) == (told.status, told.json)
        wrong = {"parameters": {"config": '{"name": "digits", "backend": "what"}'}}
        told, here = upstream.post("/v2/repository/models/digits/load", wrong), control("digits", "load", wrong)
        assert told.status >= 400
        assert (here.status, here.json) == (told.status, told.json)
        upstream.process.send_signal(signal.SIGKILL)
        upstream.process.wait(10)
        assert control("digits", "load").status == 503
