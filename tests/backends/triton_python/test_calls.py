"""What a model asks of other models: once, awaited, streamed, in vain, of itself, and for callers who have left."""

import asyncio
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import until

from tensorgate.backends.triton_python.calls import ModelCalls, Question
from tensorgate.backends.triton_python.exchange import Run
from tensorgate.gateway.contract.canonical import InferRequest, ModelRef
from tensorgate.gateway.contract.errors import (
    DeadlineExceeded,
    InvalidArgument,
    ModelFailed,
    ModelUnavailable,
    NotFound,
)

DOUBLE = """
def execute(self, requests):
    return [y(2 * x_of(request)) for request in requests]
"""
COUNT = """
def execute(self, requests):
    sender, x = requests[0].get_response_sender(), x_of(requests[0])
    for number in range(int(x[0])):
        sender.send(y([number]))
    if x[0] > 5:
        error = pb_utils.TritonError("too many", pb_utils.TritonError.UNAVAILABLE)
        sender.send(pb_utils.InferenceResponse(error=error))
    else:
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
ASK = """
def ask(self, x, **more):
    return pb_utils.InferenceRequest(
        model_name=more.pop("model_name", "double"), requested_output_names=more.pop("requested_output_names", ["y"]),
        inputs=[pb_utils.Tensor("x", x)], **more)
"""


async def test_a_model_asks_another(world: Any) -> None:
    world.model("double", DOUBLE)
    world.model(
        "m",
        ASK
        + """
def execute(self, requests):
    out = []
    for request in requests:
        x = x_of(request)
        first = self.ask(x, request_id="7", trace=request.trace(),
                         preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU, 0)).exec()
        assert not first.has_error(), first.error()
        assert (first.error(), first.id(), first.is_last_response()) == (None, "7", True)
        assert first.parameters() == "{}"
        got = pb_utils.get_output_tensor_by_name(first, "y").as_numpy()
        got += 1  # it is this model's own
        out.append(y(self.ask(got).exec().output_tensors()[0].as_numpy()))
    return out
""",
    )
    await world.start()
    assert await world.y("m", [1, 2]) == [6, 10]


async def test_a_model_awaits_several_at_once(world: Any, tmp_path: Path) -> None:
    go = tmp_path / "go"
    waits = f"    while not __import__('os').path.exists({str(go)!r}):\n        time.sleep(0.001)\n    return"
    world.model("double", DOUBLE.replace("    return", waits), instances=4)
    world.model(
        "m",
        ASK
        + """
async def execute(self, requests):
    x = x_of(requests[0])
    started = [self.ask(x + n).async_exec() for n in range(3)]
    answers = [*await asyncio.gather(*started), await self.ask(x + 3).async_exec()]
    return [y([answer.output_tensors()[0].as_numpy()[0] for answer in answers])]
""",
    )
    await world.start()
    asked = asyncio.ensure_future(world.y("m", [1]))
    await until(lambda: world.app.repository.snapshot.models["double"][1].running == 3)
    go.touch()
    assert await asked == [2, 4, 6, 8]


async def test_a_model_hears_all_answers_of_a_decoupled_one(world: Any) -> None:
    world.model("double", COUNT, decoupled=True)
    for name, wait in (("m", ""), ("am", "await ")):
        world.model(
            name,
            ASK
            + f"""
{"async " if wait else ""}def execute(self, requests):
    request = self.ask(x_of(requests[0]))
    heard = []
    for response in {wait + "request.async_exec(decoupled=True)" if wait else "request.exec(decoupled=True)"}:
        if response.has_error():
            heard.append(-response.error().code())
        elif response.output_tensors():
            heard += response.output_tensors()[0].as_numpy().tolist()
        else:
            heard.append(99)
    return [y(heard)]
""",
        )
    world.model(
        "first",
        ASK
        + """
def execute(self, requests):
    answers = self.ask(x_of(requests[0])).exec(decoupled=True)
    got = next(answers).output_tensors()[0].as_numpy()
    answers.cancel()
    return [y([*got, len(list(answers))])]
