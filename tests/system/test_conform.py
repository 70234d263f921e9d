"""The gateway keeps all that its protocols promise, as `tensorgate conform` asks for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from conform_proxy import Change, SpoiltServer, spoilt
from conform_servers import serving_classes, serving_repository
from serving import HOST, Gateway, command

from tensorgate.adapters.conformance.case import Level, WireReply
from tensorgate.adapters.protobuf.messages import message
from tensorgate.gateway.cli.conform.asking import clients
from tensorgate.gateway.cli.conform.judging import Verdict, find_server, judge_case
from tensorgate.gateway.cli.conform.verb import suite_of


@pytest.fixture(scope="module")
def v2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway that serves the models whose behaviour the cases of V2 know."""
    with serving_repository(tmp_path_factory.mktemp("conform")) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway that serves what the cases of TensorFlow Serving and of grps know, without TensorFlow."""
    with serving_classes(tmp_path_factory.mktemp("conform")) as gateway:
        yield gateway


def conform(gateway: Gateway, folder: Path, *options: str) -> dict[str, Any]:
    """The report on a gateway."""
    addresses = ("--http", gateway.url, "--grpc", f"{HOST}:{gateway.grpc_port}")
    asked = command("conform", *addresses, "--json", folder / "report.json", *options)
    assert asked.returncode == 0, asked.stdout + asked.stderr
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


@pytest.mark.parametrize(("dialect", "server"), [("v2", "v2"), ("tf_serving", "classes"), ("grps", "classes")])
def test_all_is_as_promised(dialect: str, server: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    report = conform(request.getfixturevalue(server), tmp_path, "--dialect", dialect)
    assert report["totals"] == {"passed": len(report["cases"]), "differs": 0, "not offered": 0}
    assert {each["transport"] for each in report["cases"]} == {"http", "grpc"}
    assert report["notes"] == []


# ------------------------------------------------------------------------------------------ servers wrong on purpose


def _http(path: str, **changes: Any) -> Change:
    """Change answers of the addresses that end so: their `status`, or their `body` by a function."""

    def change(target: str, reply: WireReply) -> WireReply:
        if not target.endswith(path) or not reply.status or reply.status >= 400:
            return reply
        body = changes.get("body", bytes)(reply.body)
        dropped = changes.get("dropped", "")
        headers = {name: value for name, value in reply.headers.items() if name != dropped}
        return replace(reply, status=changes.get("status", reply.status), messages=(body,), headers=headers)

    return change


def _http_error(was: int, status: int = 0, body: bytes | None = None) -> Change:
    """Change errors over HTTP of one status."""

    def change(target: str, reply: WireReply) -> WireReply:
        if reply.status != was:
            return reply
        return replace(reply, status=status or was, messages=reply.messages if body is None else (body,))

    return change


def _document(edit: Callable[[Any], Any]) -> Callable[[bytes], bytes]:
    """Change a body's JSON where it is JSON."""

    def change(body: bytes) -> bytes:
        try:
            document = json.loads(body)
            edit(document)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError):
            return body
        return json.dumps(document).encode()

    return change


def _grpc(method: str, edit: Callable[[Any], Any] | None = None, **changes: Any) -> Change:
    """Change answers of a gRPC method: its messages by a function, its `code`, or how `many` messages there are."""

    def change(target: str, reply: WireReply) -> WireReply:
        service, _, name = target.rpartition("/")
        if name != method or not service or reply.status or bool(reply.code) != changes.get("failed", False):
            return reply
        messages = list(reply.messages)
        if edit is not None:
            for index, data in enumerate(messages):
                found = message(changes["kind"]).FromString(data)
                try:
                    edit(found)
                except (IndexError, KeyError):
                    continue
                messages[index] = found.SerializeToString()
        if changes.get("loses") and len(messages) > 1:
            del messages[0]
        return replace(reply, messages=tuple(messages), code=changes.get("code", reply.code))

    return change


def _flip_last(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1]) if data else data


def _tail(body: bytes) -> bytes:
    return body if body.endswith((b"}", b"]", b"\n")) else _flip_last(body)


def _flip_raw(reply: Any) -> None:
    reply.raw_output_contents[0] = _flip_last(reply.raw_output_contents[0])


def _set(path: Sequence[str | int], value: Any) -> Callable[[Any], None]:
    """Set a value deep in a document."""

    def edit(document: Any) -> None:
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = value

    return edit


def _drop(path: Sequence[str | int]) -> Callable[[Any], None]:
    """Remove a key deep in a document."""

    def edit(document: Any) -> None:
        for key in path[:-1]:
            document = document[key]
        del document[path[-1]]

    return edit


