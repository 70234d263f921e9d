"""What users of tritonclient's system shared memory do over HTTP: numbers and texts in regions, in and out."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import checks
import numpy as np
import tritonclient.http as triton
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException, serialize_byte_tensor

Array = np.ndarray[Any, Any]

INPUT0 = np.arange(16, dtype=np.int32).reshape(1, 16)
INPUT1 = np.full((1, 16), 3, np.int32)
SIZE = INPUT0.nbytes


@contextmanager
def region(client: Any, name: str, byte_size: int, *, registered: bool = True) -> Iterator[Any]:
    """A region of the client's own, under a key that no other run uses."""
    handle = shm.create_shared_memory_region(name, f"/{name}_{os.getpid()}", byte_size)
    try:
        if registered:
            client.register_system_shared_memory(name, f"/{name}_{os.getpid()}", byte_size)
        yield handle
    finally:
        client.unregister_system_shared_memory(name)
        shm.destroy_shared_memory_region(handle)


def placed(name: str, array: Array, datatype: str, where: str, offset: int = 0, byte_size: int = 0) -> Any:
    tensor = triton.InferInput(name, list(array.shape), datatype)
    tensor.set_shared_memory(where, byte_size or array.nbytes, offset=offset)
    return tensor


def wanted(name: str, where: str, byte_size: int, offset: int = 0) -> Any:
    output = triton.InferRequestedOutput(name)
    output.set_shared_memory(where, byte_size, offset=offset)
    return output


def operands(where: str = "input") -> list[Any]:
    return [placed("INPUT0", INPUT0, "INT32", where), placed("INPUT1", INPUT1, "INT32", where, SIZE)]


def raised(call: Any) -> tuple[str, str]:
    error = checks.raised(InferenceServerException, call)
    return error.status(), error.message()


def check_numbers_in_and_out(address: str) -> None:
    """simple_http_shm_client: both inputs in one region, both outputs in another."""
    with triton.InferenceServerClient(address) as client:
        client.unregister_system_shared_memory()
        client.unregister_cuda_shared_memory()
        with region(client, "input", 2 * SIZE) as source, region(client, "output", 2 * SIZE) as target:
            shm.set_shared_memory_region(source, [INPUT0])
            shm.set_shared_memory_region(source, [INPUT1], offset=SIZE)
            status = client.get_system_shared_memory_status()
            assert sorted(each["name"] for each in status) == ["input", "output"]
            outputs = [wanted("OUTPUT0", "output", SIZE), wanted("OUTPUT1", "output", SIZE, SIZE)]
            for _ in range(3):
                result = client.infer("add_sub", operands(), outputs=outputs)
                for name, offset, expected in (("OUTPUT0", 0, INPUT0 + INPUT1), ("OUTPUT1", SIZE, INPUT0 - INPUT1)):
                    output = result.get_output(name)
                    assert output == {"name": name, "datatype": "INT32", "shape": [1, 16]}, output
                    found = shm.get_contents_as_numpy(target, np.int32, [1, 16], offset)
                    assert np.array_equal(found, expected)
                shm.set_shared_memory_region(target, [np.zeros(32, np.int32)])
            del found
        assert client.get_system_shared_memory_status() == []


def check_some_in_memory_and_some_not(address: str) -> None:
    with (
        triton.InferenceServerClient(address) as client,
        region(client, "input", SIZE) as source,
        region(client, "output", SIZE) as target,
    ):
        shm.set_shared_memory_region(source, [INPUT0])
        sent = triton.InferInput("INPUT1", [1, 16], "INT32")
        sent.set_data_from_numpy(INPUT1)
        inputs = [placed("INPUT0", INPUT0, "INT32", "input"), sent]
        plain = triton.InferRequestedOutput("OUTPUT1", binary_data=True)
        for coding in (None, "gzip"):
            result = client.infer(
                "add_sub",
                inputs,
                outputs=[wanted("OUTPUT0", "output", SIZE), plain],
                request_compression_algorithm=coding,
                response_compression_algorithm=coding,
            )
            assert np.array_equal(shm.get_contents_as_numpy(target, np.int32, [1, 16]), INPUT0 + INPUT1)
            assert np.array_equal(result.as_numpy("OUTPUT1"), INPUT0 - INPUT1)


