"""Triton's Python models behind the real scheduler: tensors, requests, batches, errors."""

import asyncio
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import yaml
from waiting import until

from tensorgate.gateway.contract.canonical import Sequence as RequestSequence
from tensorgate.gateway.contract.errors import (
    AlreadyExists,
    Cancelled,
    GatewayError,
    InvalidArgument,
    ModelFailed,
    NotFound,
    Unavailable,
    Unknown,
    Unsupported,
)
from tensorgate.gateway.contract.tensor import DTYPES
from tensorgate.gateway.engine.pending_request import PendingRequest

WITHIN_S = 10.0
X = {"name": "x", "datatype": "FP32", "shape": [-1]}
Y = {"name": "y", "datatype": "FP32", "shape": [-1]}
BATCHED: dict[str, Any] = {
    "max_batch_size": 8,
    "inputs": [X | {"shape": [-1, 2]}],
    "outputs": [Y | {"shape": [-1, 2]}],
}


# ------------------------------------------------------------------------------------------------- tensors in and out


async def test_a_model_as_the_examples_show_it(world: Any) -> None:
    world.model(
        "add_sub",
        """
        import json
        import numpy as np
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def initialize(self, args):
                self.model_config = model_config = json.loads(args["model_config"])
                out0 = pb_utils.get_output_config_by_name(model_config, "OUTPUT0")
                out1 = pb_utils.get_output_config_by_name(model_config, "OUTPUT1")
                assert pb_utils.get_input_config_by_name(model_config, "INPUT1")["dims"] == [4]
                assert pb_utils.get_input_config_by_name(model_config, "nothing") is None
                self.output0_dtype = pb_utils.triton_string_to_numpy(out0["data_type"])
                self.output1_dtype = pb_utils.triton_string_to_numpy(out1["data_type"])

            def execute(self, requests):
                responses = []
                for request in requests:
                    in_0 = pb_utils.get_input_tensor_by_name(request, "INPUT0")
                    in_1 = pb_utils.get_input_tensor_by_name(request, "INPUT1")
                    assert pb_utils.get_input_tensor_by_name(request, "INPUT2") is None
                    out_0, out_1 = (in_0.as_numpy() + in_1.as_numpy(), in_0.as_numpy() - in_1.as_numpy())
                    tensor_0 = pb_utils.Tensor("OUTPUT0", out_0.astype(self.output0_dtype))
                    tensor_1 = pb_utils.Tensor("OUTPUT1", out_1.astype(self.output1_dtype))
                    responses.append(pb_utils.InferenceResponse(output_tensors=[tensor_0, tensor_1]))
                return responses

            def finalize(self):
                print("Cleaning up...")
        """,
        inputs=[{"name": f"INPUT{n}", "datatype": "FP32", "shape": [4]} for n in (0, 1)],
        outputs=[{"name": f"OUTPUT{n}", "datatype": "INT32", "shape": [4]} for n in (0, 1)],
    )
    await world.start()
    inputs = {"INPUT0": np.arange(4, dtype=np.float32), "INPUT1": np.ones(4, np.float32)}
    both = await world.one("add_sub", inputs=inputs)
    assert {k: (v.dtype.name, v.tolist()) for k, v in both.outputs.items()} == {
        "OUTPUT0": ("int32", [1, 2, 3, 4]),
        "OUTPUT1": ("int32", [-1, 0, 1, 2]),
    }
    only = await world.one("add_sub", (), "OUTPUT1", inputs=inputs)
    assert list(only.outputs) == ["OUTPUT1"]


SAMPLES: dict[str, list[Any]] = {
    "BOOL": [True, False, True, True],
    "BYTES": [b"", b"\xff\x00", "é".encode(), b"abc"],
    **{name: [0, 1, 2, 3] for name in DTYPES if name not in ("BOOL", "BYTES")},
}


