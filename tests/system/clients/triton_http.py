"""What users of tritonclient.http do, done by tritonclient.http itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import product
from typing import Any

import checks
import ml_dtypes
import numpy as np
import requests
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

Array = np.ndarray[Any, Any]

INPUT0 = np.arange(16, dtype=np.int32).reshape(1, 16)
INPUT1 = np.full((1, 16), 3, np.int32)
CODINGS = (None, "gzip", "deflate")
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
DIGITS = (checks.IMAGES.parent / "models/digits/labels.txt").read_text().splitlines()
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


def tensor(name: str, array: Array, datatype: str, binary: bool = True) -> triton.InferInput:
    made = triton.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array, binary_data=binary)
    return made


def operands(input0: Array = INPUT0, input1: Array = INPUT1, binary: bool = True) -> list[triton.InferInput]:
    return [tensor("INPUT0", input0, "INT32", binary), tensor("INPUT1", input1, "INT32", binary)]


def asked(*names: str, binary: bool = True) -> list[triton.InferRequestedOutput]:
    return [triton.InferRequestedOutput(name, binary_data=binary) for name in names]


def is_sum_and_difference(result: triton.InferResult, input0: Array = INPUT0, input1: Array = INPUT1) -> bool:
    total, difference = result.as_numpy("OUTPUT0"), result.as_numpy("OUTPUT1")
    assert (total.dtype, total.shape) == (np.int32, input0.shape)
    return np.array_equal(total, input0 + input1) and np.array_equal(difference, input0 - input1)


def was_binary(result: triton.InferResult, name: str) -> bool:
    output = result.get_output(name)
    assert ("data" in output) != ("binary_data_size" in output.get("parameters", {}))
    return "data" not in output


# ------------------------------------------------------------------------------------------------- health and metadata


def check_health(address: str) -> None:
    with connect(address) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("add_sub")
        assert client.is_model_ready("digits", "1")
        assert not client.is_model_ready("digits", "9")
        assert not client.is_model_ready("no such model")


def check_server_metadata(address: str) -> None:
    with connect(address) as client:
        about = client.get_server_metadata()
    assert about["name"] == "tensorgate"
    assert about["version"]
    assert "binary_tensor_data" in about["extensions"]


def check_model_metadata(address: str) -> None:
    def specs(*names: str) -> list[dict[str, Any]]:
        return [{"name": name, "datatype": "INT32", "shape": [-1, 16]} for name in names]

    with connect(address) as client:
        assert client.get_model_metadata("add_sub") == {
            "name": "add_sub",
            "versions": ["1"],
            "platform": "onnxruntime_onnx",
            "inputs": specs("INPUT0", "INPUT1"),
            "outputs": specs("OUTPUT0", "OUTPUT1"),
        }
        assert client.get_model_metadata("digits")["versions"] == ["1", "2"]
        assert client.get_model_metadata("digits", "1")["versions"] == ["1"]


# ----------------------------------------------------------------------------------------------------------- inference


def check_binary_is_the_default(address: str) -> None:
    with connect(address) as client:
        result = client.infer("add_sub", operands(), outputs=asked("OUTPUT0", "OUTPUT1"))
    assert is_sum_and_difference(result)
    assert was_binary(result, "OUTPUT0")
    assert was_binary(result, "OUTPUT1")
    assert result.get_response()["model_name"] == "add_sub"
    assert result.get_response()["model_version"] == "1"


def check_no_outputs_named_gives_all(address: str) -> None:
    with connect(address) as client:
        result = client.infer("add_sub", operands())
    assert is_sum_and_difference(result)
    assert was_binary(result, "OUTPUT0")


def check_one_output_of_two(address: str) -> None:
    with connect(address) as client:
        result = client.infer("add_sub", operands(), outputs=asked("OUTPUT1"))
    assert result.as_numpy("OUTPUT0") is None
    assert np.array_equal(result.as_numpy("OUTPUT1"), INPUT0 - INPUT1)


def check_json_in_json_out(address: str) -> None:
    with connect(address) as client:
        result = client.infer("add_sub", operands(binary=False), outputs=asked("OUTPUT0", "OUTPUT1", binary=False))
    assert is_sum_and_difference(result)
    assert result.get_output("OUTPUT1")["data"] == (INPUT0 - INPUT1).ravel().tolist()


def check_json_and_binary_mixed(address: str) -> None:
    inputs = [tensor("INPUT0", INPUT0, "INT32"), tensor("INPUT1", INPUT1, "INT32", binary=False)]
    outputs = [*asked("OUTPUT0", binary=False), *asked("OUTPUT1")]
    with connect(address) as client:
        for chosen in (inputs, inputs[::-1]):
            result = client.infer("add_sub", chosen, outputs=outputs)
            assert is_sum_and_difference(result)
            assert not was_binary(result, "OUTPUT0")
            assert was_binary(result, "OUTPUT1")


def check_request_ids(address: str) -> None:
    with connect(address) as client:
        assert client.infer("add_sub", operands(), request_id="№ 42").get_response()["id"] == "№ 42"
        assert "id" not in client.infer("add_sub", operands()).get_response()


def check_parameters_of_scheduling_and_ones_own(address: str) -> None:
    mine = {"note": "hello", "level": 3, "scale": 0.5, "quick": True}
    with connect(address) as client:
        result = client.infer("add_sub", operands(), priority=1, timeout=5_000_000, parameters=mine)
        result_of_version = client.infer("add_sub", operands(), model_version="1", query_params={"trace": ["a b", 1]})
    assert is_sum_and_difference(result)
    assert is_sum_and_difference(result_of_version)


def check_inputs_are_reused(address: str) -> None:
    inputs = operands()
    outputs = asked("OUTPUT0", "OUTPUT1")
    with connect(address) as client:
        for rows in (1, 1, 8, 2):
            first = np.arange(rows * 16, dtype=np.int32).reshape(rows, 16)
            for made, array in zip(inputs, (first, first * 2), strict=True):
                made.set_shape(list(array.shape))
                made.set_data_from_numpy(array)
            assert is_sum_and_difference(client.infer("add_sub", inputs, outputs=outputs), first, first * 2)


def check_digits_are_read(address: str) -> None:
    pictures = np.array(checks.images(), np.float32)
    with connect(address) as client:
        for version, binary in product(("", "1", "2"), (True, False)):
            inputs = [tensor("image", pictures, "FP32", binary)]
            result = client.infer("digits", inputs, version, asked("scores", binary=binary))
            scores = result.as_numpy("scores")
            assert scores.dtype == np.float32
            assert tuple(scores.argmax(axis=1)) == checks.SHOWN
            assert np.allclose(scores.sum(axis=1), 1, atol=1e-5)


def check_every_datatype_returns_bit_for_bit(address: str) -> None:
    with connect(address) as client:
        for datatype, values in VALUES.items():
            array = np.array(values, DTYPES.get(datatype, datatype.lower()))
            json_too = datatype not in ("FP16", "BF16")
            for binary_in, binary_out in product((True, False), repeat=2) if json_too else [(True, True)]:
                result = client.infer(
                    f"echo_{datatype}",
                    [tensor("x", array, datatype, binary_in)],
                    outputs=asked("x", binary=binary_out),
                )
                back = result.as_numpy("x")
                if datatype == "BYTES":
                    assert [text if binary_out else text.encode() for text in back] == values
                else:
                    assert (back.dtype, back.tobytes()) == (array.dtype, array.tobytes()), datatype


def check_a_megabyte_and_none(address: str) -> None:
    with connect(address) as client:
        for rows in (2**18, 0):
            array = np.arange(rows, dtype=np.float32)
            result = client.infer("echo_FP32", [tensor("x", array, "FP32")])
            assert result.as_numpy("x").tobytes() == array.tobytes()


# ------------------------------------------------------------------------------------------------------------- classes


def check_classes_with_their_labels(address: str) -> None:
    """What image_client does: the best classes of a batch of pictures, VALUE:INDEX:LABEL each."""
    pictures = np.array(checks.images(), np.float32)
    inputs = [tensor("image", pictures, "FP32")]
    with connect(address) as client:
        scores = client.infer("digits", inputs, outputs=asked("scores")).as_numpy("scores")
        for binary, count in product((True, False), (1, 3, 10, 99)):
            wanted = triton.InferRequestedOutput("scores", binary_data=binary, class_count=count)
            result = client.infer("digits", inputs, outputs=[wanted])
            assert was_binary(result, "scores") == binary
            classes = result.as_numpy("scores")
            assert classes.shape == (len(pictures), min(count, 10))
            for row, digit, found in zip(scores, checks.SHOWN, classes, strict=True):
                texts = [text.decode() if isinstance(text, bytes) else text for text in found]
                values, indices, labels = zip(*[text.split(":") for text in texts], strict=True)
                ranked = np.argsort(-row, kind="stable")[:count]
                assert [int(index) for index in indices] == ranked.tolist()
                assert list(values) == [f"{row[index]:f}" for index in ranked]
                assert labels[0] == DIGITS[digit]


def check_classes_of_text_are_refused(address: str) -> None:
    wanted = triton.InferRequestedOutput("shout", class_count=1)
    text = tensor("text", np.array([b"a"], np.object_), "BYTES")
    assert refused(address, "upper", [text], outputs=[wanted]) == (
        "400",
        "class result not available for output due to unsupported type 'BYTES'",
    )


# ---------------------------------------------------------------------------------------------------------------- text


def check_text(address: str) -> None:
    of_bytes = np.array([b"stra\xc3\x9fe", b"", b"a" * 70_000], np.object_)
    of_str = np.array(["straße", "", "a" * 70_000], np.object_)
    expected = ["STRASSE", "", "A" * 70_000]
    with connect(address) as client:
        for array, binary_in, binary_out in product((of_bytes, of_str), (True, False), (True, False)):
            inputs = [tensor("text", array, "BYTES", binary_in)]
            shout = client.infer("upper", inputs, outputs=asked("shout", binary=binary_out)).as_numpy("shout")
            assert [text.decode() if isinstance(text, bytes) else text for text in shout] == expected


# --------------------------------------------------------------------------------------------------------- compression


def check_compression(address: str) -> None:
    with connect(address) as client:
        for sent, wanted, binary in product(CODINGS, CODINGS, (True, False)):
            result = client.infer(
                "add_sub",
                operands(binary=binary),
                outputs=asked("OUTPUT0", "OUTPUT1", binary=binary),
                request_compression_algorithm=sent,
                response_compression_algorithm=wanted,
            )
            assert is_sum_and_difference(result), (sent, wanted, binary)


def check_answers_really_are_compressed(address: str) -> None:
    """The client's own codec around a transport that shows the answer's headers."""
    body, json_bytes = triton.InferenceServerClient.generate_request_body(operands())
    for coding in ("gzip", "deflate"):
        headers = {"Inference-Header-Content-Length": str(json_bytes), "Accept-Encoding": coding}
        url = f"http://{address}/v2/models/add_sub/infer"
        with requests.post(url, body, headers=headers, stream=True, timeout=10) as answer:
            assert answer.headers["Content-Encoding"] == coding
            header_bytes = int(answer.headers["Inference-Header-Content-Length"])
            content = answer.raw.read(decode_content=False)
        parse = triton.InferenceServerClient.parse_response_body
        assert is_sum_and_difference(parse(content, header_length=header_bytes, content_encoding=coding))


# ------------------------------------------------------------------------------------------------------ many at a time


def check_async_infer(address: str) -> None:
    with connect(address, concurrency=4) as client:
        firsts = [np.full((1, 16), number, np.int32) for number in range(40)]
        pending = [client.async_infer("add_sub", operands(first), request_id=str(first[0, 0])) for first in firsts]
        for first, waiting in zip(firsts, pending, strict=True):
            result = waiting.get_result(timeout=10)
            assert is_sum_and_difference(result, first)
            assert result.get_response()["id"] == str(first[0, 0])


def check_async_infer_raises_when_asked_for_its_result(address: str) -> None:
    with connect(address, concurrency=4) as client:
        bad, good = client.async_infer("absent", operands()), client.async_infer("add_sub", operands())
        assert is_sum_and_difference(good.get_result(timeout=10))
        error = raised(lambda: bad.get_result(timeout=10))
    assert error.status() == "404"


def check_threads_with_a_client_each(address: str) -> None:
    wrong: list[object] = []

    def work(number: int) -> None:
        try:
            with connect(address) as client:
                for step in range(25):
                    first = np.full((1 + step % 8, 16), number * 1000 + step, np.int32)
                    assert is_sum_and_difference(client.infer("add_sub", operands(first, first)), first, first)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong


# -------------------------------------------------------------------------------------------------------------- errors


def raised(call: Callable[[], object]) -> InferenceServerException:
    return checks.raised(InferenceServerException, call)


def refused(address: str, model: str, inputs: list[triton.InferInput], **options: Any) -> tuple[str, str]:
    with connect(address) as client:
        error = raised(lambda: client.infer(model, inputs, **options))
    return error.status(), error.message()


def check_unknown_models_and_versions(address: str) -> None:
    assert refused(address, "absent", operands()) == ("404", "Request for unknown model: 'absent' is not found")
    assert refused(address, "add_sub", operands(), model_version="7") == (
        "404",
        "Request for unknown model: 'add_sub' version 7 is not found",
    )
    with connect(address) as client:
        assert raised(lambda: client.get_model_metadata("absent")).status() == "404"


def check_wrong_shape(address: str) -> None:
    short = np.zeros((1, 4), np.int32)
    status, message = refused(address, "add_sub", operands(short, short), request_id="x")
    assert status == "400"
    wanted = "[request id: x] unexpected shape for input 'INPUT1' for model 'add_sub'. Expected [-1,16], got [1,4]. "
    assert message.startswith(wanted)


def check_wrong_datatype(address: str) -> None:
    floats = [tensor("INPUT0", INPUT0.astype(np.float32), "FP32"), tensor("INPUT1", INPUT1, "INT32")]
    assert refused(address, "add_sub", floats) == (
        "400",
        "[request id: <id_unknown>] inference input 'INPUT0' data-type is 'FP32', but model 'add_sub' expects 'INT32'",
    )


def check_wrong_names_and_numbers(address: str) -> None:
    named = tensor("INPUT9", INPUT1, "INT32")
    status, message = refused(address, "add_sub", operands()[:1])
    assert status == "400"
    assert "missing required input(s) ['INPUT1']" in message
    assert refused(address, "add_sub", [operands()[0], named]) == (
        "400",
        "unexpected inference input 'INPUT9' for model 'add_sub'",
    )
    assert refused(address, "add_sub", operands(), outputs=asked("OUTPUT9")) == (
        "400",
        "unexpected inference output 'OUTPUT9' for model 'add_sub'",
    )
    nine = np.zeros((9, 16), np.int32)
    status, message = refused(address, "add_sub", operands(nine, nine))
    assert (status, message.endswith("inference request batch-size must be <= 8 for 'add_sub'")) == ("400", True)


def check_errors_of_compressed_requests_are_readable(address: str) -> None:
    for coding in ("gzip", "deflate"):
        status, message = refused(
            address, "absent", operands(), request_compression_algorithm=coding, response_compression_algorithm=coding
        )
        assert (status, message) == ("404", "Request for unknown model: 'absent' is not found")


def check_a_model_refuses_in_its_own_words(address: str) -> None:
    no_text = tensor("text", np.array([b"\xff"], np.object_), "BYTES")
    assert refused(address, "upper", [no_text]) == ("400", "model 'upper' takes UTF-8 only")


def check_decoupled_models_need_a_stream(address: str) -> None:
    start = tensor("start", np.array([3], np.int32), "INT32")
    assert refused(address, "countdown", [start]) == (
        "501",
        "HTTP end point doesn't support models with decoupled transaction policy",
    )


if __name__ == "__main__":
    checks.main(globals())
