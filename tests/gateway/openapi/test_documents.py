"""Documents by the configuration: what a port speaks, which credentials it wants, which failures there are."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import numpy as np
import orjson
import pytest
import yaml

from tensorgate.gateway.app import registries
from tensorgate.gateway.config import Config, load_text
from tensorgate.gateway.contract.canonical import ModelView
from tensorgate.gateway.contract.errors import NotFound
from tensorgate.gateway.contract.questions import ApiDocument
from tensorgate.gateway.openapi.documents import ApiDocuments

KINDS = registries()
PORT = ("127.0.0.1:1", "127.0.0.1:1")
X = {"x": ("FP32", (-1, 4))}
ADMIN = {"header": "x-admin", "value_env": "PATH"}
BEARER: list[dict[str, list[str]]] = [{"bearer": []}, {"key": []}]


def config(tmp_path: Path, **sections: Any) -> Config:
    text = yaml.safe_dump({"listen": {"http": [{"bind": PORT[0]}]}, "repositories": [str(tmp_path)]} | sections)
    return load_text(text, tmp_path / "gateway.yaml", KINDS)


def writer(wanted: Config) -> ApiDocuments:
    options = wanted.dialects()
    return ApiDocuments({name: kind.make(options[name]) for name, kind in KINDS.dialects.items()}, "1.2", wanted)


def asked(documents: ApiDocuments, *views: ModelView, **question: Any) -> Any:
    return orjson.loads(documents.write(ApiDocument(PORT, None, **{"target": "/openapi.json"} | question), views))


def with_keys(**more: Any) -> dict[str, Any]:
    return {"auth": {"keys": {"a": {"sha256": "0" * 64}}} | more}


def test_a_port_tells_of_what_it_speaks(tmp_path: Path) -> None:
    ports = [{"bind": PORT[0], "dialects": ["tf_serving", "grps"]}]
    documents = writer(config(tmp_path, listen={"http": ports}))
    found = asked(documents)
    assert [tag["name"] for tag in found["tags"]] == ["TensorFlow Serving", "grps"]
    assert {path.split("/")[1] for path in found["paths"]} == {"v1", "grps"}
    assert {path.split("/")[1] for path in asked(documents, dialect="grps")["paths"]} == {"grps"}
    with pytest.raises(NotFound, match="open_inference"):
        asked(documents, dialect="open_inference")
    elsewhere = orjson.loads(documents.write(ApiDocument(("unknown", "port"), None, "/openapi.json"), ()))
    assert len(elsewhere["tags"]) == 4


@pytest.mark.parametrize(
    ("sections", "schemes", "everywhere", "admin"),
    [
        ({}, set(), None, None),
        (with_keys(), {"bearer", "key"}, BEARER, BEARER),
        (with_keys(mode="optional"), {"bearer", "key"}, [*BEARER, {}], [*BEARER, {}]),
        (with_keys(mode="off"), set(), None, None),
        ({"admin": ADMIN}, {"admin"}, [], [{"admin": []}]),
        (
            with_keys() | {"admin": ADMIN},
            {"bearer", "key", "admin"},
            BEARER,
            [*BEARER, {"bearer": [], "admin": []}, {"key": [], "admin": []}],
        ),
    ],
)
def test_credentials(tmp_path: Path, sections: dict[str, Any], schemes: set[str], everywhere: Any, admin: Any) -> None:
    found = asked(writer(config(tmp_path, **sections)))
    assert found["components"].get("securitySchemes", {}).keys() == schemes
    assert found.get("security") == everywhere
    assert found["paths"]["/v2/repository/models/{model}/load"]["post"].get("security") == (admin or None)
    assert found["paths"]["/v2/models/{model}/infer"]["post"].get("security") is None
    health = found["paths"]["/v2/health/live"]["get"]
    assert health.get("security") == ([] if "auth" in sections else None)
    assert ("401" in found["paths"]["/v2/models"]["get"]["responses"]) == ("auth" in sections)


def test_failures_are_those_of_the_dialects_own_table(tmp_path: Path) -> None:
    found = asked(writer(config(tmp_path)))
    responses = found["components"]["responses"]

    def failures(path: str, method: str) -> dict[str, str]:
        replies = found["paths"][path][method]["responses"]
        named = {status: each["$ref"].rpartition("/")[2] for status, each in replies.items() if "$ref" in each}
        return {status: responses[name]["description"] for status, name in named.items()}

    infer = failures("/v2/models/{model}/infer", "post")
    assert infer.keys() == {"400", "404", "429", "500", "501", "503", "504"}
    assert "shape" in infer["400"]
    assert "queue_full" in infer["503"]
    assert failures("/v2/models", "get").keys() == {"400", "404", "500", "503", "504"}
    assert failures("/v2/health/live", "get") == {}
    assert "413" in failures("/v1/models/{model}:predict", "post")
    quiet = asked(writer(config(tmp_path, grps={"http_status": "always_200"})))
    assert quiet["paths"]["/grps/v1/infer/predict"]["post"]["responses"].keys() == {"200"}


def test_a_models_part_is_made_once_and_anew_with_its_version(
    tmp_path: Path, make_model: Callable[..., ModelView], monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = writer(config(tmp_path))
    made: list[str] = []
    make = ApiDocuments._operation

    def operation(*args: Any) -> Any:
        made.append(args[3].path)
        return make(*args)

    monkeypatch.setattr(ApiDocuments, "_operation", operation)
    first = make_model("m", X, X)
    found = asked(documents, first)
    assert made.count("/v2/models/m/infer") == 1
    assert asked(documents, first) == found
    assert made.count("/v2/models/m/infer") == 1
    wider = asked(documents, make_model("m", {"x": ("FP32", (-1, 5))}, X))
    assert made.count("/v2/models/m/infer") == 2
    schema = "m_Input_x"
    assert found["components"]["schemas"][schema] != wider["components"]["schemas"][schema]
    documents.reconfigure(config(tmp_path, **with_keys()))
    asked(documents, first)
    assert made.count("/v2/models/m/infer") == 3


def test_a_models_document_has_no_more_than_it_needs(tmp_path: Path, make_model: Callable[..., ModelView]) -> None:
    found = asked(writer(config(tmp_path)), view=make_model("m", X, X), version=1, dialect="open_inference")
    assert all(path.startswith("/v2/models/m/versions/1") for path in found["paths"])
    schemas = found["components"]["schemas"]
    assert "v2_RegisterRegion" not in schemas
    assert {"m_InferRequest", "m_InferResponse", "m_Input_x", "m_Output_x", "v2_Classes"} <= schemas.keys()


def test_an_example_that_json_has_no_words_for_is_left_out(
    tmp_path: Path, make_model: Callable[..., ModelView]
) -> None:
    documents = writer(config(tmp_path))

    def examples(value: float) -> list[str]:
        view = make_model("m", X, X, example_inputs={"x": np.full((1, 4), value, np.float32)})
        paths = asked(documents, view=view)["paths"]
        return [path.split("/")[1] for path, operation in paths.items() if '"example"' in json.dumps(operation)]

    assert examples(0.5) == ["v2", "v1", "grps"]
    assert examples(np.nan) == ["grps"]  # which has names for such numbers


@pytest.mark.parametrize(
    "target", ["/openapi.json", "/v2/models/a%2Fb/openapi.json", "/v2/models/m/versions/1/openapi.json?x=/y/"]
)
def test_the_server_is_found_from_its_document_behind_a_prefix(target: str, tmp_path: Path) -> None:
    [server] = asked(writer(config(tmp_path)), target=target)["servers"]
    assert urljoin(f"https://proxy/here{target}", server["url"] + "/v2/models") == "https://proxy/here/v2/models"