""",
    )
    world.model(
        "wrong",
        ASK
        + """
def execute(self, requests):
    return [pb_utils.InferenceResponse(error=self.ask(x_of(requests[0])).exec().error())]
""",
    )
    await world.start()
    for name in ("m", "am"):
        # The end that comes without an answer is an empty one, as Triton has it; an error is the end itself.
        assert [await world.y(name, [n]) for n in (0, 3, 7)] == [[99], [0, 1, 2, 99], [0, 1, 2, 3, 4, 5, 6, -4]]
    assert await world.y("first", [5]) == [0, 5], "a model that does not look goes on"
    assert type(await world.error("wrong", [1])).__name__ == "Unsupported"


@pytest.mark.parametrize("way", ["exec(decoupled=True)", "async_exec(decoupled=True)"])
async def test_a_model_that_is_asked_to_stop_is_heard_to_the_end(world: Any, way: str) -> None:
    world.model(
        "double",
        """
def execute(self, requests):
    sender = requests[0].get_response_sender()
    while not sender.is_cancelled():
        sender.send(y([1]))
        time.sleep(0.001)
    assert requests[0].is_cancelled()
    sender.send(y([2]))
    error = pb_utils.TritonError("as you like", pb_utils.TritonError.CANCELLED)
    sender.send(pb_utils.InferenceResponse(error=error), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
""",
        decoupled=True,
    )
    is_async = way.startswith("async")
    world.model(
        "m",
        ASK
        + f"""
{"async " if is_async else ""}def execute(self, requests):
    answers = {"await " if is_async else ""}self.ask(x_of(requests[0])).{way}
    heard = []
    for answer in answers:
        if answer.has_error():
            assert (answer.error().message(), answer.error().code()) == ("as you like", pb_utils.TritonError.CANCELLED)
            heard.append(-1)
            continue
        heard += answer.output_tensors()[0].as_numpy().tolist()
        if len(heard) == 3:
            answers.cancel()
    answers.cancel()
    return [y([*heard[:3], *heard[-2:]])]
""",
    )
    await world.start()
    assert await world.y("m", [1]) == [1, 1, 1, 2, -1]


async def test_a_decoupled_model_asks_from_its_threads(world: Any) -> None:
    world.model("double", DOUBLE)
    world.model(
        "m",
        ASK
        + """
def execute(self, requests):
    threading.Thread(target=self.answer, args=(requests[0].get_response_sender(), x_of(requests[0]))).start()
def answer(self, sender, x):
    for number in range(3):
        x = self.ask(x).exec().output_tensors()[0].as_numpy()
        sender.send(y(x))
    sender.send(flags=1)
""",
        decoupled=True,
    )
    await world.start()
    assert await asyncio.gather(*(world.ys("m", [n]) for n in (1, 3))) == [[[2], [4], [8]], [[6], [12], [24]]]


REFUSALS = [
    (
        {"model_name": "nobody"},
        NotFound,
        "Model nobody - Error when running inference: "
        "Failed for execute the inference request. Model 'nobody' is not ready.",
    ),
    (
        {"model_version": 9},
        NotFound,
        "Model double - Error when running inference: "
        "Failed for execute the inference request. Model 'double' is not ready.",
    ),
    ({"requested_output_names": ["q"]}, InvalidArgument, "model 'double' has no output 'q'"),
    ({"inputs": []}, InvalidArgument, "model 'double' takes 1 to 1 inputs, got [], missing ['x']"),
    ({"inputs": "Z"}, InvalidArgument, "model 'double' has no input 'z'"),
    ({"inputs": "INT32"}, InvalidArgument, "input 'x' of model 'double' is INT32, expected FP32"),
    ({"inputs": "2D"}, InvalidArgument, "input 'x' of model 'double' has shape [1, 1], expected [-1]"),
    (
        {"inputs": "BAD"},
        ModelFailed,
        "Failed to process the request(s) for model 'double_0', message: ValueError: bad",
    ),
]


async def test_what_others_refuse_is_an_error_response(world: Any) -> None:
    world.model(
        "double",
        """
        def execute(self, requests):
            if len(x_of(requests[0])) == 3:
                raise ValueError("bad")
            return [y(x_of(request)) for request in requests]
        """,
    )
    world.model(
        "m",
        """
        tensors = {"Z": pb_utils.Tensor("z", np.zeros(1, np.float32)),
                   "INT32": pb_utils.Tensor("x", np.zeros(1, np.int32)),
                   "2D": pb_utils.Tensor("x", np.zeros((1, 1), np.float32)),
                   "BAD": pb_utils.Tensor("x", np.zeros(3, np.float32)),
                   "X": pb_utils.Tensor("x", np.zeros(1, np.float32))}
        def execute(self, requests):
            more = json.loads(json.loads(requests[0].parameters())["more"])
            inputs = more.pop("inputs", "X")
            question = {"model_name": "double", "inputs": [self.tensors[inputs]] if inputs else [],
                        "requested_output_names": ["y"], **more}
            response = pb_utils.InferenceRequest(**question).exec()
            assert response.has_error() and response.output_tensors() == []
            return [pb_utils.InferenceResponse(error=response.error(), parameters={})]
        """,
    )
    await world.start()
    for more, kind, text in REFUSALS:
        error = await world.error("m", parameters={"more": json.dumps(more)})
        assert (type(error), str(error)) == (kind, text)


async def test_sequences_parameters_and_time_travel_with_the_question(world: Any) -> None:
    world.model(
        "double",
        """
        def execute(self, requests):
            (r,) = requests
            facts = [r.request_id(), r.correlation_id(), r.flags(), r.timeout(), json.loads(r.parameters())]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array([json.dumps(facts)], object))])]
        """,
        outputs=[{"name": "y", "datatype": "BYTES", "shape": [-1]}],
    )
    world.model(
        "m",
        ASK
        + """