_V2_REPLY, _V2_STREAM = "inference.ModelInferResponse", "inference.ModelStreamInferResponse"
V2_FAULTS: Mapping[str, Change] = {
    "status of ready": _http("/v2/health/ready", status=400),
    "status of live": _http("/v2/health/live", status=204),
    "status of infer": _http("/infer", status=201),
    "server without extensions": _http("/v2", body=_document(_drop(["extensions"]))),
    "no content type": _http("/infer", dropped="content-type"),
    "no length of the JSON": _http("/infer", dropped="inference-header-content-length"),
    "no coding": _http("/infer", dropped="content-encoding"),
    "a bit of binary data": _http("/infer", body=_tail),
    "a bit of JSON data": _http("/infer", body=lambda body: body.replace(b"44", b"45")),
    "no id": _http("/infer", body=_document(_drop(["id"]))),
    "an id nobody gave": _http("/infer", body=_document(_set(["id"], "x"))),
    "no model's name": _http("/infer", body=_document(_drop(["model_name"]))),
    "no model's version": _http("/infer", body=_document(_drop(["model_version"]))),
    "a version that is a number": _http("/infer", body=_document(_set(["model_version"], 1))),
    "a shape of texts": _http("/infer", body=_document(_set(["outputs", 0, "shape", 0], "1"))),
    "another datatype": _http("/infer", body=_document(_set(["outputs", 0, "datatype"], "INT64"))),
    "no shape": _http("/infer", body=_document(_drop(["outputs", 0, "shape"]))),
    "an output lost": _http("/infer", body=_document(_drop(["outputs", 0]))),
    "an integer as a float": _http("/infer", body=_document(_set(["outputs", 0, "data", 0], 11.0))),
    "metadata without inputs": _http("/models/conform_add_sub", body=_document(_drop(["inputs"]))),
    "index without names": _http("/index", body=_document(lambda found: [each.pop("name") for each in found])),
    "statistics without counts": _http("/stats", body=_document(_drop(["model_stats", 0, "inference_count"]))),
    "configuration without its limit": _http("/config", body=_document(_drop(["max_batch_size"]))),
    "events without their mark": _http("/generate_stream", body=lambda body: body.replace(b"data: ", b"")),
    "an event lost": _http("/generate_stream", body=lambda body: body.partition(b"\n\n")[2] or body),
    "generate without a version": _http("/generate", body=_document(_drop(["model_version"]))),
    "not found as a bad request": _http_error(404, 400),
    "a bad request as a success": _http_error(400, 200),
    "an error without its text": _http_error(400, body=b"{}"),
    "an error that is no JSON": _http_error(404, body=b"no"),
    "a failing model as not found": _http_error(500, 404),
    "gRPC: a bit of data": _grpc("ModelInfer", _flip_raw, kind=_V2_REPLY),
    "gRPC: typed contents": _grpc("ModelInfer", lambda m: m.outputs[0].contents.int_contents.append(1), kind=_V2_REPLY),
    "gRPC: no id": _grpc("ModelInfer", lambda m: m.ClearField("id"), kind=_V2_REPLY),
    "gRPC: no model's name": _grpc("ModelInfer", lambda m: m.ClearField("model_name"), kind=_V2_REPLY),
    "gRPC: a shape": _grpc("ModelInfer", lambda m: m.outputs[0].shape.append(1), kind=_V2_REPLY),
    "gRPC: a datatype": _grpc("ModelInfer", lambda m: setattr(m.outputs[0], "datatype", "X"), kind=_V2_REPLY),
    "gRPC: not ready": _grpc("ServerReady", lambda m: m.Clear(), kind="inference.ServerReadyResponse"),
    "gRPC: metadata without inputs": _grpc(
        "ModelMetadata", lambda m: m.ClearField("inputs"), kind="inference.ModelMetadataResponse"
    ),
    "gRPC: another code": _grpc("ModelInfer", failed=True, code=2),
    "gRPC: a stream loses an answer": _grpc("ModelStreamInfer", loses=True),
    "gRPC: no final mark": _grpc(
        "ModelStreamInfer", lambda m: m.infer_response.ClearField("parameters"), kind=_V2_STREAM
    ),
    "gRPC: a stream that fails": _grpc("ModelStreamInfer", code=13),
}
_TFS_REPLY = "tensorflow.serving.PredictResponse"
TFS_FAULTS: Mapping[str, Change] = {
    "status of predict": _http(":predict", status=201),
    "no content type": _http(":predict", dropped="content-type"),
    "a value": _http(":predict", body=lambda body: body.replace(b"2.5", b"2.6")),
    "a value as text": _http(":predict", body=_document(_set(["predictions", 0], "2.5"))),
    "another key": _http(":predict", body=lambda body: body.replace(b"predictions", b"prediction")),
    "outputs renamed": _http(":predict", body=lambda body: body.replace(b"sum", b"total")),
    "status without a state": _http(
        "/conform_half_plus_two", body=_document(_drop(["model_version_status", 0, "state"]))
    ),
    "a version that is a number": _http(
        "/conform_half_plus_two", body=_document(_set(["model_version_status", 0, "version"], 1))
    ),
    "metadata without methods": _http("/metadata", body=lambda body: body.replace(b"method_name", b"method")),
    "not found as a bad request": _http_error(404, 400),
    "a bad request as a failure": _http_error(400, 500),
    "an error without its text": _http_error(400, body=b"{}"),
    "gRPC: no version": _grpc("Predict", lambda m: m.model_spec.ClearField("version"), kind=_TFS_REPLY),
    "gRPC: no outputs": _grpc("Predict", lambda m: m.outputs.clear(), kind=_TFS_REPLY),
    "gRPC: a value": _grpc("Predict", lambda m: m.outputs["y"].float_val.append(1), kind=_TFS_REPLY),
    "gRPC: no shape": _grpc("Predict", lambda m: m.outputs["y"].ClearField("tensor_shape"), kind=_TFS_REPLY),
    "gRPC: another code": _grpc("Predict", failed=True, code=2),
    "gRPC: a state": _grpc(
        "GetModelStatus",
        lambda m: setattr(m.model_version_status[0], "state", 20),
        kind="tensorflow.serving.GetModelStatusResponse",
    ),
}
_GRPS = "grps.protos.v1.GrpsMessage"
GRPS_FAULTS: Mapping[str, Change] = {
    "no envelope": _http("conform_half_plus_two-1", body=_document(_drop(["status"]))),
    "a code as text": _http("conform_half_plus_two-1", body=_document(_set(["status", "code"], "200"))),
    "no success": _http("conform_half_plus_two-1", body=_document(_drop(["status", "status"]))),
    "a value": _http("conform_half_plus_two-1", body=lambda body: body.replace(b"2.5", b"2.6")),
    "no dtype": _http("conform_half_plus_two-1", body=_document(_drop(["gtensors", "tensors", 0, "dtype"]))),
    "integers of 64 bits as numbers": _http(
        "conform_identity_int64-1", body=lambda body: body.replace(b'"9007199254740993"', b"9007199254740993")
    ),
    "status of live": _http("/health/live", status=201),
    "no content type": _http("conform_add_sub-1", dropped="content-type"),
    "a failure as a success": _http_error(500, body=b'{"status": {"code": 200, "msg": "OK", "status": "SUCCESS"}}'),
    "a failure of another status": _http_error(500, 503),
    "gRPC: a value": _grpc("Predict", lambda m: m.gtensors.tensors[0].ClearField("shape"), kind=_GRPS),
    "gRPC: no status": _grpc("Predict", lambda m: m.ClearField("status"), kind=_GRPS),
    "gRPC: a code": _grpc("CheckLiveness", code=13),
    "gRPC: a streamed value": _grpc("PredictStreaming", lambda m: m.ClearField("gtensors"), kind=_GRPS),
}
_SOME = {
    "v2": ("conform_add_sub", "conform_repeat", "conform_upper", "conform_failing"),
    "tf_serving": ("conform_half_plus_two", "conform_add_sub"),
    "grps": ("conform_half_plus_two",),
}
"""Models of which the faults are found soon enough."""


