"""A list of models in place of all that are served, as TensorFlow Serving's callers send it: bytes in, bytes out."""

import asyncio
import json
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from waiting import stays, steps, until

from tensorgate.adapters.protobuf.messages import message
from tensorgate.adapters.tf_serving.proto_routes import GRPC_ENDPOINTS
from tensorgate.adapters.tf_serving.routes import match
from tensorgate.gateway.app import registries
from tensorgate.gateway.config import ModelConfig, load_config, model_validator
from tensorgate.gateway.contract.backend import BackendKind
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelRef
from tensorgate.gateway.contract.errors import Code
from tensorgate.gateway.contract.execution import Computation, Executor, Observe
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.questions import ServerDescription
from tensorgate.gateway.contract.tensor import DTYPES, TensorSpec
from tensorgate.gateway.local_engine import LocalEngine
from tensorgate.gateway.models.catalog import YamlCatalog
from tensorgate.gateway.models.loader import LoadReport, RepositoryDeps
from tensorgate.gateway.models.meters import Meters
from tensorgate.gateway.models.repository import Repository
from tensorgate.gateway.monitoring.metrics import MetricsCollector
from tensorgate.gateway.routing.router import Router
from tensorgate.gateway.service import Service

RELOAD = GRPC_ENDPOINTS["/tensorflow.serving.ModelService/HandleReloadConfigRequest"]
STATUS = GRPC_ENDPOINTS["/tensorflow.serving.ModelService/GetModelStatus"]
STATES = {0: "UNKNOWN", 10: "START", 20: "LOADING", 30: "AVAILABLE", 40: "UNLOADING", 50: "END"}
CONTROL = "model_control: {mode: explicit, load: ['*'], model_roots: [roots]}\n"
MODELS = "models: {a: {backend: onnx, path: roots/a, instances: 2}}\n"


OTHER = ", other: {backend: onnx, path: roots/other}}\n"


class Still(Options):
    """Options of a backend that multiplies."""

    uses: tuple[str, ...] = ()


class Flat(Options):
    """Options of a backend without version folders."""

    path: None = None
    uses: tuple[str, ...] = ()


class Scale(Executor):
    """y = x * factor."""

    runs_on: Literal["thread", "loop"] = "thread"
    inline = False
    decoupled = False
    merges = True

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def run(self, requests: Sequence[InferRequest], observe: Observe) -> Iterable[Sequence[InferResponse]]:
        yield [InferResponse({"y": request.inputs["x"] * np.float32(self.factor)}) for request in requests]

    def arun(self, requests: Sequence[InferRequest], observe: Observe) -> AsyncIterator[Sequence[InferResponse]]:
        raise AssertionError

    def close(self) -> None:
        pass


BACKENDS: dict[str, Any] = {
    "onnx": BackendKind(Still, Any, parts=lambda model: model.uses),  # type: ignore[arg-type]
    "flat": BackendKind(Flat, Any, versioned=False, parts=lambda model: model.uses),  # type: ignore[arg-type]
}