def check_text_in_and_out(address: str) -> None:
    """simple_http_shm_string_client: BYTES in their serialized form."""
    texts = np.array([[b"one", "straße".encode(), b""]], np.object_).reshape(3)
    raw = serialize_byte_tensor(texts)
    size = len(raw.item())
    with (
        triton.InferenceServerClient(address) as client,
        region(client, "words", size) as source,
        region(client, "shouts", 1000) as target,
    ):
        shm.set_shared_memory_region(source, [raw])
        inputs = [placed("text", texts, "BYTES", "words", byte_size=size)]
        client.infer("upper", inputs, outputs=[wanted("shout", "shouts", 1000)])
        found = shm.get_contents_as_numpy(target, np.object_, [3])
        assert [text.decode() for text in found] == ["ONE", "STRASSE", ""]
        assert raised(lambda: client.infer("upper", inputs, outputs=[wanted("shout", "shouts", 8)])) == (
            "500",
            "shared memory size specified with the request for output 'shout' (8 bytes) should be at least 22 bytes to "
            "hold the results",
        )


def check_every_datatype(address: str) -> None:
    values = {"BOOL": np.bool_, "FP16": np.float16, "FP64": np.float64, "UINT8": np.uint8, "INT64": np.int64}
    with (
        triton.InferenceServerClient(address) as client,
        region(client, "there", 4096) as source,
        region(client, "back", 4096) as target,
    ):
        for datatype, dtype in values.items():
            array: Any = np.array([0, 1, 0, 1, 1], dtype)
            for offset in (0, 3):
                source._mpsm_handle.buf[offset : offset + array.nbytes] = array.tobytes()
                inputs = [placed("x", array, datatype, "there", offset)]
                client.infer(f"echo_{datatype}", inputs, outputs=[wanted("x", "back", array.nbytes, offset)])
                assert bytes(target._mpsm_handle.buf[offset : offset + array.nbytes]) == array.tobytes(), datatype


def check_regions_are_managed(address: str) -> None:
    with triton.InferenceServerClient(address) as client:
        key = f"/twice_{os.getpid()}"
        with region(client, "twice", 128):
            assert client.get_system_shared_memory_status("twice") == [
                {"name": "twice", "key": key, "offset": 0, "byte_size": 128}
            ]
            assert raised(lambda: client.register_system_shared_memory("twice", key, 128)) == (
                "400",
                "shared memory region 'twice' already in manager",
            )
            assert raised(lambda: client.register_system_shared_memory("other", key, 129)) == (
                "400",
                "failed to register shared memory region 'other': invalid args",
            )
            assert raised(lambda: client.register_system_shared_memory("other", key, 100, offset=29))[0] == "400"
            client.register_system_shared_memory("other", key, 28, offset=100)
            assert len(client.get_system_shared_memory_status()) == 2
        assert raised(lambda: client.get_system_shared_memory_status("twice")) == (
            "404",
            "Unable to find system shared memory region: 'twice'",
        )
        client.unregister_system_shared_memory()
        client.unregister_system_shared_memory("never there")
        assert client.get_system_shared_memory_status() == []
        assert raised(lambda: client.register_system_shared_memory("none", "/no_such_key", 1)) == (
            "500",
            "Unable to open shared memory region: '/no_such_key'",
        )
        assert client.get_cuda_shared_memory_status() == []
        assert "system_shared_memory" in client.get_server_metadata()["extensions"]