async def test_every_datatype_passes_through_bit_by_bit(world: Any) -> None:
    body = """
    def execute(self, requests):
        out = []
        for request in requests:
            (tensor,) = request.inputs()
            array = tensor.as_numpy()
            assert list(array.shape) == tensor.shape()
            assert pb_utils.triton_to_numpy_type(tensor.triton_dtype()) == array.dtype.type
            assert pb_utils.numpy_to_triton_type(array.dtype.type) == tensor.triton_dtype()
            assert tensor.is_cpu()
            out.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", array)]))
        return out
    """
    for datatype in DTYPES:
        spec = {"datatype": datatype, "shape": None}
        world.model(f"m{datatype}", body, inputs=[X | spec], outputs=[Y | spec])
    await world.start()
    for datatype, values in SAMPLES.items():
        whole = np.array(values, DTYPES[datatype])
        for array in (whole, whole.reshape(2, 2).T, whole[::2], whole[:0], whole[1:2].reshape(())):
            got = (await world.one(f"m{datatype}", inputs={"x": array})).outputs["y"]
            assert (got.dtype, got.shape, got.tolist()) == (array.dtype, array.shape, array.tolist())
            assert got.flags.c_contiguous


async def test_text_leaves_as_bytes(world: Any) -> None:
    world.model(
        "m",
        """
        def execute(self, requests):
            kinds = {"U": np.array(["é", "b"]), "S": np.array([b"ab", b"c"]), "O": np.array(["é", b"\\xff"], object),
                     "broken": np.array(["\\ud800"])}
            return [pb_utils.InferenceResponse([pb_utils.Tensor("y", kinds[json.loads(r.parameters())["kind"]])])
                    for r in requests]
        """,
        outputs=[Y | {"datatype": "BYTES"}],
    )
    await world.start()
    want = {"U": ["é".encode(), b"b"], "S": [b"ab", b"c"], "O": ["é".encode(), b"\xff"]}
    broken = await world.error("m", parameters={"kind": "broken"})
    assert str(broken).startswith("UnicodeEncodeError: 'utf-8' codec can't encode character")
    for kind, elements in want.items():
        assert await world.y("m", parameters={"kind": kind}) == elements


async def test_a_model_may_write_to_what_it_gets_and_to_what_it_gave(world: Any) -> None:
    world.model(
        "m",
        """
        def initialize(self, args):
            self.buffer = np.zeros(2, np.float32)
        def execute(self, requests):
            x = x_of(requests[0])
            x += 1
            self.buffer[:] = x
            return [pb_utils.InferenceResponse([pb_utils.Tensor("y", self.buffer)])]
        """,
    )
    await world.start()
    mine = np.array([1, 2], np.float32)
    mine.flags.writeable = False
    first = await world.one("m", inputs={"x": mine})
    second = await world.one("m", inputs={"x": mine[:1].repeat(2)})
    assert (mine.tolist(), first.outputs["y"].tolist(), second.outputs["y"].tolist()) == ([1, 2], [2, 3], [2, 2])


async def test_big_endian_and_strided_outputs_leave_native_and_dense(world: Any) -> None:
    world.model(
        "m",
        """
        def execute(self, requests):
            return [pb_utils.InferenceResponse([pb_utils.Tensor("y", np.arange(6, dtype=">f4")[::-2])])]
        """,
    )
    await world.start()
    got = (await world.one("m")).outputs["y"]
    assert (got.dtype, got.tolist(), got.flags.c_contiguous) == (np.dtype(np.float32), [5, 3, 1], True)


async def test_dlpack_round_trips_every_number(world: Any) -> None:
    names = [name for name in DTYPES if name != "BYTES"]
    world.model(
        "m",
        """
        def execute(self, requests):
            (tensor,) = requests[0].inputs()
            assert tensor.__dlpack_device__() == (1, 0)
            name = json.loads(requests[0].parameters())["by"]
            if name == "capsule":
                out = pb_utils.Tensor.from_dlpack("y", tensor.to_dlpack())
            else:
                out = pb_utils.Tensor.from_dlpack("y", tensor)
            assert out.triton_dtype() == tensor.triton_dtype()
            return [pb_utils.InferenceResponse([out])]
        """,
        inputs=[{"name": name, "datatype": name, "shape": None, "optional": True} for name in names],
        outputs=[Y | {"datatype": "FP32"}],
    )
    for name in names:
        world.models[f"m{name}"] = world.models["m"] | {
            "inputs": [X | {"datatype": name, "shape": None}],
            "outputs": [Y | {"datatype": name, "shape": None}],
        }
    await world.start()
    for name in names:
        array = np.array(SAMPLES[name], DTYPES[name]).reshape(2, 2)
        array.flags.writeable = False
        for by in ("capsule", "object"):
            got = (await world.one(f"m{name}", inputs={"x": array}, parameters={"by": by})).outputs["y"]
            assert (got.dtype, got.tolist()) == (array.dtype, array.tolist())


