"""The documents of the API over HTTP: requests and answers of the demo's models by their schemas, who gets to read
what, and the page that shows them. Clients that are generated from them: clients/openapi_http.py.
"""

import base64
import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError
from serving import Gateway, command, demo_config, one_process, running

Serve = Callable[[str], Gateway]
DIGESTS = {name: {"sha256": hashlib.sha256(name.encode()).hexdigest()} for name in ("root", "alice")}
MODELS = (
    "digits", "half_plus_two", "half_plus_three", "add_sub", "upper", "countdown", "writer", "embedder", "running_sum",
)  # fmt: skip


def operations(document: Any) -> Iterator[tuple[str, str, Any]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def check(document: Any, content: Any, body: Any) -> None:
    """Hold a body to the schema of its media type."""
    schema = {"$ref": "#/schema", "schema": content["application/json"]["schema"], "components": document["components"]}
    Draft202012Validator(schema).validate(body)


@pytest.mark.parametrize("model", MODELS)
def test_what_models_take_and_answer_fits_their_schemas(model: str, demo: Gateway) -> None:
    document = demo.get(f"/openapi.json?model={model}").json
    samples = next(each["samples"] for each in demo.get("/models.json").json if each["name"] == model)
    paths = {path for _, path, _ in operations(document)}  # generate is described for models of texts alone
    called = [sample for sample in samples if sample["path"].partition("?")[0] in paths]
    assert {sample["dialect"] for sample in called} == {sample["dialect"] for sample in samples}
    for method, path, operation in operations(document):
        if method == "get":
            answer = demo.get(path)
            assert answer.status == 200
            check(document, operation["responses"]["200"]["content"], answer.json)
    for sample in called:
        target, body = sample["path"], json.loads(sample["body"])
        operation = document["paths"][target.partition("?")[0]]["post"]
        content = operation["requestBody"]["content"]
        check(document, content, body)
        if model != "running_sum" and sample["kind"] in ("infer", "predict"):
            assert content["application/json"]["example"] == body
        if not sample["streams"]:
            answer = demo.post(target, body)
            assert answer.status == 200
            check(document, operation["responses"]["200"]["content"], answer.json)


def test_best_classes_and_failures_fit_theirs(demo: Gateway) -> None:
    document = demo.get("/v2/models/digits/openapi.json").json
    operation = document["paths"]["/v2/models/digits/infer"]["post"]
    body = operation["requestBody"]["content"]["application/json"]["example"]
    body["outputs"] = [{"name": "scores", "parameters": {"classification": 2}}]
    check(document, operation["requestBody"]["content"], body)
    answer = demo.post("/v2/models/digits/infer", body)
    check(document, operation["responses"]["200"]["content"], answer.json)
    body["inputs"][0]["shape"] = [1, 8, 9]
    answer = demo.post("/v2/models/digits/infer", body)
    name = operation["responses"][str(answer.status)]["$ref"].rpartition("/")[2]
    check(document, document["components"]["responses"][name]["content"], answer.json)


def test_a_model_of_sequences_wants_to_know_of_which(demo: Gateway) -> None:
    document = demo.get("/v2/models/running_sum/openapi.json").json
    content = document["paths"]["/v2/models/running_sum/infer"]["post"]["requestBody"]["content"]
    [tensor] = demo.get("/v2/models/running_sum").json["inputs"]
    shape = [max(size, 1) for size in tensor["shape"]]
    body: dict[str, Any] = {"inputs": [{**tensor, "shape": shape, "data": [1]}]}
    with pytest.raises(ValidationError, match="'parameters' is a required property"):
        check(document, content, body)
    assert demo.post("/v2/models/running_sum/infer", body).status == 400
    body["parameters"] = {"sequence_id": 7, "sequence_start": True, "sequence_end": True}
    check(document, content, body)
    assert demo.post("/v2/models/running_sum/infer", body).status == 200


@pytest.mark.parametrize(
    "wrong",
    [
        {"inputs": []},
        {"inputs": [{"name": "picture", "datatype": "FP32", "shape": [1, 8, 8], "data": [0.0] * 64}]},
        {"inputs": [{"name": "image", "datatype": "INT32", "shape": [1, 8, 8], "data": [0] * 64}]},
        {"inputs": [{"name": "image", "datatype": "FP32", "shape": [8, 8], "data": [0.0] * 64}]},
        {"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 8, 8], "data": ["0"] * 64}]},
    ],
)
def test_what_a_model_refuses_does_not_fit(wrong: Any, demo: Gateway) -> None:
    document = demo.get("/v2/models/digits/openapi.json").json
    schema = document["paths"]["/v2/models/digits/infer"]["post"]["requestBody"]["content"]["application/json"][
        "schema"
    ]
    assert not Draft202012Validator({**schema, "components": document["components"]}).is_valid(wrong)
    assert demo.post("/v2/models/digits/infer", wrong).status == 400


def test_the_servers_document_has_every_model_once(demo: Gateway) -> None:
    document = demo.get("/openapi.json").json
    assert document["openapi"] == "3.1.0"
    names = [operation["operationId"] for _, _, operation in operations(document)]
    assert len({*names}) == len(names)
    for model in MODELS:
        verb = "generate" if model in ("countdown", "writer") else "infer"
        assert f"{verb}_{model}" in names
    alone = demo.get("/openapi.json?dialect=grps").json
    assert {path.split("/")[1] for path in alone["paths"]} == {"grps"}


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/v2/models/nobody/openapi.json", 404, "Request for unknown model: 'nobody' is not found"),
        (
            "/v2/models/digits/versions/9/openapi.json",
            404,
            "Request for unknown model: 'digits' version 9 is not found",
        ),
        ("/openapi.json?model=nobody", 404, "there is no model nobody"),
        ("/openapi.json?model=digits&version=9", 404, "there is no model digits version 9"),
        ("/openapi.json?model=digits&version=x", 400, "version must be a number"),
        (
            "/openapi.json?dialect=soap",
            404,
            "dialect 'soap' is not described here, only open_inference, tf_serving, grps, openai",
        ),
    ],
)
def test_what_is_not_there(path: str, status: int, text: str, demo: Gateway) -> None:
    answer = demo.get(path)
    assert (answer.status, answer.json) == (status, {"error": text})


