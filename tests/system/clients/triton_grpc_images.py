"""What image_client and grpc_image_client do: ask the model how its pictures lie, send them alone and in batches, with
an answer each, over a stream and without waiting, and read classes with labels.
"""

from __future__ import annotations

import queue
from typing import Any

import checks
import grpc
import numpy as np
import tritonclient.grpc as triton
from triton_grpc import connect, tensor
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

MODEL = "colours"
LABELS = ("RED", "GREEN", "BLUE")
SHARES = ("0.750000", "0.500000", "0.250000")


def parsed(metadata: Any, config: Any) -> tuple[int, str, str, int, int, int, int, str]:
    """The checks of the client's parse_model, and what it finds: largest batch, names, sizes, form, datatype."""
    assert len(metadata.inputs) == len(metadata.outputs) == len(config.input) == 1
    (source,), (target,) = metadata.inputs, metadata.outputs
    assert target.datatype == "FP32"
    batched = config.max_batch_size > 0
    assert sum(size > 1 for size in target.shape[batched:]) == 1
    assert len(source.shape) == 3 + batched
    sizes = source.shape[batched:]
    form = config.input[0].format
    assert form == model_config_pb2.ModelInput.FORMAT_NHWC
    return (config.max_batch_size, source.name, target.name, *sizes, form, source.datatype)


def pictures(count: int) -> Any:
    """Picture n is mostly of colour n modulo 3, then of the next one."""
    shades = np.array([np.roll([0.75, 0.5, 0.25], number % 3) for number in range(count)], np.float32)
    return np.broadcast_to(shades[:, None, None, :], (count, 6, 8, 3))


def top(count: int) -> list[Any]:
    return [triton.InferRequestedOutput("colours", class_count=count)]


def expected(number: int, count: int) -> list[str]:
    order = [(number + place) % 3 for place in range(count)]
    return [f"{value}:{index}:{LABELS[index]}" for value, index in zip(SHARES, order, strict=False)]


def read(result: Any) -> list[list[str]]:
    classes = result.as_numpy("colours")
    return [[text.decode() for text in row] for row in classes]


def check_the_model_is_described(address: str) -> None:
    with connect(address) as client:
        found = parsed(client.get_model_metadata(MODEL), client.get_model_config(MODEL).config)
        assert found == (4, "picture", "colours", 6, 8, 3, model_config_pb2.ModelInput.FORMAT_NHWC, "FP32")
        config = client.get_model_config(MODEL, as_json=True)["config"]
        assert config["input"][0]["format"] == "FORMAT_NHWC"
        assert config["output"][0]["label_filename"] == "colours.txt"


def check_alone_and_in_batches(address: str) -> None:
    with connect(address) as client:
        for batch in (1, 2, 4):
            for count in (1, 2, 3):
                sent = [tensor("picture", pictures(batch), "FP32")]
                result = client.infer(MODEL, sent, request_id=str(batch), outputs=top(count))
                output = result.get_output("colours")
                assert (output.datatype, list(output.shape)) == ("BYTES", [batch, count])
                assert read(result) == [expected(number, count) for number in range(batch)]


def check_without_waiting_and_over_a_stream(address: str) -> None:
    done: queue.Queue[tuple[Any, Any]] = queue.Queue()
    sent = [tensor("picture", pictures(3)[number : number + 1], "FP32") for number in range(3)]
    with connect(address) as client:
        for number in range(3):
            client.async_infer(
                MODEL,
                [sent[number]],
                lambda result, error: done.put((result, error)),
                request_id=str(number),
                outputs=top(2),
            )
        client.start_stream(lambda result, error: done.put((result, error)))
        for number in range(3):
            client.async_stream_infer(MODEL, [sent[number]], request_id=str(number), outputs=top(2))
        for _ in range(6):
            result, error = done.get(timeout=10)
            assert error is None, error
            assert read(result) == [expected(int(result.get_response().id), 2)]
        client.stop_stream()


def check_with_bare_messages(address: str) -> None:
    """grpc_image_client: stubs, raw contents, and classes read from the answer's bytes."""
    with grpc.insecure_channel(address) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        metadata = stub.ModelMetadata(service_pb2.ModelMetadataRequest(name=MODEL))
        parsed(metadata, stub.ModelConfig(service_pb2.ModelConfigRequest(name=MODEL)).config)
        request = service_pb2.ModelInferRequest(model_name=MODEL, id="bare")
        request.inputs.add(name="picture", datatype="FP32", shape=[2, 6, 8, 3])
        request.outputs.add(name="colours").parameters["classification"].int64_param = 1
        request.raw_input_contents.append(pictures(2).tobytes())
        response = stub.ModelInfer(request)
        assert (response.id, len(response.outputs), list(response.outputs[0].shape)) == ("bare", 1, [2, 1])
        found = [text.decode() for text in triton.InferResult(response).as_numpy("colours").ravel()]
        assert found == [expected(number, 1)[0] for number in range(2)]


def check_what_is_refused(address: str) -> None:
    with connect(address) as client:
        many = [tensor("picture", pictures(5), "FP32")]
        error = checks.raised(InferenceServerException, lambda: client.infer(MODEL, many, outputs=top(1)))
        assert error.message() == ("[request id: <id_unknown>] inference request batch-size must be <= 4 for 'colours'")
        text = [tensor("text", np.array([b"a"], np.object_), "BYTES")]
        classes = [triton.InferRequestedOutput("shout", class_count=1)]
        error = checks.raised(InferenceServerException, lambda: client.infer("upper", text, outputs=classes))
        assert error.status() == "StatusCode.INVALID_ARGUMENT"
        assert error.message() == "class result not available for output due to unsupported type 'BYTES'"


if __name__ == "__main__":
    checks.main(globals())