async def test_numpy_takes_a_tensor_by_dlpack_and_text_has_none(world: Any) -> None:
    world.model(
        "m",
        """
        def execute(self, requests):
            tensor = pb_utils.get_input_tensor_by_name(requests[0], "x")
            array = np.from_dlpack(tensor)
            assert array.tolist() == tensor.as_numpy().tolist()
            text = pb_utils.Tensor("t", np.array([b"a"], object))
            try:
                text.to_dlpack()
            except TypeError as error:
                assert str(error) == "DLPack does not have support for string tensors."
            else:
                raise AssertionError
            return [y(array)]
        """,
    )
    await world.start()
    assert await world.y("m", [1, 2]) == [1, 2]


async def test_bf16_is_an_array_of_ml_dtypes(world: Any) -> None:
    spec = {"datatype": "BF16"}
    world.model(
        "m",
        """
        def execute(self, requests):
            return [pb_utils.InferenceResponse([pb_utils.Tensor("y", x_of(request) * 2)]) for request in requests]
        """,
        inputs=[X | spec],
        outputs=[Y | spec],
    )
    await world.start()
    got = (await world.one("m", inputs={"x": np.array([1.5], ml_dtypes.bfloat16)})).outputs["y"]
    assert (got.dtype, got.tolist()) == (np.dtype(ml_dtypes.bfloat16), [3.0])


async def test_optional_inputs_and_requested_outputs(world: Any) -> None:
    world.model(
        "m",
        """
        def execute(self, requests):
            out = []
            for request in requests:
                bias = pb_utils.get_input_tensor_by_name(request, "bias")
                value = x_of(request) + (0 if bias is None else bias.as_numpy())
                names = ",".join(request.requested_output_names())
                out.append(pb_utils.InferenceResponse([
                    pb_utils.Tensor("unheard_of", value), pb_utils.Tensor("names", np.array([names], object)),
                    pb_utils.Tensor("y", value)]))
            return out
        """,
        inputs=[X, {"name": "bias", "datatype": "FP32", "shape": [-1], "optional": True}],
        outputs=[Y, {"name": "names", "datatype": "BYTES", "shape": [1]}],
    )
    await world.start()
    x = np.ones(1, np.float32)
    got = [
        (await world.one("m", (), *names, inputs=inputs)).outputs
        for names, inputs in (((), {"x": x}), (("names",), {"x": x, "bias": x}), (("y",), {"x": x, "bias": x}))
    ]
    assert [{name: array.tolist() for name, array in outputs.items()} for outputs in got] == [
        {"y": [1], "names": [b"y,names"]},
        {"names": [b"names"]},
        {"y": [2]},
    ]


# ------------------------------------------------------------------------------------------------ requests and batches


async def test_what_a_request_tells(world: Any) -> None:
    world.model(
        "m",
        """
        def execute(self, requests):
            out = []
            for r in requests:
                assert isinstance(r, pb_utils.InferenceRequest)
                facts = [r.request_id(), r.correlation_id(), r.model_name(), r.flags(), r.timeout(), r.trace(),
                         r.preferred_memory(), r.is_cancelled(), r.requested_output_names(), json.loads(r.parameters())]
                r.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL)
                out.append(pb_utils.InferenceResponse(
                    [pb_utils.Tensor("y", np.array([json.dumps(facts)], object))], parameters={"a": 1, "b": "t"}))
            return out
        """,
        outputs=[Y | {"datatype": "BYTES"}],
    )
    await world.start()
    parameters = {"i": 2**40, "b": True, "f": 0.5, "s": "é"}
    answer = await world.one(
        "m", id="r1", parameters=parameters, sequence=RequestSequence("s1", end=True), queue_timeout_us=7_000_000
    )
    assert dict(answer.parameters) == {"a": 1, "b": "t"}
    assert yaml.safe_load(answer.outputs["y"][0].decode()) == [
        *("r1", "s1", "m", 2, 7_000_000, None, None, False, ["y"]),
        parameters,
    ]
    plain = await world.one("m")
    assert yaml.safe_load(plain.outputs["y"][0].decode())[:5] == ["", 0, "m", 0, 0]
    first = await world.one("m", sequence=RequestSequence(0, start=True, end=True))
    assert yaml.safe_load(first.outputs["y"][0].decode())[:5] == ["", 0, "m", 3, 0], "flags without an id are shown"