def test_only_reading(demo: Gateway) -> None:
    assert demo.post("/openapi.json", {}).status == 405
    assert demo.post("/v2/models/digits/openapi.json", {}).status == 405
    assert demo.post("/docs", {}).status == 405


def test_callers_read_of_what_they_may_use(serve: Serve) -> None:
    auth = {"keys": DIGESTS, "admins": ["root"], "allow": {"digits": ["root"]}, "hide_forbidden": True}
    gateway = serve(demo_config(auth=auth))

    def told(path: str, name: str = "") -> Any:
        return gateway.request("GET", path, headers={"Authorization": f"Bearer {name}"} if name else {})

    assert [told("/openapi.json", name).status for name in ("", "nobody", "alice", "root")] == [401, 401, 200, 200]
    assert "/v2/models/digits/infer" in told("/openapi.json", "root").json["paths"]
    seen = told("/openapi.json", "alice").json
    assert "/v2/models/digits/infer" not in seen["paths"]
    assert "digits" not in json.dumps(seen)
    assert seen["components"]["securitySchemes"].keys() == {"bearer", "key"}
    for path in ("/openapi.json?model=digits", "/v2/models/digits/openapi.json"):
        assert [told(path, name).status for name in ("", "alice", "root")] == [401, 404, 200]
    assert gateway.get("/docs").status == 200