class World:
    """A gateway without listeners; a version's model.onnx holds the factor, or "held", or what fails."""

    def __init__(self, folder: Path, sections: str, models: str) -> None:
        (folder / "gateway.yaml").write_text(f"{sections}{models}")
        self.kinds = kinds = replace(registries(), backends=BACKENDS)
        config = load_config(folder / "gateway.yaml", kinds)
        self.folder = folder
        self.hold = threading.Event()
        self.loads: list[tuple[str, int]] = []
        self.reports: list[LoadReport] = []
        validate = model_validator(kinds)
        deps = RepositoryDeps(
            self.load,
            Meters(),
            lambda model: BACKENDS[model.backend].versioned,
            lambda model: BACKENDS[model.backend].parts(model),
            validate,
        )
        self.repository = Repository(YamlCatalog(config, None, validate), deps, config.model_control)
        self.router = Router(config, self.repository)
        engine = LocalEngine(self.repository, self.router)
        self.metrics = MetricsCollector(engine)
        self.repository.deps.meters.on_forget = self.metrics.forget
        self.service = Service(config, engine, self.metrics, ServerDescription("t", "1"))

    def load(self, config: ModelConfig, name: str, version: int, path: Path) -> Computation:
        text = (path / "model.onnx").read_text() if config.backend == "onnx" else "1"
        if text == "held":
            assert self.hold.wait(10)
            text = "1"
        self.loads.append((name, version))
        x, y = (TensorSpec(name, DTYPES["FP32"], None) for name in "xy")
        return Computation((Scale(float(text)),), (x,), (y,), (x,), int(config.max_batch_size), "test", "cpu")

    async def start(self) -> None:
        await self.repository.load_all(self.reports.append)
        self.service.started = True

    async def call(self, endpoint: Any, body: bytes, **call: Any) -> Reply:
        replies: list[Reply] = []

        async def send(reply: Reply) -> None:
            replies.append(reply)

        await self.service.handle("tf_serving", endpoint, Call(body, "POST", "/", {}, "grpc", **call), send)
        return replies[0]

    async def reload(self, *models: str, metrics: Sequence[str] = ()) -> tuple[Code, str]:
        """Models in text format -> what the caller learns."""
        request = text_message("ReloadConfigRequest", f"config {{ model_config_list {{ {' '.join(models)} }} }}")
        request.metric_names.extend(metrics)
        reply = await self.call(RELOAD, request.SerializeToString())
        self.answer = message("tensorflow.serving.ReloadConfigResponse").FromString(bytes(reply.body))  # type: ignore[arg-type]
        return reply.grpc_code, reply.message

    async def predict(self, target: str) -> Any:
        """Factor, or the error's text, of `a`, `a/versions/1` or `a/labels/stable`."""
        found = match("POST", f"/v1/models/{target}:predict")
        reply = await self.call(found.endpoint, b'{"inputs": 1.0}', args=found.args)
        parts = [reply.body] if isinstance(reply.body, bytes) else reply.body
        answer = json.loads(b"".join([bytes(part) for part in parts]))
        return answer.get("outputs", answer.get("error"))

    async def states(self, name: str) -> dict[int, str]:
        """As both transports tell them."""
        request = text_message("GetModelStatusRequest", f'model_spec {{ name: "{name}" }}')
        reply = await self.call(STATUS, request.SerializeToString())
        over_grpc = message("tensorflow.serving.GetModelStatusResponse").FromString(bytes(reply.body))  # type: ignore[arg-type]
        found = match("GET", f"/v1/models/{name}")
        reply = await self.call(found.endpoint, b"", args=found.args)
        over_http = json.loads(bytes(reply.body)).get("model_version_status", [])  # type: ignore[arg-type]
        states = {each.version: STATES[each.state] for each in over_grpc.model_version_status}
        assert {int(each["version"]): each["state"] for each in over_http} == states
        assert list(states) == sorted(states, reverse=True)
        return states

    def put(self, path: str, factor: Any, file: str = "model.onnx") -> None:
        (self.folder / path).mkdir(parents=True, exist_ok=True)
        (self.folder / path / file).write_text(str(factor))

    def entry(self, name: str, more: str = "", base: str = "") -> str:
        """A model of the list, in text format."""
        platform = "" if "model_type" in more else 'model_platform: "tensorflow"'
        place = base or self.folder / "roots" / name
        return f'config {{ name: "{name}" base_path: "{place}" {platform} {more} }}'

    async def settled(self) -> None:
        """Until nothing is loaded or unloaded any more."""
        await self.until(lambda: not (self.repository._work or self.repository._closing))

    async def until(self, what: Callable[[], bool]) -> None:
        await until(what)


def text_message(kind: str, text: str) -> Any:
    from google.protobuf import text_format

    return text_format.Parse(text, message(f"tensorflow.serving.{kind}")())


def specific(*versions: int) -> str:
    return f"model_version_policy {{ specific {{ {' '.join(f'versions: {version}' for version in versions)} }} }}"


def labels(**pairs: int) -> str:
    return " ".join(f'version_labels {{ key: "{label}" value: {version} }}' for label, version in pairs.items())


ALL = "model_version_policy { all {} }"
OK = (Code.OK, "")


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Callable[..., World]]:
    """make(sections, YAML of models): a world over tmp_path, in which roots/a/1 and roots/a/2 are."""
    worlds: list[World] = []
    for version in (1, 2):
        (tmp_path / f"roots/a/{version}").mkdir(parents=True)
        (tmp_path / f"roots/a/{version}/model.onnx").write_text(str(version))

    def world(sections: str = CONTROL, models: str = MODELS) -> World:
        worlds.append(World(tmp_path, sections, models))
        return worlds[-1]

    yield world
    for each in worlds:
        each.hold.set()
        await each.repository.close()