async def test_sequences_by_correlation_id_and_flags(world: Any) -> None:
    world.model(
        "m",
        """
        def initialize(self, args):
            self.sums = {}
        def execute(self, requests):
            out = []
            for request in requests:
                who = request.correlation_id()
                if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
                    self.sums[who] = 0
                self.sums[who] += x_of(request)
                total = self.sums[who]
                if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END:
                    del self.sums[who]
                out.append(y(total))
            return out
        """,
    )
    await world.start()
    steps = [(7, 1, True, False), ("a", 10, True, False), (7, 2, False, True), ("a", 20, False, True)]
    got = [await world.y("m", [x], sequence=RequestSequence(who, start, end)) for who, x, start, end in steps]
    assert got == [[1], [10], [3], [30]]


async def test_requests_of_several_sequences_come_in_one_call_and_none_comes_twice(world: Any) -> None:
    """As in Triton, where a call of execute that fails is the end of each of its requests."""
    world.model(
        "m",
        """
        gate = threading.Event()
        def initialize(self, args):
            self.sums, self.calls = {}, []
        def execute(self, requests):
            assert self.gate.wait(50)
            self.calls.append([request.correlation_id() for request in requests])
            for request in requests:
                who = request.correlation_id()
                self.sums[who] = self.sums.get(who, 0) + x_of(request)[0]
            if any(x_of(request)[0] == 99 for request in requests):
                raise ValueError("99")
            return [y([self.sums[request.correlation_id()]]) for request in requests]
        """,
        sequences={},
        max_batch_size=4,
        inputs=[X | {"shape": [-1]}],
        outputs=[Y | {"shape": [-1]}],
    )
    await world.start()
    model = world.python("m")
    jobs = [world.submit("m", [n], sequence=RequestSequence(n, start=True)) for n in (1, 2, 3)]
    jobs += [world.submit("m", [x], sequence=RequestSequence(n)) for n, x in ((1, 10), (2, 99))]
    model.gate.set()
    found = [await anext(job) for job in jobs[:3]]
    assert [answer.outputs["y"].tolist() for answer in found] == [[1], [2], [3]]
    failed = await asyncio.gather(*map(anext, jobs[3:]), return_exceptions=True)
    assert [type(error) for error in failed] == [ModelFailed] * 2
    assert await world.y("m", [0], sequence=RequestSequence(1)) == [11]
    assert model.calls == [[1, 2, 3], [1, 2], [1]]


HELD = """
gate = threading.Event()
def initialize(self, args):
    self.sizes = []
def execute(self, requests):
    if x_of(requests[0]).flat[0] == 99:
        assert self.gate.wait(50)
    self.sizes.append(len(requests))
    out = []
    for request in requests:
        x = x_of(request)
        if x.flat[0] < 0:
            out.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("negative", 3)))
        elif x.flat[0] == 666:
            raise ValueError("the beast")
        else:
            out.append(y(2 * x))
    return out
"""


async def outcomes(jobs: Sequence[PendingRequest]) -> list[Any]:
    async def outcome(job: PendingRequest) -> Any:
        try:
            return (await anext(job)).outputs["y"].tolist()
        except GatewayError as error:
            return error

    async with asyncio.timeout(WITHIN_S):
        return [await outcome(job) for job in jobs]


async def test_execute_gets_the_requests_of_a_batch_each_with_its_own_rows(world: Any) -> None:
    world.model("m", HELD, **BATCHED)
    await world.start()
    model = world.python("m")
    jobs = [world.submit("m", [[99, 0]])]
    await until(lambda: world.app.repository.snapshot.models["m"][1].running)
    jobs += [world.submit("m", x) for x in ([[1, 2]], [[3, 4], [5, 6]], [[-1, 0]], [[7, 8]])]
    model.gate.set()
    got = await outcomes(jobs)
    assert model.sizes == [1, 4]
    assert isinstance(got[3], InvalidArgument)
    assert got[3].text == "negative"
    assert [got[0], got[1], got[2], got[4]] == [[[198, 0]], [[2, 4]], [[6, 8], [10, 12]], [[14, 16]]]


