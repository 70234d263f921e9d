"""What users of tritonclient's system shared memory do over gRPC: numbers and texts in regions, in and out, by hand
and over a stream; and objects that are used again with data from elsewhere.
"""

from __future__ import annotations

import os
import queue
from typing import Any

import checks
import numpy as np
import tritonclient.grpc as triton
import tritonclient.utils.shared_memory as shm
from triton_grpc import INPUT0, INPUT1, Array, asked, connect, is_sum_and_difference, operands, tensor
from triton_http_shm import region
from tritonclient.utils import InferenceServerException, serialize_byte_tensor

SIZE = INPUT0.nbytes


def placed(name: str, array: Array, datatype: str, where: str, offset: int = 0, byte_size: int = 0) -> Any:
    made = triton.InferInput(name, list(array.shape), datatype)
    made.set_shared_memory(where, byte_size or array.nbytes, offset=offset)
    return made


def wanted(name: str, where: str, byte_size: int, offset: int = 0) -> Any:
    output = triton.InferRequestedOutput(name)
    output.set_shared_memory(where, byte_size, offset=offset)
    return output


def in_memory(where: str) -> list[Any]:
    return [placed("INPUT0", INPUT0, "INT32", where), placed("INPUT1", INPUT1, "INT32", where, SIZE)]


def out_memory(where: str) -> list[Any]:
    return [wanted("OUTPUT0", where, SIZE), wanted("OUTPUT1", where, SIZE, SIZE)]


def raised(call: Any) -> tuple[str, str]:
    error = checks.raised(InferenceServerException, call)
    return error.status().removeprefix("StatusCode."), error.message()


def check_numbers_in_and_out(address: str) -> None:
    """simple_grpc_shm_client."""
    with connect(address) as client:
        client.unregister_system_shared_memory()
        client.unregister_cuda_shared_memory()
        with region(client, "grpc_in", 2 * SIZE) as source, region(client, "grpc_out", 2 * SIZE) as target:
            shm.set_shared_memory_region(source, [INPUT0, INPUT1])
            status = client.get_system_shared_memory_status(as_json=True)["regions"]
            assert status["grpc_in"] == {
                "name": "grpc_in",
                "key": f"/grpc_in_{os.getpid()}",
                "byte_size": str(2 * SIZE),
            }
            assert set(client.get_system_shared_memory_status().regions) == {"grpc_in", "grpc_out"}
            result = client.infer("add_sub", in_memory("grpc_in"), outputs=out_memory("grpc_out"))
            for name, offset, expected in (("OUTPUT0", 0, INPUT0 + INPUT1), ("OUTPUT1", SIZE, INPUT0 - INPUT1)):
                output = result.get_output(name)
                assert (output.datatype, list(output.shape)) == ("INT32", [1, 16])
                found = shm.get_contents_as_numpy(target, np.int32, [1, 16], offset)
                assert np.array_equal(found, expected)
            del found
        assert len(client.get_system_shared_memory_status().regions) == 0


def check_text_in_and_out(address: str) -> None:
    """simple_grpc_shm_string_client."""
    texts = np.array([b"one", "straße".encode(), b""], np.object_)
    raw = serialize_byte_tensor(texts)
    size = len(raw.item())
    with (
        connect(address) as client,
        region(client, "grpc_words", size) as source,
        region(client, "grpc_shouts", 1000) as target,
    ):
        shm.set_shared_memory_region(source, [raw])
        inputs = [placed("text", texts, "BYTES", "grpc_words", byte_size=size)]
        client.infer("upper", inputs, outputs=[wanted("shout", "grpc_shouts", 1000)])
        found = shm.get_contents_as_numpy(target, np.object_, [3])
        assert [text.decode() for text in found] == ["ONE", "STRASSE", ""]
        assert (
            raised(lambda: client.infer("upper", inputs, outputs=[wanted("shout", "grpc_shouts", 8)]))[0] == "INTERNAL"
        )


def check_over_a_stream(address: str) -> None:
    done: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with (
        connect(address) as client,
        region(client, "stream_in", 2 * SIZE) as source,
        region(client, "stream_out", 2 * SIZE) as target,
    ):
        shm.set_shared_memory_region(source, [INPUT0, INPUT1])
        client.start_stream(lambda result, error: done.put((result, error)))
        client.async_stream_infer("add_sub", in_memory("stream_in"), outputs=out_memory("stream_out"))
        _, error = done.get(timeout=10)
        assert error is None, error
        client.async_stream_infer("add_sub", in_memory("nowhere"))
        assert done.get(timeout=10)[1].message() == "Unable to find shared memory region: 'nowhere'"
        client.stop_stream()
        assert np.array_equal(shm.get_contents_as_numpy(target, np.int32, [1, 16]), INPUT0 + INPUT1)


