"""What users of tritonclient.grpc do, done by tritonclient.grpc itself: one answer to one request."""

from __future__ import annotations

import queue
import threading
from functools import partial
from typing import Any

import checks
import grpc
import ml_dtypes
import numpy as np
import tritonclient.grpc as triton
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

Array = np.ndarray[Any, Any]

INPUT0 = np.arange(16, dtype=np.int32).reshape(1, 16)
INPUT1 = np.full((1, 16), 3, np.int32)
VALUES: dict[str, list[Any]] = {
    "BOOL": [True, False, True],
    "UINT8": [0, 1, 2**8 - 1],
    "UINT16": [0, 1, 2**16 - 1],
    "UINT32": [0, 1, 2**32 - 1],
    "UINT64": [0, 2**53 + 1, 2**64 - 1],
    "INT8": [-(2**7), 0, 2**7 - 1],
    "INT16": [-(2**15), 0, 2**15 - 1],
    "INT32": [-(2**31), 0, 2**31 - 1],
    "INT64": [-(2**63), 2**53 + 1, 2**63 - 1],
    "FP16": [0.1, -65504.0, np.inf],
    "BF16": [0.1, -3.0, np.nan],
    "FP32": [0.1, -3.4028235e38, 1e-45, np.nan, np.inf, -np.inf, -0.0],
    "FP64": [0.1, 1e300, 5e-324, np.nan, np.inf, -np.inf, -0.0],
    "BYTES": [b"", "naïve".encode(), b"a\0b"],
}
DTYPES: dict[str, Any] = {
    "BOOL": np.bool_,
    "FP16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BYTES": np.object_,
}


def connect(address: str, **options: Any) -> triton.InferenceServerClient:
    return triton.InferenceServerClient(address, **options)


def tensor(name: str, array: Array, datatype: str) -> triton.InferInput:
    made = triton.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


def operands(input0: Array = INPUT0, input1: Array = INPUT1) -> list[triton.InferInput]:
    return [tensor("INPUT0", input0, "INT32"), tensor("INPUT1", input1, "INT32")]


def asked(*names: str) -> list[triton.InferRequestedOutput]:
    return [triton.InferRequestedOutput(name) for name in names]


def is_sum_and_difference(result: triton.InferResult, input0: Array = INPUT0, input1: Array = INPUT1) -> bool:
    total, difference = result.as_numpy("OUTPUT0"), result.as_numpy("OUTPUT1")
    assert (total.dtype, total.shape) == (np.int32, input0.shape)
    return np.array_equal(total, input0 + input1) and np.array_equal(difference, input0 - input1)


# ------------------------------------------------------------------------------------------------- health and metadata


def check_health(address: str) -> None:
    with connect(address) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("add_sub")
        assert client.is_model_ready("digits", "1")
        assert not client.is_model_ready("digits", "9")
        assert not client.is_model_ready("no such model")