# ------------------------------------------------------------------------------------------------- what a list changes


async def test_the_list_says_what_is_served(make: Any) -> None:
    world = make()
    await world.start()
    world.put("roots/sub/b/00000007", 7)
    world.put("roots/sub/b/notes", 0)
    assert await world.predict("a") == 2.0
    assert await world.reload(world.entry("a"), world.entry("b", base=str(world.folder / "roots/sub/b"))) == OK
    assert world.answer.HasField("status")
    assert (await world.predict("a"), await world.predict("b"), await world.predict("b/versions/7")) == (2.0, 7.0, 7.0)
    assert world.loads == [("a", 2), ("b", 7)]  # what serves already, and has not changed, goes on as it is
    assert world.repository.configuration("a")["instances"] == 2
    assert await world.reload(world.entry("b", base=str(world.folder / "roots/sub/b"))) == OK
    await world.until(lambda: "a" not in world.repository.snapshot.models)
    assert await world.predict("a") == "Servable not found for request: Latest(a)"
    assert await world.predict("a/versions/2") == "Servable not found for request: Specific(a, 2)"
    await world.settled()
    assert await world.states("a") == {2: "END"}  # as long as the process lives
    assert await world.reload() == OK
    await world.until(lambda: not world.repository.snapshot.models)
    assert world.service.ready
    assert await world.reload(world.entry("a")) == OK
    assert (await world.predict("a"), await world.states("a")) == (2.0, {2: "AVAILABLE"})


async def test_policies(make: Any) -> None:
    world = make()
    world.put("roots/a/0", 0.5)
    await world.start()
    for policy, want in (
        (specific(1, 9), {1: "AVAILABLE", 2: "END"}),
        (ALL, {0: "AVAILABLE", 1: "AVAILABLE", 2: "AVAILABLE"}),
        (specific(0), {0: "AVAILABLE", 1: "END", 2: "END"}),
        ("model_version_policy { latest { num_versions: 2 } }", {0: "END", 1: "AVAILABLE", 2: "AVAILABLE"}),
        ("model_version_policy { latest { num_versions: 0 } }", {0: "END", 1: "END", 2: "AVAILABLE"}),
        (specific(0, 1), {0: "AVAILABLE", 1: "AVAILABLE", 2: "END"}),
        ("model_version_policy { }", {0: "END", 1: "END", 2: "AVAILABLE"}),
    ):
        assert await world.reload(world.entry("a", policy)) == OK
        serving = {version for version, state in want.items() if state == "AVAILABLE"}
        await world.until(lambda serving=serving: set(world.repository.snapshot.models["a"]) == serving)
        await world.settled()
        assert {0: "END", **await world.states("a")} == {0: "END", **want}
        assert await world.predict("a") == {0: 0.5}.get(max(serving), max(serving))
        assert set(world.router.resolve(ModelRef("a")).versions) == serving
    assert await world.reload(world.entry("a", specific(0))) == OK
    await world.until(lambda: set(world.repository.snapshot.models["a"]) == {0})
    assert await world.predict("a/versions/0") == 0.5
    assert world.router.resolve(ModelRef("a")).configuration["versions"] == [0]