def execute(self, requests):
    asked = self.ask(x_of(requests[0]), request_id="q", correlation_id=9, timeout=4_000_000, parameters={"k": "v"},
                     flags=pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
                     | pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END)
    assert asked.model_name() == "double" and asked.inputs()[0].name() == "x"
    return [pb_utils.InferenceResponse([asked.exec().output_tensors()[0]])]
""",
        outputs=[{"name": "y", "datatype": "BYTES", "shape": [-1]}],
    )
    await world.start()
    assert await world.y("m", [1]) == [b'["q", 9, 3, 4000000, {"k": "v"}]']


async def test_whoever_asked_the_model_pays_for_what_it_asks() -> None:
    asked: list[str] = []

    def submit(request: InferRequest) -> Any:
        asked.append(request.cancellation.share)
        raise ModelUnavailable("double")

    view: Any = SimpleNamespace(
        name="double", decoupled=False, inputs={}, outputs={}, max_batch_size=0, handle=SimpleNamespace(submit=submit),
        configuration={}, instances=1,
    )  # fmt: skip
    asking: Any = SimpleNamespace(name="m", handle=object())
    request = InferRequest(asking, {})
    request.cancellation.share = "team-a"
    calls = ModelCalls(lambda ref: view, lambda: None)
    question = Question(ModelRef("double"), {}, (), "", None, 0, {})
    for parent in (Run([request], {}, decoupled=False), None):
        with pytest.raises(ModelUnavailable):
            calls._submit(question, parent, stream=False)
    assert asked == ["team-a", ""]


async def test_whether_another_is_ready(world: Any) -> None:
    world.model("double", DOUBLE)
    world.model(
        "m",
        """
        def initialize(self, args):
            assert pb_utils.is_model_ready("double") and not pb_utils.is_model_ready("m")
        def execute(self, requests):
            ready = pb_utils.is_model_ready
            return [y([ready("double"), ready("double", "1"), ready("double", "2"), ready(model_name="nobody")])]
        """,
    )
    await world.start()
    assert world.errors == {}
    assert await world.y("m") == [1, 1, 0, 0]


# ------------------------------------------------------------------------------------------------------------ deadlocks

ITSELF = (
    ASK
    + """
