"""What each dialect says of its addresses, against the addresses that it answers."""

import re
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
from jsonschema import Draft202012Validator

from tensorgate.adapters.api_schemas import identifier
from tensorgate.adapters.open_inference.routes import ENDPOINTS
from tensorgate.gateway.app import registries
from tensorgate.gateway.contract.api import ApiPart
from tensorgate.gateway.contract.call import Call
from tensorgate.gateway.contract.canonical import ModelRef, ModelView, MustForward
from tensorgate.gateway.contract.dialect import Dialect
from tensorgate.gateway.contract.questions import ApiDocument
from tensorgate.gateway.openapi.address import ADDRESS

FILLED = {"model": "m", "version": "1", "label": "x", "kind": "system", "region": "r"}
OWN_PATH = {"customized_predict_http": {"path": "/own"}}


def dialect(name: str, **options: Any) -> Dialect:
    kind = registries().dialects[name]
    return kind.make(kind.options(**options))


DIALECTS = {
    "open_inference": dialect("open_inference"),
    "tf_serving": dialect("tf_serving"),
    "grps": dialect("grps"),
    "openai": dialect("openai"),
    "grps at a path of its own": dialect("grps", **OWN_PATH),
    "grps, always 200": dialect("grps", http_status="always_200"),
}
MODELS: dict[str, dict[str, Any]] = {
    "one": {"inputs": {"x": ("FP32", (-1, 4))}, "outputs": {"y": ("FP32", (-1, 2))}, "max_batch_size": 8},
    "two inputs": {
        "inputs": {"a": ("INT64", (-1,)), "b": ("BOOL", (2, 3))},
        "outputs": {"c": ("UINT8", (1,)), "d_bytes": ("BYTES", (-1,))},
    },
    "texts": {"inputs": {"t": ("BYTES", (1,))}, "outputs": {"u": ("BYTES", (1,))}},
    "half/floats": {"inputs": {"x": ("FP16", (2,))}, "outputs": {"y": ("BF16", (2,))}},
    "any-rank": {"inputs": {"x": ("FP64", None)}, "outputs": {"y": ("INT32", ())}},
    "streams": {"inputs": {"n": ("INT32", (1,))}, "outputs": {"n": ("INT32", (1,))}, "decoupled": True},
    "classes": {
        "inputs": {"x": ("BYTES", (-1,))},
        "outputs": {"s": ("FP32", (-1, 3))},
        "signatures": {"serving_default": ({"inputs": "x"}, {"scores": "s"}), "other": ({"x": "x"}, {"s": "s"})},
    },
}


def part_of(spoken: Dialect, view: ModelView | None = None, version: int | None = None) -> ApiPart:
    assert spoken.api is not None
    return spoken.api.server() if view is None else spoken.api.model(view, version)


def filled(path: str) -> str:
    return re.sub(r"\{(\w+)\}", lambda found: FILLED[found[1]], path)


@pytest.mark.parametrize("name", DIALECTS)
def test_each_described_address_is_answered_by_what_it_says(name: str) -> None:
    spoken = DIALECTS[name]
    operations = part_of(spoken).operations
    for operation in operations:
        endpoint = spoken.match(operation.method, filled(operation.path)).endpoint
        assert (endpoint.method, endpoint.admin) == (operation.kind, operation.admin), operation.path
        named = {each["name"] for each in operation.parameters if each["in"] == "path"}
        assert named == set(re.findall(r"\{(\w+)\}", operation.path))
    assert len({operation.id for operation in operations}) == len(operations)
    assert len({(operation.method, operation.path) for operation in operations}) == len(operations)


def test_no_address_of_v2_is_left_out() -> None:
    described = {f"{each.method} {each.path}" for each in part_of(DIALECTS["open_inference"]).operations}
    assert described == {endpoint.address for endpoint in ENDPOINTS} - {"GET /v2/"}


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("version", [None, 1])
def test_a_models_addresses_are_answered_and_its_schemas_are_schemas(
    name: str, model: str, version: int | None, make_model: Callable[..., ModelView]
) -> None:
    spoken, view = DIALECTS[name], make_model(model, **MODELS[model])
    part = part_of(spoken, view, version)
    for operation in part.operations:
        match = spoken.match(operation.method, operation.path)
        assert match.endpoint.method == operation.kind, operation.path
        if "infer/predict" not in operation.path:  # where the model stands in the query
            assert match.args["model"] == model
            assert match.args.get("version") == (None if version is None else str(version))
    known = {**part_of(spoken).schemas, **part.schemas}
    for schema in known.values():
        Draft202012Validator.check_schema(schema)  # type: ignore[arg-type]
        assert references(schema) <= known.keys()
    bodies = [content for each in part.operations for content in (each.request, each.reply)]
    assert references(bodies) <= known.keys()


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"].removeprefix("#/components/schemas/")} if "$ref" in value else set[str]()
        return own.union(*map(references, value.values()))
    return set[str]().union(*map(references, value)) if isinstance(value, (list, tuple)) else set()


def kinds(name: str, model: str, make_model: Callable[..., ModelView]) -> set[str]:
    return {each.kind for each in part_of(DIALECTS[name], make_model(model, **MODELS[model])).operations}


def test_only_what_a_model_can_answer_is_described(make_model: Callable[..., ModelView]) -> None:
    ask = {"metadata", "model_ready", "config", "statistics", "api_document"}
    assert kinds("open_inference", "one", make_model) == ask | {"infer"}
    assert kinds("open_inference", "texts", make_model) == ask | {"infer", "generate", "generate_stream"}
    assert kinds("open_inference", "streams", make_model) == ask | {"generate", "generate_stream"}
    assert kinds("tf_serving", "one", make_model) == {"status", "metadata", "infer"}
    assert kinds("tf_serving", "classes", make_model) == {"status", "metadata", "infer", "classify"}
    assert kinds("tf_serving", "half/floats", make_model) == {"status", "metadata"}
    assert kinds("tf_serving", "streams", make_model) == {"status", "metadata"}


def test_identifiers_are_words_and_differ_where_names_do() -> None:
    names = ["a", "a_b", "a-b", "a.b", "a b", "_a_b", "ä", "", "..."]
    found = [identifier(name) for name in names]
    assert found[:2] == ["a", "a_b"]
    assert len({*found}) == len(found)
    assert all(re.fullmatch(r"[A-Za-z0-9_]+", each) for each in found)


def test_a_model_whose_calls_another_server_answers_is_described_here(make_model: Callable[..., ModelView]) -> None:
    view = make_model("one", **MODELS["one"])

    def forward(ref: ModelRef) -> NoReturn:
        raise MustForward(view)

    v2 = DIALECTS["open_inference"]
    for spoken, target in ((v2, "/v2/models/one/openapi.json"), (ADDRESS, "/openapi.json?model=one")):
        match = spoken.match("GET", target)
        call = Call(b"", "GET", target, {}, "http", match.args, listener=("here", "a:1"))
        question = match.endpoint.decode(call, forward)
        assert isinstance(question, ApiDocument)
        assert (question.view, question.listener) == (view, ("here", "a:1"))