@pytest.fixture(scope="module")
def spoilt_v2(v2: Gateway) -> Iterator[SpoiltServer]:
    with spoilt(v2) as server:
        yield server


@pytest.fixture(scope="module")
def spoilt_classes(classes: Gateway) -> Iterator[SpoiltServer]:
    with spoilt(classes) as server:
        yield server


def _differing(dialect: str, server: SpoiltServer, transport: str) -> str:
    """The first case over one transport that differs in what clients rely on."""
    over_grpc = transport == "grpc"
    asked = clients(None if over_grpc else server.url, server.grpc_address if over_grpc else None, 10.0)
    suite = suite_of(dialect)
    try:
        for case in suite.cases(find_server(suite, asked, _SOME[dialect]), tuple(asked)):
            judged = judge_case(case, asked[transport])
            if judged.verdict is Verdict.DIFFERS and judged.level is not Level.RECOMMENDED:
                return case.name
    finally:
        for client in asked.values():
            client.close()
    return ""


SOONEST = ("a bit of", "a value", "status of", "no content type", "gRPC: another code", "not found as")
"""What the names of those faults begin with that are looked for each time; the others take longer."""
_FAULTS = [
    *(("v2", "spoilt_v2", name, change) for name, change in V2_FAULTS.items()),
    *(("tf_serving", "spoilt_classes", name, change) for name, change in TFS_FAULTS.items()),
    *(("grps", "spoilt_classes", name, change) for name, change in GRPS_FAULTS.items()),
]