async def test_labels_are_replaced_whole_and_at_once(make: Any) -> None:
    world = make(models="models: {a: {backend: onnx, path: roots/a, versions: all, labels: {old: 1, early: 3}}}\n")
    await world.start()
    assert await world.predict("a/labels/old") == 1.0
    assert await world.predict("a/labels/early") == "Servable not found for request: Specific(a, 3)"
    assert await world.reload(world.entry("a", ALL + labels(stable=1, same=1, canary=2))) == OK
    assert [await world.predict(f"a/labels/{label}") for label in ("stable", "same", "canary")] == [1.0, 1.0, 2.0]
    assert await world.predict("a/labels/old") == "Unrecognized servable version label: old"
    assert len(world.loads) == 2  # labels load nothing
    flips = 0

    async def ask() -> None:
        nonlocal flips
        while flips < 20:
            assert await world.predict("a/labels/stable") in (1.0, 2.0)
            await asyncio.sleep(0)

    asking = [asyncio.ensure_future(ask()) for _ in range(4)]
    for flips in range(1, 21):
        assert await world.reload(world.entry("a", ALL + labels(stable=1 + flips % 2))) == OK
        assert await world.predict("a/labels/stable") == 1 + flips % 2
    await asyncio.gather(*asking)
    world.put("roots/a/3", 3)
    refused = "Request to assign label to version 3 of model a, which is not currently available for inference"
    assert await world.reload(world.entry("a", ALL + labels(stable=3))) == (Code.FAILED_PRECONDITION, refused)
    assert await world.predict("a/labels/stable") == 1.0
    assert await world.states("a") == {2: "AVAILABLE", 1: "AVAILABLE"}
    # Checked before anything is loaded or unloaded: what serves now may go, and the label then leads nowhere.
    assert await world.reload(world.entry("a", specific(3) + labels(last=2))) == OK
    await world.until(lambda: set(world.repository.snapshot.models["a"]) == {3})
    assert await world.predict("a/labels/last") == "Servable not found for request: Specific(a, 2)"
    assert await world.reload(world.entry("a", specific(3) + labels(last=3))) == OK
    assert await world.predict("a/labels/last") == 3.0
    assert await world.reload() == OK
    await world.until(lambda: not world.repository.snapshot.models)
    assert await world.predict("a/labels/last") == "Unrecognized servable version label: last"


async def test_a_label_of_a_model_that_never_came_names_its_version(make: Any) -> None:
    world = make(models="models: {a: {backend: onnx, path: roots/a, versions: [9], labels: {stable: 9}}}\n")
    await world.start()
    assert await world.predict("a/labels/stable") == "Servable not found for request: Specific(a, 9)"
    assert (
        await world.call(STATUS, text_message("GetModelStatusRequest", 'model_spec { name: "a" }').SerializeToString())
    ).message == ("Could not find any versions of model a")


async def test_only_new_models_are_waited_for(make: Any) -> None:
    world = make()
    await world.start()
    world.put("roots/a/3", "held")
    world.put("roots/b/1", "held")
    assert await world.reload(world.entry("a")) == OK
    await world.until(lambda: (3, "LOADING") in {(s.version, s.state) for s in world.repository.statuses("a")})
    assert await world.states("a") == {3: "LOADING", 2: "AVAILABLE"}
    assert await world.predict("a") == 2.0  # until the new one is there
    reloading = asyncio.ensure_future(world.reload(world.entry("a"), world.entry("b")))
    await world.until(lambda: "b" in world.repository._states and bool(world.repository._states["b"].statuses))
    assert (await world.states("b"), reloading.done()) == ({1: "LOADING"}, False)
    assert await world.predict("b") == "Servable not found for request: Latest(b)"
    world.hold.set()
    assert await reloading == OK
    assert await world.predict("b") == 1.0
    await world.until(lambda: set(world.repository.snapshot.models["a"]) == {3})


async def test_a_version_that_fails_keeps_the_one_that_serves(make: Any) -> None:
    world = make()
    await world.start()
    world.put("roots/a/3", "rubbish")
    (world.folder / "roots/a/4").mkdir()
    assert await world.reload(world.entry("a", specific(3, 4))) == OK
    await world.until(lambda: {s.state for s in world.repository.statuses("a")} == {"END", "AVAILABLE"})
    assert await world.states("a") == {4: "END", 3: "END", 2: "AVAILABLE"}
    assert await world.predict("a") == 2.0
    found = match("GET", "/v1/models/a/versions/3")
    reply = await world.call(found.endpoint, b"", args=found.args)
    assert json.loads(bytes(reply.body))["model_version_status"] == [  # type: ignore[arg-type]
        {
            "version": "3",
            "state": "END",
            "status": {
                "error_code": "INVALID_ARGUMENT",
                "error_message": "could not convert string to float: 'rubbish'",
            },
        }
    ]
    assert {s.version: s.code for s in world.repository.statuses("a") if s.error} == {
        3: Code.INVALID_ARGUMENT,
        4: Code.NOT_FOUND,
    }