def check_health_as_orchestrators_ask(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", "inference.GRPCInferenceService", "add_sub"):
            assert health.Check(health_pb2.HealthCheckRequest(service=name)).status == 1
        assert next(health.Watch(health_pb2.HealthCheckRequest())).status == 1


def check_metadata(address: str) -> None:
    with connect(address) as client:
        server = client.get_server_metadata()
        assert server.name == "tensorgate"
        assert "binary_tensor_data" in server.extensions
        model = client.get_model_metadata("add_sub", as_json=True)
        assert model["platform"] == "onnxruntime_onnx"
        assert model["inputs"][1] == {"name": "INPUT1", "datatype": "INT32", "shape": ["-1", "16"]}
        assert list(client.get_model_metadata("digits").versions) == ["1", "2"]
        assert list(client.get_model_metadata("digits", "1").versions) == ["1"]


def check_configuration(address: str) -> None:
    with connect(address) as client:
        config = client.get_model_config("add_sub").config
        assert (config.name, config.max_batch_size) == ("add_sub", 8)
        assert [(each.name, list(each.dims)) for each in config.input] == [("INPUT0", [16]), ("INPUT1", [16])]
        assert not config.model_transaction_policy.decoupled
        assert client.get_model_config("countdown").config.model_transaction_policy.decoupled


# ----------------------------------------------------------------------------------------------------------- inference


def check_infer(address: str) -> None:
    with connect(address) as client:
        result = client.infer("add_sub", operands(), outputs=asked("OUTPUT0", "OUTPUT1"), request_id="1")
        assert is_sum_and_difference(result)
        assert (result.get_response().model_name, result.get_response().model_version) == ("add_sub", "1")
        assert result.get_response().id == "1"
        assert is_sum_and_difference(client.infer("add_sub", operands(), "1"))
        one = client.infer("add_sub", operands(), outputs=asked("OUTPUT1"))
        assert one.as_numpy("OUTPUT0") is None


def check_every_datatype(address: str) -> None:
    with connect(address) as client:
        for datatype, values in VALUES.items():
            array = np.array(values, DTYPES.get(datatype, datatype.lower()))
            result = client.infer(f"echo_{datatype}", [tensor("x", array, datatype)]).as_numpy("x")
            if datatype == "BF16":
                np.testing.assert_array_equal(result.astype(np.float32), array.astype(np.float32))
            else:
                assert result.dtype == array.dtype, datatype
                np.testing.assert_array_equal(result, array)


def check_string(address: str) -> None:
    with connect(address) as client:
        text = np.array(["straße".encode(), b""], np.object_)
        assert client.infer("upper", [tensor("text", text, "BYTES")]).as_numpy("shout").tolist() == [b"STRASSE", b""]


def check_images(address: str) -> None:
    pictures = np.array(checks.images(), np.float32)
    with connect(address) as client:
        scores = client.infer("digits", [tensor("image", pictures, "FP32")]).as_numpy("scores")
    assert scores.argmax(axis=1).tolist() == list(checks.SHOWN)


def check_large_tensors(address: str) -> None:
    array = np.random.default_rng(1).standard_normal(3_000_000, np.float32)
    with connect(address) as client:
        for size in (1_000, 150_528, 3_000_000):
            result = client.infer("echo_FP32", [tensor("x", array[:size], "FP32")])
            np.testing.assert_array_equal(result.as_numpy("x"), array[:size])


def check_async_infer(address: str) -> None:
    done: queue.Queue[tuple[int, Any, Any]] = queue.Queue()
    with connect(address) as client:
        for number in range(20):
            first = np.full((1, 16), number, np.int32)
            client.async_infer(
                "add_sub",
                operands(first),
                lambda result, error, number=number: done.put((number, result, error)),
            )
        for _ in range(20):
            number, result, error = done.get(timeout=10)
            assert error is None
            assert is_sum_and_difference(result, np.full((1, 16), number, np.int32))


def check_cancelled_async_infer(address: str) -> None:
    """The model does not exist as a slow one, so that what is cancelled may be over; then it must be right."""
    done: queue.Queue[tuple[Any, Any]] = queue.Queue()
    array = np.zeros(2_000_000, np.float32)
    with connect(address) as client:
        context = client.async_infer(
            "echo_FP32", [tensor("x", array, "FP32")], lambda result, error: done.put((result, error))
        )
        context.cancel()
        result, error = done.get(timeout=10)
        assert (result is None) != (error is None)
        assert error is None or error.status() == "StatusCode.CANCELLED"
        assert is_sum_and_difference(client.infer("add_sub", operands()))


def check_compression(address: str) -> None:
    with connect(address) as client:
        for coding in ("gzip", "deflate"):
            assert is_sum_and_difference(client.infer("add_sub", operands(), compression_algorithm=coding))


def check_client_timeout(address: str) -> None:
    with connect(address) as client:
        assert is_sum_and_difference(client.infer("add_sub", operands(), client_timeout=10.0))
        text = np.zeros(3_000_000, np.float32)
        error = checks.raised(
            InferenceServerException,
            lambda: client.infer("echo_FP32", [tensor("x", text, "FP32")], client_timeout=0.0001),
        )
        assert error.status() == "StatusCode.DEADLINE_EXCEEDED"
        assert error.message() == "Deadline Exceeded"


def check_keepalive(address: str) -> None:
    options = triton.KeepAliveOptions(
        keepalive_time_ms=10_000, keepalive_timeout_ms=5_000, keepalive_permit_without_calls=True
    )
    with connect(address, keepalive_options=options) as client:
        assert is_sum_and_difference(client.infer("add_sub", operands()))


def check_custom_parameters(address: str) -> None:
    with connect(address) as client:
        result = client.infer(
            "add_sub",
            operands(),
            priority=1,
            timeout=10_000_000,
            parameters={"text": "x", "number": 7, "flag": True, "real": 0.5},
        )
        assert is_sum_and_difference(result)


def check_many_threads(address: str) -> None:
    failures: list[BaseException] = []

    def ask(number: int) -> None:
        first = np.full((1, 16), number, np.int32)
        try:
            for _ in range(10):
                assert is_sum_and_difference(client.infer("add_sub", operands(first)), first)
        except BaseException as error:
            failures.append(error)

    with connect(address) as client:
        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures, failures


def check_errors(address: str) -> None:
    short = INPUT0[:, :4]
    decoupled = "ModelInfer RPC doesn't support models with decoupled transaction policy"
    refused = [
        ("absent", "", operands(), "NOT_FOUND", "Request for unknown model: 'absent' is not found"),
        ("add_sub", "7", operands(), "NOT_FOUND", "Request for unknown model: 'add_sub' version 7 is not found"),
        ("add_sub", "", operands(short, short), "INVALID_ARGUMENT", "Expected [-1,16], got [1,4]"),
        ("countdown", "", operands(), "UNIMPLEMENTED", decoupled),
    ]
    with connect(address) as client:
        for model, version, inputs, status, text in refused:
            error = checks.raised(InferenceServerException, partial(client.infer, model, inputs, version))
            assert error.status() == f"StatusCode.{status}"
            assert text in error.message()


# --------------------------------------------------------------------------------------------------- the bare messages


def check_explicit_contents(address: str) -> None:
    """As grpc_explicit_int_content_client.py and its siblings do."""
    request = service_pb2.ModelInferRequest(model_name="add_sub")
    for name, values in (("INPUT0", range(16)), ("INPUT1", [3] * 16)):
        item = request.inputs.add(name=name, datatype="INT32", shape=[1, 16])
        item.contents.int_contents.extend(values)
    with grpc.insecure_channel(address) as channel:
        response = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request)
    assert not response.outputs[0].HasField("contents")
    assert np.array_equal(np.frombuffer(response.raw_output_contents[0], np.int32), np.arange(16) + 3)


def check_explicit_bytes_and_small_integers(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for datatype, field, values, raw in (
            ("INT8", "int_contents", [-1, 2], b"\xff\x02"),
            ("UINT8", "uint_contents", [255, 2], b"\xff\x02"),
            ("UINT32", "int_contents", [1, 2], b"\1\0\0\0\2\0\0\0"),
            ("BOOL", "bool_contents", [True, False], b"\1\0"),
            ("FP32", "fp32_contents", [1.0, -0.0], b"\0\0\x80\x3f\0\0\0\x80"),
            ("BYTES", "bytes_contents", [b"ab", b""], b"\2\0\0\0ab\0\0\0\0"),
        ):
            request = service_pb2.ModelInferRequest(model_name=f"echo_{datatype}", model_version="-1")
            item = request.inputs.add(name="x", datatype=datatype, shape=[2])
            getattr(item.contents, field).extend(values)
            assert stub.ModelInfer(request).raw_output_contents == [raw], datatype


if __name__ == "__main__":
    checks.main(globals())