async def test_an_exception_fails_its_batch_once_and_nobody_else(world: Any) -> None:
    world.model("m", HELD, **BATCHED)
    await world.start()
    model = world.python("m")
    jobs = [world.submit("m", [[99, 0]])]
    await until(lambda: world.app.repository.snapshot.models["m"][1].running)
    jobs += [world.submit("m", x) for x in ([[1, 2]], [[666, 0]])]
    model.gate.set()
    got = await outcomes(jobs)
    text = "Failed to process the request(s) for model 'm_0', message: ValueError: the beast"
    assert [error.text for error in got[1:]] == [text, text]
    assert model.sizes == [1, 2]
    assert await world.y("m", [[1, 1]]) == [[2, 2]]


async def test_without_dynamic_batching_in_the_configuration_nobody_shares_execute(world: Any) -> None:
    config = {
        "max_batch_size": 8,
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [2]}],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [2]}],
    }
    more: dict[str, Any]
    for name, more in (("alone", {}), ("shared", {"dynamic_batching": {}})):
        world.model(name, HELD, max_batch_size=8, inputs=None, outputs=None, triton_config=config | more)
    await world.start()
    assert [spec.shape for spec in world.view("alone").inputs.values()] == [(-1, 2)]
    for name, sizes in (("alone", [1, 1, 1]), ("shared", [1, 2])):
        jobs = [world.submit(name, [[99, 0]])]
        await until(lambda: world.app.repository.snapshot.models[name][1].running)  # noqa: B023
        jobs += [world.submit(name, [[1, 2]]) for _ in range(2)]
        world.python(name).gate.set()
        await outcomes(jobs)
        assert world.python(name).sizes == sizes


# -------------------------------------------------------------------------------------------------------------- errors

CODES = [
    ("UNKNOWN", Unknown),
    ("INTERNAL", ModelFailed),
    ("NOT_FOUND", NotFound),
    ("INVALID_ARG", InvalidArgument),
    ("UNAVAILABLE", Unavailable),
    ("UNSUPPORTED", Unsupported),
    ("ALREADY_EXISTS", AlreadyExists),
    ("CANCELLED", Cancelled),
]


async def test_every_code_of_a_triton_error_is_a_kind(world: Any) -> None:
    world.model(
        "m",
        """
        def execute(self, requests):
            name = json.loads(requests[0].parameters()).get("code")
            error = pb_utils.TritonError("said " + name, getattr(pb_utils.TritonError, name)) if name else (
                pb_utils.TritonError("said so"))
            return [pb_utils.InferenceResponse(output_tensors=[], error=error)]
        """,
    )
    await world.start()
    for name, kind in CODES:
        error = await world.error("m", parameters={"code": name})
        assert (type(error), str(error)) == (kind, f"said {name}")
    unsaid = await world.error("m")
    assert (type(unsaid), str(unsaid)) == (ModelFailed, "said so")