async def test_a_new_model_that_fails_is_told(make: Any) -> None:
    world = make()
    await world.start()
    world.put("roots/b/1", "rubbish")
    code, text = await world.reload(world.entry("b"))
    assert (code, text) == (
        Code.UNKNOWN,
        "1 servable(s) did not become available: {{{name: b version: 1} due to error: INVALID_ARGUMENT: "
        "could not convert string to float: 'rubbish'}, }",
    )
    await world.until(lambda: "a" not in world.repository.snapshot.models)  # the list counts all the same
    assert await world.states("b") == {1: "END"}
    world.put("roots/b/2", 5)
    assert await world.reload(world.entry("b", ALL)) == OK
    assert await world.predict("b") == 5.0
    assert await world.states("b") == {2: "AVAILABLE", 1: "END"}


async def test_another_base_path(make: Any) -> None:
    world = make()
    await world.start()
    world.put("roots/elsewhere/1", 11)
    world.put("roots/elsewhere/2", 12)
    base = str(world.folder / "roots/elsewhere")
    assert await world.reload(world.entry("a", base=base)) == OK
    await world.until(lambda: len(world.loads) == 2)
    await world.until(lambda: world.repository.configuration("a")["path"] == base)
    assert await world.predict("a") == 12.0
    assert world.repository.configuration("a")["instances"] == 2
    await world.repository.load("a")  # another protocol's load is of what was listed
    assert await world.predict("a") == 12.0
    shutil.rmtree(world.folder / "roots/elsewhere/2")
    assert await world.reload(world.entry("a")) == OK
    await world.until(lambda: world.repository.configuration("a")["path"] == "roots/a")
    assert await world.predict("a") == 2.0


async def test_parts_stay_and_come_along(make: Any) -> None:
    models = "models: {a: {backend: onnx, path: roots/a}, both: {backend: flat, uses: [a, both]}}\n"
    world = make("model_control: {mode: explicit, model_roots: [roots]}\n", models)
    await world.start()
    assert await world.reload(world.entry("both", base="/nowhere")) == OK  # it has no folder, so no other one
    assert sorted(world.repository.snapshot.models) == ["a", "both"]
    assert await world.reload(world.entry("a")) == OK
    await world.until(lambda: sorted(world.repository.snapshot.models) == ["a"])
    assert world.loads.count(("a", 2)) == 1


# ----------------------------------------------------------------------------------------------------- what is refused


def entry(more: str = "", name: str = "b", base: str = "ROOT/b") -> str:
    return f'config {{ name: "{name}" base_path: "{base}" {more} }}'


TF = 'model_platform: "tensorflow"'
NOT_BELOW = "its base path lies below none of this server's model_control.model_roots"
NEITHER = (
    "Illegal setting neither ModelServerConfig::model_type (deprecated) nor ModelServerConfig::model_platform, "
    "model name is b"
)
REFUSED: list[tuple[str, Code, str]] = [
    (entry(TF) + entry(TF), Code.INVALID_ARGUMENT, "Illegal to list model b multiple times in config list"),
    *(
        (
            entry(TF, base=base),
            Code.INVALID_ARGUMENT,
            f"Expected model b to have an absolute path or URI; got base_path()={base}",
        )
        for base in ("", "b", "./b", "gs:/b", "1s://b")
    ),
    (entry(), Code.INVALID_ARGUMENT, NEITHER),
    (
        entry(TF + " model_type: TENSORFLOW"),
        Code.INVALID_ARGUMENT,
        NEITHER.replace("neither", "both").replace(" nor ", " and "),
    ),
    (entry("model_platform: 'caffe'"), Code.INVALID_ARGUMENT, "Model b requests unsupported platform caffe"),
    (
        entry("model_platform: 'caffe'", "a"),
        Code.INVALID_ARGUMENT,
        "Illegal to change a model's platform. For model a platform was tensorflow and new platform requested is caffe",
    ),
    (
        entry(TF + labels(stable=1)),
        Code.FAILED_PRECONDITION,
        "Request to assign label to version 1 of model b, which is not currently available for inference",
    ),
    *(
        (
            entry(TF, base=base),
            Code.INVALID_ARGUMENT,
            f"Model b cannot be loaded: {NOT_BELOW}",
        )
        for base in (
            *("/", "/etc", "/no/such/folder", "//", "ROOT/../secret", "ROOT/b/../../secret", "ROOTs", "ROOT/out"),
            *("ROOT/out/1", "ROOT/loop", "gs://bucket/b", "file://ROOT/b", "ROOT/b\\000"),
        )
    ),
    (entry(TF, "a", "ROOT/out"), Code.INVALID_ARGUMENT, f"Model a cannot be loaded: {NOT_BELOW}"),
    (
        entry(TF, base="ROOT/gone"),
        Code.INVALID_ARGUMENT,
        "Model b cannot be loaded: [Errno 2] No such file or directory: 'gone'",
    ),
    (
        entry(TF, base="ROOT/empty"),
        Code.INVALID_ARGUMENT,
        "Model b cannot be loaded: no version of it has a model.onnx or a saved_model.pb",
    ),
    (
        entry(TF + specific(5)),
        Code.INVALID_ARGUMENT,
        "Model b cannot be loaded: no versions of it found under base path ROOT/b",
    ),
    *(
        (
            entry(TF + specific(*versions)),
            Code.INVALID_ARGUMENT,
            "Model b cannot be loaded: expected latest, all, none, a list of versions like [1, 3], or {latest: 2}",
        )
        for versions in ((), (-1,))
    ),
    (
        entry(TF, base="ROOT/saved"),
        Code.INVALID_ARGUMENT,
        'Model b cannot be loaded: backend: found "tensorflow", expected one of flat, onnx',
    ),
    *(
        (
            entry(TF, name=name),
            Code.INVALID_ARGUMENT,
            f"Model {name} cannot be loaded: a model's name is not empty, and has neither / nor control characters",
        )
        for name in ("", "x/y")
    ),
]