@pytest.mark.parametrize(
    ("dialect", "fixture", "name", "change"),
    [
        pytest.param(*each, id=f"{each[0]}: {each[2]}", marks=() if each[2].startswith(SOONEST) else pytest.mark.heavy)
        for each in _FAULTS
    ],
)
def test_a_server_made_wrong_is_found(
    dialect: str, fixture: str, name: str, change: Change, request: pytest.FixtureRequest
) -> None:
    server: SpoiltServer = request.getfixturevalue(fixture)
    server.change, server.changed = change, 0
    found = _differing(dialect, server, "grpc" if name.startswith("gRPC") else "http")
    assert server.changed
    assert found


@pytest.mark.parametrize(("dialect", "fixture"), [("v2", "spoilt_v2"), ("grps", "spoilt_classes")])
def test_the_proxy_itself_changes_nothing(dialect: str, fixture: str, request: pytest.FixtureRequest) -> None:
    server: SpoiltServer = request.getfixturevalue(fixture)
    server.change = lambda target, reply: reply
    for transport in ("http", "grpc"):
        assert _differing(dialect, server, transport) == ""


# ------------------------------------------------------------------------------------------------- reports, comparisons


def test_two_servers_that_answer_alike_do_not_differ(v2: Gateway, spoilt_v2: SpoiltServer, tmp_path: Path) -> None:
    spoilt_v2.change = lambda target, reply: reply
    addresses = ("--against-http", spoilt_v2.url, "--against-grpc", spoilt_v2.grpc_address)
    report = conform(v2, tmp_path, "--dialect", "v2", "--model", "conform_add_sub", *addresses)
    assert report["totals"] == {"passed": len(report["cases"]), "differs": 0, "not offered": 0}
    assert len(report["cases"]) > 50


def test_what_two_servers_answer_differently_is_told(v2: Gateway, spoilt_v2: SpoiltServer, tmp_path: Path) -> None:
    spoilt_v2.change = V2_FAULTS["gRPC: a datatype"]
    addresses = ("--grpc", f"{HOST}:{v2.grpc_port}", "--against-grpc", spoilt_v2.grpc_address)
    reports = ("--json", tmp_path / "r.json", "--junit", tmp_path / "r.xml", "--html", tmp_path / "r.html")
    asked = command("conform", "--dialect", "v2", "--model", "conform_add_sub", *addresses, *reports)
    assert asked.returncode == 1
    assert 'outputs[0].datatype: expected "X"' in asked.stdout
    cases = json.loads((tmp_path / "r.json").read_text())["cases"]
    differing = [each for each in cases if each["outcome"] == "differs"]
    assert {each["what"] for case in differing for each in case["differences"]} >= {"outputs[0].datatype"}
    suite = ElementTree.parse(tmp_path / "r.xml").getroot()  # noqa: S314  (written a line before)
    assert len(suite.findall("testcase/failure")) == int(suite.attrib["failures"]) == len(differing)
    page = (tmp_path / "r.html").read_text()
    assert page.count('<details class="only-differs differs">') == len(differing)
    assert "<script" not in page
    assert "http://" not in page


def test_recorded_traffic_is_asked_again(classes: Gateway, spoilt_classes: SpoiltServer, tmp_path: Path) -> None:
    log = tmp_path / "calls.jsonl"
    call = {
        "v": 1,
        "time": 1.0,
        "dialect": "tf_serving",
        "transport": "http",
        "stream": "unary",
        "method": "POST",
        "target": "/v1/models/conform_half_plus_two:predict",
        "headers": {"content-type": "application/json"},
        "seconds": 0.1,
        "ended": "OK",
        "text": '{"instances": [1.0]}',
        "replies": [
            {"after_s": 0.1, "headers": {"content-type": "application/json"}, "text": '{"predictions": [2.5]}'}
        ],
    }
    log.write_text(json.dumps(call) + "\n")
    report = conform(classes, tmp_path, "--dialect", "tf_serving", "--from-log", str(log))
    assert report["totals"] == {"passed": 1, "differs": 0, "not offered": 0}
    spoilt_classes.change = TFS_FAULTS["a value"]
    asked = command("conform", "--dialect", "tf_serving", "--http", spoilt_classes.url, "--from-log", log)
    assert asked.returncode == 1
    assert "predictions[0]: expected 2.5" in asked.stdout


def test_an_address_where_nobody_is_ends_it_with_one_line() -> None:
    asked = command("conform", "--dialect", "v2", "--http", f"http://{HOST}:9")
    assert asked.returncode == 1
    assert asked.stderr.count("\n") == 1