BEFORE = "Failed to process the request(s) for model 'm_0', message: "
ENTRY = "Expected an 'InferenceResponse' object in the execute function return list, found type "
WRONG = [
    ("raise ValueError('no such word')", BEFORE + "ValueError: no such word"),
    ("raise KeyError", BEFORE + "KeyError"),
    ("raise SystemExit", BEFORE + "SystemExit"),
    ("raise pb_utils.TritonModelException('no')", BEFORE + "TritonModelException: no"),
    ("return 5", BEFORE + "Expected a list in the execute return value"),
    ("return tuple()", BEFORE + "Expected a list in the execute return value"),
    ("return None", "the model has dropped the request without a final response"),
    ("return [None]", BEFORE + ENTRY + "'<class 'NoneType'>'."),
    ("return ['y']", BEFORE + ENTRY + "'<class 'str'>'."),
    (
        "return []",
        BEFORE + "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
        "InferenceRequest(s) size is:1, and InferenceResponse(s) size is:0\n",
    ),
    ("pb_utils.Tensor('y', np.zeros(1, complex))", BEFORE + "ValueError: no tensor can be of dtype complex128"),
    ("pb_utils.Tensor('y', [1])", BEFORE + "TypeError: Tensor 'y' is made of a NumPy array, not of list"),
    ("pb_utils.InferenceResponse(['y'])", BEFORE + "TritonModelException: output_tensors has a str among its tensors"),
    ("pb_utils.InferenceResponse(error='no')", BEFORE + "TypeError: error is a TritonError, not a str"),
    ("pb_utils.TritonError('no', 99)", BEFORE + "ValueError: 99 is no code of TritonError"),
    (
        "pb_utils.InferenceResponse(parameters={'a': []})",
        BEFORE + "TritonModelException: Expect parameters values to have type bool/int/str, found type <class 'list'>",
    ),
    (
        "pb_utils.InferenceResponse(parameters={'a': 0.5})",
        BEFORE + "TritonModelException: Expect parameters values to have type bool/int/str, found type <class 'float'>",
    ),
    (
        "pb_utils.InferenceResponse(parameters={1: 'a'})",
        BEFORE + "TritonModelException: Expect parameters keys to have type str, found type <class 'int'>",
    ),
    (
        "pb_utils.load_model('other')",
        BEFORE + "TritonModelException: cannot load model 'other': a model may not load models here",
    ),
    (
        "requests[0].set_release_flags(3)",
        BEFORE + "TritonModelException: unknown release flags 3",
    ),
]


async def test_what_goes_wrong_in_execute_is_said_in_a_line(world: Any) -> None:
    lines = "\n".join(f"    {'if' if n == 0 else 'elif'} n == {n}: {line}" for n, (line, _) in enumerate(WRONG))
    world.model("m", f"def execute(self, requests):\n    n = json.loads(requests[0].parameters())['n']\n{lines}")
    await world.start()
    for number, (_, text) in enumerate(WRONG):
        error = await world.error("m", parameters={"n": number})
        assert (type(error), str(error)) == (ModelFailed, text)
    assert "/" not in "".join(text for _, text in WRONG).replace("bool/int/str", "")


async def test_an_output_of_another_dtype_than_configured_is_passed_on(world: Any) -> None:
    """As Triton does: the answer says what the model gave."""
    world.model(
        "m",
        "def execute(self, requests):\n"
        "    tensor = pb_utils.Tensor('y', np.arange(2, dtype=np.int64))\n"
        "    return [pb_utils.InferenceResponse([tensor]) for request in requests]",
    )
    await world.start()
    answer = await world.one("m")
    assert (answer.outputs["y"].dtype, answer.outputs["y"].tolist()) == (np.int64, [0, 1])


FOUR = """
def execute(self, requests):
    return [y(np.zeros(4)) for request in requests]
"""


async def test_an_output_of_another_shape_than_the_yaml_declares_is_refused(world: Any) -> None:
    declared = {"name": "y", "datatype": "FP32", "shape": [2, 3]}
    world.model("m", FOUR, outputs=[declared])
    sends = "def execute(self, requests):\n    requests[0].get_response_sender().send(y(np.zeros(4)), 1)"
    world.model("stream", sends, outputs=[declared], decoupled=True)
    config = {
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1]}],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [2, 3]}],
    }
    world.model("triton", FOUR, inputs=None, outputs=None, triton_config=config)
    await world.start()
    for name in ("m", "stream"):
        error = await world.error(name)
        text = f"output 'y' of model '{name}' has shape [4], but [2, 3] is declared"
        assert (type(error), str(error)) == (ModelFailed, text)
    assert await world.y("triton") == [0, 0, 0, 0], "as Triton does with a configuration of its own"


UNPRINTABLE = """
class Mute(BaseException):
    def __str__(self):
        raise SystemExit(3)

def execute(self, requests):
    if json.loads(requests[0].parameters())['n']:
        raise ValueError("\\udcff is no text")
    raise self.Mute
"""


async def test_a_model_outlives_exceptions_that_cannot_be_said(world: Any) -> None:
    world.model("m", UNPRINTABLE)
    await world.start()
    for number, text in ((0, "Mute"), (1, "ValueError: ? is no text")) * 2:
        error = await world.error("m", parameters={"n": number})
        assert (type(error), str(error)) == (ModelFailed, BEFORE + text)