@pytest.mark.parametrize(("models", "code", "text"), REFUSED)
async def test_what_is_refused_changes_nothing(make: Any, models: str, code: Code, text: str) -> None:
    world = make()
    await world.start()
    root = world.folder / "roots"
    world.put("secret/1", 666)
    world.put("roots/b/1", 3)
    world.put("roots/saved/1", 3, "saved_model.pb")
    (root / "empty").mkdir()
    (root / "out").symlink_to(world.folder / "secret")
    (root / "loop").symlink_to(root / "loop")
    assert await world.reload(world.entry("a", specific(2) + labels(stable=2))) == OK
    kept = world.entry("a", ALL + labels(canary=2)) if 'name: "a"' not in models else ""
    got, said = await world.reload(kept, models.replace("ROOT", str(root)))
    assert (got, said.replace(str(root), "ROOT")) == (code, text)
    assert await world.predict("a/labels/stable") == 2.0
    assert await world.predict("a/labels/canary") == "Unrecognized servable version label: canary"
    assert await world.states("a") == {2: "AVAILABLE"}
    assert world.loads == [("a", 2)]
    assert world.service.ready


async def test_other_configurations_are_no_lists(make: Any) -> None:
    world = make()
    await world.start()
    for text in ("", "config {}", "config { custom_model_config { type_url: 'x' } }"):
        reply = await world.call(RELOAD, text_message("ReloadConfigRequest", text).SerializeToString())
        assert (reply.grpc_code, reply.message) == (
            Code.INVALID_ARGUMENT,
            "ServerModelConfig type not supported by HandleReloadConfigRequest."
            " Only ModelConfigList is currently supported",
        )
    assert await world.predict("a") == 2.0


@pytest.mark.parametrize(
    "sections",
    ["", "model_control: {mode: poll}\n", "model_control: {mode: explicit, load: ['*']}\n"],
)
async def test_lists_are_refused_unless_roots_are_named(make: Any, sections: str) -> None:
    world = make(sections)
    await world.start()
    for models in ((), (world.entry("a"),)):
        code, text = await world.reload(*models)
        assert (code, "model_control: {mode: explicit, model_roots: [...]}" in text) == (Code.FAILED_PRECONDITION, True)
    assert await world.predict("a") == 2.0


# ------------------------------------------------------------------------------------------------------------- and more


async def test_the_deprecated_type_is_the_platform(make: Any) -> None:
    world = make()
    await world.start()
    assert await world.reload(world.entry("a", "model_type: TENSORFLOW")) == OK
    assert (await world.reload(world.entry("a", "model_type: OTHER")))[0] == Code.INVALID_ARGUMENT