def check_wrong_places(address: str) -> None:
    with triton.InferenceServerClient(address) as client, region(client, "small", 128) as source:
        shm.set_shared_memory_region(source, [INPUT0, INPUT1])
        unknown = [placed("INPUT0", INPUT0, "INT32", "nowhere"), placed("INPUT1", INPUT1, "INT32", "small")]
        assert raised(lambda: client.infer("add_sub", unknown)) == (
            "404",
            "Unable to find shared memory region: 'nowhere'",
        )
        beyond = [placed("INPUT0", INPUT0, "INT32", "small", 65), placed("INPUT1", INPUT1, "INT32", "small")]
        outside = ("400", "Invalid offset + byte size for shared memory region: 'small'")
        assert raised(lambda: client.infer("add_sub", beyond)) == outside
        both = operands("small")
        assert raised(lambda: client.infer("add_sub", both, outputs=[wanted("OUTPUT0", "small", 129)])) == outside
        short = [placed("INPUT0", INPUT0, "INT32", "small", byte_size=60), both[1]]
        assert raised(lambda: client.infer("add_sub", short)) == (
            "400",
            "[request id: <id_unknown>] input byte size mismatch for input 'INPUT0' for model 'add_sub'. "
            "Expected 64, got 60",
        )
        assert raised(lambda: client.infer("add_sub", both, outputs=[wanted("OUTPUT0", "small", 32)])) == (
            "500",
            "shared memory size specified with the request for output 'OUTPUT0' (32 bytes) should be at least 64 bytes "
            "to hold the results",
        )


def check_objects_are_used_again(address: str) -> None:
    """reuse_infer_objects_client: the same inputs and outputs with data in the message, in memory, and back."""
    inputs = [triton.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
    outputs = [triton.InferRequestedOutput(name, binary_data=True) for name in ("OUTPUT0", "OUTPUT1")]
    with triton.InferenceServerClient(address) as client:
        for first, second in ((INPUT0, INPUT1), (INPUT1, INPUT0)):
            inputs[0].set_data_from_numpy(first)
            inputs[1].set_data_from_numpy(second)
            result = client.infer("add_sub", inputs, outputs=outputs)
            assert np.array_equal(result.as_numpy("OUTPUT1"), first - second)
            with region(client, "again_in", 2 * SIZE) as source, region(client, "again_out", 2 * SIZE) as target:
                shm.set_shared_memory_region(source, [second, first])
                for number, (each, output) in enumerate(zip(inputs, outputs, strict=True)):
                    each.set_shared_memory("again_in", SIZE, offset=number * SIZE)
                    output.set_shared_memory("again_out", SIZE, offset=number * SIZE)
                client.infer("add_sub", inputs, outputs=outputs)
                assert np.array_equal(shm.get_contents_as_numpy(target, np.int32, [1, 16], SIZE), second - first)
                for output in outputs:
                    output.unset_shared_memory()
                result = client.infer("add_sub", inputs, outputs=outputs)
                assert np.array_equal(result.as_numpy("OUTPUT1"), second - first)


def check_memory_of_gpus_without_one(address: str) -> None:
    """simple_http_cudashm_client needs a GPU on both sides: without one it is told so, and can tidy up all the same."""
    with triton.InferenceServerClient(address) as client:
        client.unregister_cuda_shared_memory()
        status, text = raised(lambda: client.register_cuda_shared_memory("gpu", b"QUFB" * 22, 0, 64))
        assert status in ("400", "501"), (status, text)
        assert "GPUs not supported" in text or "Client shared memory is disabled" in text
        assert client.get_cuda_shared_memory_status() == []
        client.unregister_cuda_shared_memory()


def check_many_at_a_time(address: str) -> None:
    """Callers of one model, a region each: everybody finds their own rows in their own memory."""
    wrong: list[object] = []

    def work(number: int) -> None:
        try:
            with (
                triton.InferenceServerClient(address) as client,
                region(client, f"in{number}", 2 * SIZE) as source,
                region(client, f"out{number}", SIZE) as target,
            ):
                for step in range(25):
                    first = np.full((1, 16), 1000 * number + step, np.int32)
                    shm.set_shared_memory_region(source, [first, INPUT1])
                    client.infer("add_sub", operands(f"in{number}"), outputs=[wanted("OUTPUT0", f"out{number}", SIZE)])
                    assert np.array_equal(shm.get_contents_as_numpy(target, np.int32, [1, 16]), first + INPUT1)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong


if __name__ == "__main__":
    checks.main(globals())