def check_objects_are_used_again(address: str) -> None:
    """reuse_infer_objects_client: the same inputs and outputs with data in the message, in memory, and back."""
    inputs, outputs = operands(), asked("OUTPUT0", "OUTPUT1")
    with connect(address) as client:
        assert is_sum_and_difference(client.infer("add_sub", inputs, outputs=outputs))
        with region(client, "again_in", 2 * SIZE) as source, region(client, "again_out", 2 * SIZE) as target:
            shm.set_shared_memory_region(source, [INPUT1, INPUT0])
            for number, (each, output) in enumerate(zip(inputs, outputs, strict=True)):
                each.set_shared_memory("again_in", SIZE, offset=number * SIZE)
                output.set_shared_memory("again_out", SIZE, offset=number * SIZE)
            response = client.infer("add_sub", inputs, outputs=outputs).get_response()
            assert list(response.raw_output_contents) == [b"", b""]
            found = shm.get_contents_as_numpy(target, np.int32, [1, 16], SIZE)
            assert np.array_equal(found, INPUT1 - INPUT0)
            del found
            for output in outputs:
                output.unset_shared_memory()
            assert is_sum_and_difference(client.infer("add_sub", inputs, outputs=outputs), INPUT1, INPUT0)
        inputs[0].set_data_from_numpy(INPUT0)
        inputs[1].set_data_from_numpy(INPUT1)
        assert is_sum_and_difference(client.infer("add_sub", inputs, outputs=outputs))


def check_what_is_refused(address: str) -> None:
    with connect(address) as client, region(client, "grpc_small", 128) as source:
        key = f"/grpc_small_{os.getpid()}"
        shm.set_shared_memory_region(source, [INPUT0, INPUT1])
        outside = ("INVALID_ARGUMENT", "Invalid offset + byte size for shared memory region: 'grpc_small'")
        wrong = [
            (
                lambda: client.register_system_shared_memory("grpc_small", key, 128),
                ("ALREADY_EXISTS", "shared memory region 'grpc_small' already in manager"),
            ),
            (
                lambda: client.register_system_shared_memory("none", "/no_such_key", 1),
                ("INTERNAL", "Unable to open shared memory region: '/no_such_key'"),
            ),
            (
                lambda: client.get_system_shared_memory_status("none"),
                ("NOT_FOUND", "Unable to find system shared memory region: 'none'"),
            ),
            (
                lambda: client.infer("add_sub", in_memory("nowhere")),
                ("NOT_FOUND", "Unable to find shared memory region: 'nowhere'"),
            ),
            (
                lambda: client.infer(
                    "add_sub", [placed("INPUT0", INPUT0, "INT32", "grpc_small", 65), in_memory("grpc_small")[1]]
                ),
                outside,
            ),
            (
                lambda: client.infer(
                    "add_sub", in_memory("grpc_small"), outputs=[wanted("OUTPUT0", "grpc_small", 129)]
                ),
                outside,
            ),
        ]
        for call, refusal in wrong:
            assert raised(call) == refusal
        client.unregister_system_shared_memory("never there")
        assert is_sum_and_difference(client.infer("add_sub", in_memory("grpc_small")))


def check_memory_of_gpus_without_one(address: str) -> None:
    """simple_grpc_cudashm_client needs a GPU on both sides: without one it is told so, and can tidy up all the same."""
    with connect(address) as client:
        client.unregister_cuda_shared_memory()
        status, text = raised(lambda: client.register_cuda_shared_memory("gpu", b"AAAA" * 22, 0, 64))
        assert status in ("INVALID_ARGUMENT", "UNIMPLEMENTED"), (status, text)
        assert "GPUs not supported" in text or "Client shared memory is disabled" in text
        assert client.get_cuda_shared_memory_status(as_json=True) == {}
        assert "cuda_shared_memory" not in client.get_server_metadata().extensions
        client.unregister_cuda_shared_memory()
        text_in = tensor("text", np.array([b"x"], np.object_), "BYTES")
        assert client.infer("upper", [text_in]).as_numpy("shout").tolist() == [b"X"]


if __name__ == "__main__":
    checks.main(globals())