@one_process(reason="it asks for doors itself")
def test_by_doors_it_is_the_same(demo: Gateway, tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(demo_config(processes={"doors": 2}))
    with running(file, python=Path(sys.executable)) as doors:
        for path in (
            "/openapi.json",
            "/openapi.json?model=digits&dialect=tf_serving",
            "/v2/models/digits/openapi.json",
        ):
            assert doors.get(path).json == demo.get(path).json
        assert doors.get("/v2/models/nobody/openapi.json").status == 404
        assert doors.get("/docs").body == demo.get("/docs").body
        assert doors.stop() == 0, doors.said


def test_turned_off(serve: Serve) -> None:
    gateway = serve(demo_config(api_docs=False))
    for path in ("/openapi.json", "/docs", "/v2/docs", "/v2/models/digits/openapi.json"):
        assert gateway.get(path).status == 404, path


def test_the_page_runs_its_own_script_alone(demo: Gateway) -> None:
    page = demo.get("/docs")
    assert (page.status, page.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert demo.get("/v2/docs").body == page.body
    (script,) = re.findall(rb"<script>(.*?)</script>", page.body, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script).digest()).decode()
    policy = page.headers["Content-Security-Policy"]
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert b"http" not in page.body.replace(b"http://www.w3.org/2000/svg", b"")


@pytest.mark.parametrize("dialect", ["open_inference", "tf_serving", "grps"])
def test_a_sample_from_the_command_line_calls_the_model(dialect: str, demo: Gateway) -> None:
    done = command("sample", "digits", "--dialect", dialect, "--url", demo.url)
    assert (done.returncode, done.stderr) == (0, "")
    samples = next(each["samples"] for each in demo.get("/models.json").json if each["name"] == "digits")
    assert json.loads(done.stdout) in [json.loads(sample["body"]) for sample in samples]


def test_long_samples_are_whole_for_who_asks_for_them(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "wide.py").write_text("class Wide:\n    def infer(self, inputs, request):\n        return inputs\n")
    tensors = [{"name": "x", "datatype": "FP32", "shape": [50_000]}]
    wide = {"backend": "python", "path": str(tmp_path / "wide.py:Wide"), "inputs": tensors, "outputs": tensors}
    gateway = serve(demo_config({"wide": wide}))
    assert "example" not in json.dumps(gateway.get("/openapi.json?model=wide").json)
    done = command("sample", "wide", "--url", gateway.url)
    assert gateway.post("/v2/models/wide/infer", json.loads(done.stdout)).status == 200


def test_the_schema_of_a_model_on_the_command_line(demo: Gateway) -> None:
    done = command("models", "digits", "--schema", "--url", demo.url)
    assert (done.returncode, done.stderr) == (0, "")
    schema = json.loads(done.stdout)
    Draft202012Validator.check_schema(schema)
    body = json.loads(command("sample", "digits", "--url", demo.url).stdout)
    Draft202012Validator(schema).validate(body)
    assert not Draft202012Validator(schema).is_valid({"inputs": [{**body["inputs"][0], "name": "picture"}]})


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["sample", "nobody"], "404 there is no model nobody"),
        (["sample", "running_sum"], "open_inference has no example of running_sum"),
        (["models", "nobody"], "there is no model nobody, but digits, "),
        (["models", "--schema"], "say of which model: tensorgate models NAME --schema"),
        (["models", "countdown", "--schema", "--dialect", "tf_serving"], "no request of tf_serving in JSON"),
        (["models", "digits", "--schema", "--dialect", "soap"], "404 dialect 'soap' is not described here"),
    ],
)
def test_the_command_line_says_what_is_wrong(arguments: list[str], complaint: str, demo: Gateway) -> None:
    done = command(*arguments, "--url", demo.url)
    assert (done.returncode, done.stdout) == (1, "")
    assert complaint in done.stderr


def test_one_model_is_told_of_alone(demo: Gateway) -> None:
    lines = command("models", "digits", "--url", demo.url).stdout.splitlines()
    assert lines[0].startswith("digits  versions 1, 2")
    assert all(line.startswith("  ") for line in lines[1:])
