"""What users of KServe's own Python clients do, done by those clients: the REST one and the gRPC one.

Runs in the environment .venv-heavy with two addresses, HTTP's and gRPC's, as one argument: HOST:PORT,HOST:PORT.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import checks
import grpc
import httpx
import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest
from kserve.inference_client import RESTConfig
from kserve.protocol.grpc import grpc_predict_v2_pb2 as messages
from kserve.protocol.grpc.grpc_predict_v2_pb2_grpc import GRPCInferenceServiceStub
from kserve.protocol.infer_type import RequestedOutput

Array = np.ndarray[Any, Any]
Rest = Callable[[InferenceRESTClient, str], Awaitable[None]]

INPUT0 = np.arange(16, dtype=np.int32).reshape(1, 16)
INPUT1 = np.full((1, 16), 3, np.int32)
ARRAYS: dict[str, Array] = {
    "BOOL": np.array([True, False]),
    "UINT8": np.array([0, 255], np.uint8),
    "UINT64": np.array([0, 2**64 - 1], np.uint64),
    "INT64": np.array([-(2**63), 2**53 + 1], np.int64),
    "FP16": np.array([0.1, -65504.0], np.float16),
    "FP32": np.array([0.1, -3.5], np.float32),
    "FP64": np.array([0.1, 1e300], np.float64),
}


def by_rest(address: str, work: Rest, protocol: str = "v2") -> None:
    async def run() -> None:
        async with InferenceRESTClient(RESTConfig(protocol=protocol, retries=0)) as client:
            await work(client, f"http://{address.partition(',')[0]}")

    asyncio.run(run())


def by_grpc(address: str, work: Callable[[InferenceGRPCClient], Awaitable[None]]) -> None:
    async def run() -> None:
        async with InferenceGRPCClient(address.partition(",")[2], retries=0) as client:
            await work(client)

    asyncio.run(run())


def tensor(name: str, array: Array, datatype: str, *, binary: bool) -> InferInput:
    made = InferInput(name=name, shape=list(array.shape), datatype=datatype)
    made.set_data_from_numpy(array, binary_data=binary)
    return made


def add_sub(*, binary: bool, model: str = "add_sub", width: int = 16, **more: Any) -> InferRequest:
    inputs = [
        tensor(name, array[:, :width], "INT32", binary=binary)
        for name, array in (("INPUT0", INPUT0), ("INPUT1", INPUT1))
    ]
    return InferRequest(model_name=model, infer_inputs=inputs, **more)


def is_sum_and_difference(response: Any) -> bool:
    total, difference = (response.get_output_by_name(name) for name in ("OUTPUT0", "OUTPUT1"))
    assert (response.model_name, total.datatype, list(total.shape)) == ("add_sub", "INT32", [1, 16])
    right = np.array_equal(total.as_numpy(), INPUT0 + INPUT1)
    return right and np.array_equal(difference.as_numpy(), INPUT0 - INPUT1)


async def refused(kind: type[Exception], call: Awaitable[Any]) -> Any:
    try:
        await call
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__} was raised")


# ---------------------------------------------------------------------------------------------------------------- REST


def check_rest_health(address: str) -> None:
    async def work(client: InferenceRESTClient, url: str) -> None:
        assert await client.is_server_live(url) is True
        assert await client.is_server_ready(url) is True
        assert await client.is_model_ready(url, "add_sub") is True
        assert await client.is_model_ready(url, "absent") is False

    by_rest(address, work)


def check_rest_json(address: str) -> None:
    async def work(client: InferenceRESTClient, url: str) -> None:
        response = await client.infer(url, add_sub(binary=False, request_id="7"), model_name="add_sub")
        assert is_sum_and_difference(response)
        assert response.id == "7"
        as_it_is = {"inputs": [{"name": "x", "shape": [2], "datatype": "FP32", "data": [2, 4]}]}
        response = await client.infer(url, as_it_is, model_name="half_plus_two")
        assert response.outputs[0].as_numpy().tolist() == [3.0, 4.0]

    by_rest(address, work)


def check_rest_binary(address: str) -> None:
    wanted = [RequestedOutput(name, {"binary_data": True}) for name in ("OUTPUT0", "OUTPUT1")]

    async def work(client: InferenceRESTClient, url: str) -> None:
        for outputs, parameters, length in (
            (wanted, None, True),
            (None, {"binary_data_output": True}, True),
            (None, None, False),
        ):
            headers: dict[str, str] = {}
            request = add_sub(binary=True, request_outputs=outputs, parameters=parameters)
            response = await client.infer(url, request, model_name="add_sub", response_headers=headers)
            assert is_sum_and_difference(response)
            assert ("inference-header-content-length" in headers) is length

    by_rest(address, work)


def check_rest_datatypes(address: str) -> None:
    async def work(client: InferenceRESTClient, url: str) -> None:
        for datatype, array in ARRAYS.items():
            for binary in (False, True):
                if datatype == "FP16" and not binary:
                    continue  # the client refuses to send FP16 as JSON
                model = f"echo_{datatype}"
                parameters = {"binary_data_output": binary}
                request = InferRequest(model, [tensor("x", array, datatype, binary=binary)], parameters=parameters)
                response = await client.infer(url, request, model_name=model)
                returned = response.outputs[0].as_numpy()
                assert returned.dtype == array.dtype
                assert np.array_equal(returned, array), (datatype, binary)

    by_rest(address, work)


def check_rest_text(address: str) -> None:
    text = np.array(["straße", ""], np.object_)

    async def work(client: InferenceRESTClient, url: str) -> None:
        for binary in (False, True):
            request = InferRequest("upper", [tensor("text", text, "BYTES", binary=binary)])
            response = await client.infer(url, request, model_name="upper")
            assert response.outputs[0].data == ["STRASSE", ""]

    by_rest(address, work)


def check_rest_errors(address: str) -> None:
    async def work(client: InferenceRESTClient, url: str) -> None:
        absent = client.infer(url, add_sub(binary=False), model_name="absent")
        error = await refused(httpx.HTTPStatusError, absent)
        assert error.response.status_code == 404
        assert str(error).startswith("Request for unknown model: 'absent' is not found, '404 Not Found' for url")
        for binary in (False, True):
            misshapen = client.infer(url, add_sub(binary=binary, width=4), model_name="add_sub")
            error = await refused(httpx.HTTPStatusError, misshapen)
            assert error.response.status_code == 400
            assert "Expected [-1,16], got [1,4]" in str(error)

    by_rest(address, work)


def check_rest_protocol_v1(address: str) -> None:
    async def work(client: InferenceRESTClient, url: str) -> None:
        answer = await client.infer(url, {"instances": [1.0, 2.0, 5.0]}, model_name="half_plus_two")
        assert answer == {"predictions": [2.5, 3.0, 4.5]}

    by_rest(address, work, "v1")


def check_rest_many_at_a_time(address: str) -> None:
    async def work(client: InferenceRESTClient, url: str) -> None:
        calls = [client.infer(url, add_sub(binary=bool(n % 2)), model_name="add_sub") for n in range(50)]
        assert all(is_sum_and_difference(response) for response in await asyncio.gather(*calls))

    by_rest(address, work)


# ---------------------------------------------------------------------------------------------------------------- gRPC


def check_grpc_health(address: str) -> None:
    async def work(client: InferenceGRPCClient) -> None:
        assert await client.is_server_live() is True
        assert await client.is_server_ready() is True
        assert await client.is_model_ready("add_sub") is True
        assert await client.is_model_ready("absent") is False

    by_grpc(address, work)


def check_grpc_infer(address: str) -> None:
    async def work(client: InferenceGRPCClient) -> None:
        for binary in (False, True):
            response = await client.infer(add_sub(binary=binary, request_id="7"))
            assert is_sum_and_difference(response)
            assert (response.id, response.model_version) == ("7", "1")
        request = add_sub(binary=True, request_outputs=[RequestedOutput("OUTPUT1")], model_version="1")
        response = await client.infer(request)
        assert [output.name for output in response.outputs] == ["OUTPUT1"]

    by_grpc(address, work)


def check_grpc_datatypes(address: str) -> None:
    async def work(client: InferenceGRPCClient) -> None:
        for datatype, array in ARRAYS.items():
            request = InferRequest(f"echo_{datatype}", [tensor("x", array, datatype, binary=True)])
            returned = (await client.infer(request)).outputs[0].as_numpy()
            assert returned.dtype == array.dtype
            assert np.array_equal(returned, array), datatype

    by_grpc(address, work)


def check_grpc_text(address: str) -> None:
    text = np.array(["straße", ""], np.object_)

    async def work(client: InferenceGRPCClient) -> None:
        for binary in (False, True):
            response = await client.infer(InferRequest("upper", [tensor("text", text, "BYTES", binary=binary)]))
            assert response.outputs[0].as_numpy().tolist() == [b"STRASSE", b""]

    by_grpc(address, work)


def check_grpc_errors(address: str) -> None:
    async def work(client: InferenceGRPCClient) -> None:
        error = await refused(grpc.RpcError, client.infer(add_sub(binary=True, model="absent")))
        assert error.code() is grpc.StatusCode.NOT_FOUND
        assert error.details() == "Request for unknown model: 'absent' is not found"
        error = await refused(grpc.RpcError, client.infer(add_sub(binary=True, width=4)))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "Expected [-1,16], got [1,4]" in error.details()

    by_grpc(address, work)


def check_grpc_metadata(address: str) -> None:
    """By KServe's messages, for which its client has no method."""
    with grpc.insecure_channel(address.partition(",")[2]) as channel:
        stub = GRPCInferenceServiceStub(channel)
        assert stub.ServerMetadata(messages.ServerMetadataRequest()).name == "tensorgate"
        model = stub.ModelMetadata(messages.ModelMetadataRequest(name="add_sub"))
    assert (model.name, list(model.versions), model.platform) == ("add_sub", ["1"], "onnxruntime_onnx")
    assert [(each.name, each.datatype, list(each.shape)) for each in model.inputs] == [
        ("INPUT0", "INT32", [-1, 16]),
        ("INPUT1", "INT32", [-1, 16]),
    ]


if __name__ == "__main__":
    checks.main(globals())