async def test_what_is_counted_meanwhile(make: Any) -> None:
    world = make()
    await world.start()
    world.put("roots/b/1", "held")
    assert await world.predict("a") == 2.0
    names = ["/tensorflow/serving/request_count", "/unheard/of", "/unheard/of"]
    reloading = asyncio.ensure_future(world.reload(world.entry("a"), world.entry("b"), metrics=names))
    await world.until(lambda: "b" in world.repository._states)
    for _ in range(3):
        assert await world.predict("a") == 2.0
    world.hold.set()
    assert await reloading == OK
    counted = {each.name: each.int64_value_increase for each in world.answer.metric}
    assert counted == {"/tensorflow/serving/request_count": 3, "/unheard/of": 0}
    assert len(world.answer.metric) == 2


async def test_lists_one_after_the_other(make: Any) -> None:
    """Ten at once, while a caller of every version asks on: the last one counts."""
    world = make()
    world.put("roots/b/1", 5)
    await world.start()
    lists = [(world.entry("a", specific(1 + n % 2)), world.entry("b")) for n in range(10)]
    running = [asyncio.ensure_future(world.reload(*each)) for each in lists]
    while not all(each.done() for each in running):
        assert await world.predict("a") in (1.0, 2.0)
    assert [await each for each in running] == [OK] * 10
    await world.until(lambda: set(world.repository.snapshot.models["a"]) == {2})
    await world.settled()
    assert (await world.predict("a"), await world.predict("b")) == (2.0, 5.0)


async def test_lists_while_the_disk_is_followed(make: Any, tmp_path: Path) -> None:
    """What is listed is followed, and only that; a look at the disk that began before a list undoes nothing of it."""
    (tmp_path / "roots/other").mkdir()
    world = make("model_control: {mode: poll, poll_seconds: 0.01, model_roots: [roots]}\n", MODELS[:-2] + OTHER)
    world.put("roots/other/1", 8)
    await world.start()
    polling = asyncio.ensure_future(world.repository.keep_polling(world.reports.append))
    assert await world.predict("other") == 8.0
    assert await world.reload(world.entry("a", ALL)) == OK
    await world.until(lambda: set(world.repository.snapshot.models) == {"a"})
    world.put("roots/a/3", 3)
    world.put("roots/other/2", 9)
    await world.until(lambda: set(world.repository.snapshot.models["a"]) == {1, 2, 3})
    for turn in range(60):
        version = 1 + turn % 3
        world.put("roots/a/4", 4 + turn)  # the disk has always something new
        assert await world.reload(world.entry("a", ALL + labels(stable=version))) == OK
        for _ in range(3):
            assert await world.predict("a/labels/stable") == version
            await steps()
    await world.until(lambda: set(world.repository.snapshot.models["a"]) == {1, 2, 3, 4})
    assert await world.predict("a/labels/stable") == 3.0
    shutil.rmtree(world.folder / "roots/a/4")
    await world.until(lambda: set(world.repository.snapshot.models["a"]) == {1, 2, 3})
    assert (await world.reload(world.entry("a", specific(2)), world.entry("other"))) == OK
    await world.until(lambda: set(world.repository.snapshot.models["a"]) == {2})
    assert await world.predict("other") == 9.0
    await stays(lambda: set(world.repository.snapshot.models["a"]) == {2})
    polling.cancel()


async def test_a_list_lasts_until_the_configuration_has_other_models(make: Callable[..., World]) -> None:
    """A reload of the YAML that changes no model leaves a caller's list alone; one that does is the last word."""
    world = make(CONTROL, MODELS)
    await world.start()
    assert await world.reload(world.entry("a", specific(1))) == OK
    await world.settled()
    listed = world.repository.snapshot.models["a"]
    assert list(listed) == [1]
    for changed, versions in ((MODELS, [1]), (MODELS.replace("instances: 2", "instances: 3"), [2])):
        (world.folder / "gateway.yaml").write_text(CONTROL + changed)
        catalog = YamlCatalog(load_config(world.folder / "gateway.yaml", world.kinds))
        found = await world.repository.catalog_diff(catalog)
        await world.repository.load_changed(catalog, found, list(found.stored), world.reports.append)
        await world.repository.unload_removed(catalog, found)
        await world.settled()
        assert list(world.repository.snapshot.models["a"]) == versions
        assert (world.repository.snapshot.models["a"] is listed) is (versions == [1])