def execute(self, requests):
    out = []
    for request in requests:
        x = x_of(request)
        if x[0] <= 0:
            out.append(y(x))
            continue
        response = self.ask(x - 1, model_name=request.model_name()).exec()
        error = response.error()
        if error:
            out.append(pb_utils.InferenceResponse(error=error))
        else:
            out.append(y(response.output_tensors()[0].as_numpy() + 10))
    return out
"""
)


async def test_a_model_may_ask_itself_while_an_instance_is_left(world: Any) -> None:
    world.model("m", ITSELF, instances=3)
    world.model("alone", ITSELF)
    await world.start()
    assert [await world.y("m", [n]) for n in (0, 1, 2)] == [[0], [10], [20]]
    error = await world.error("m", [3])
    assert (type(error), error.text) == (
        ModelFailed,
        "model 'm' is asked by itself while all its instances (3) wait for the answer",
    )
    assert "model 'alone' is asked by itself" in str(await world.error("alone", [1]))
    assert await world.y("alone", [0]) == [0]


async def test_a_ring_of_models_is_found(world: Any) -> None:
    for name, other in (("a", "b"), ("b", "a")):
        world.model(name, ITSELF.replace("request.model_name()", f"'{other}'"))
    await world.start()
    assert await world.y("a", [1]) == [10]
    assert "model 'a' is asked by itself" in str(await world.error("a", [2]))


HANGING = (
    ASK
    + """
def execute(self, requests):
    response = self.ask(x_of(requests[0])).exec()
    self.heard = response.error().message() if response.has_error() else ""
    return [pb_utils.InferenceResponse(error=response.error()) if self.heard else y([1])]
"""
)
NEVER = """
kept = []
def execute(self, requests):
    self.kept.append(requests[0].get_response_sender())
"""


async def test_a_question_has_no_more_time_than_who_waits_for_it(world: Any) -> None:
    world.model("double", NEVER)
    world.model("m", HANGING)
    await world.start()
    with pytest.raises(DeadlineExceeded):
        await world.all("m", [1], deadline=time.monotonic() + 0.2)
    models = world.app.repository.snapshot.models
    await until(lambda: not (models["m"][1].running or models["double"][1].running))
    job = world.submit("m", [1])
    await until(lambda: models["double"][1].running)
    job.abandon()
    await until(lambda: not (models["m"][1].running or models["double"][1].running))
    assert world.python("m").heard == "nobody waits for the answer any more"


async def test_a_coroutine_that_awaits_the_first_of_many_answers_holds_up_no_other(world: Any, tmp_path: Path) -> None:
    """Triton: L0_backend_python/async_execute, test_concurrent_execute_multi_request_bls."""
    world.model(
        "later",
        f"""
        def execute(self, requests):
            threading.Thread(target=self.answer, args=(requests[0].get_response_sender(),)).start()
        def answer(self, sender):
            while not __import__('os').path.exists({str(tmp_path / "go")!r}):
                time.sleep(0.001)
            sender.send(y([7]), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        """,
        decoupled=True,
    )
    world.model(
        "m",
        ASK.replace("double", "later")
        + """
async def execute(self, requests):
    sender = requests[0].get_response_sender()
    for response in await self.ask(x_of(requests[0])).async_exec(decoupled=True):
        sender.send(response)
    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
""",
        decoupled=True,
    )
    await world.start()
    asked = [asyncio.ensure_future(world.ys("m", [n])) for n in range(3)]
    await until(lambda: world.app.repository.snapshot.models["later"][1].running == 3)
    (tmp_path / "go").touch()
    assert await asyncio.gather(*asked) == [[[7]]] * 3
