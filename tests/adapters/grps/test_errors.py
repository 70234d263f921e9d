"""grps failures: every kind has its row, and rows become replies, mirrored or always 200, alone or in a stream."""

from typing import Any

import pytest

from tensorgate.adapters.grps.errors import TABLE, BadRequest, encode_error, encode_predict_error, row_of
from tensorgate.gateway.contract import errors as kind
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.errors import Code, GatewayError

CALL = Call(b"", "POST", "/grps/v1/infer/predict", {}, "http")


def document(code: int, text: str, indent: int = 1) -> bytes:
    one, two = "\n" + " " * indent, "\n" + " " * 2 * indent
    return f'{{{one}"status": {{{two}"code": {code},{two}"msg": "{text}",{two}"status": "FAILURE"{one}}}\n}}'.encode()


MEMORY = [
    kind.SharedMemoryDisabled(),
    kind.RegionNotFound("r"),
    kind.RegionExists("r"),
    kind.RegionUnreachable("/k"),
    kind.RegionInvalid("/k"),
    kind.RegionOutOfBounds("r"),
    kind.RegionKeyReserved("r", "/k", "k"),
    kind.RegionLimit(2),
    kind.CudaMemoryUnavailable("r"),
    kind.RegionRange("r"),
    kind.OutputTooLarge("y", 1, 2),
]
CASES: list[tuple[GatewayError, int, Code, str]] = [
    (BadRequest("No model name."), 400, Code.OK, "No model name."),
    (kind.InvalidArgument("No legal field in json."), 500, Code.OK, "No legal field in json."),
    (kind.Unsupported("Not so."), 500, Code.OK, "Not so."),
    (kind.NotFound("Nothing."), 500, Code.OK, "Nothing."),
    (kind.MalformedJson("Invalid value.", 3), 500, Code.OK, "Parse json failed. Invalid value. At offset 3."),
    (kind.MalformedJson("too deep"), 500, Code.OK, "Parse json failed. too deep."),
    (kind.BodyTooLarge(10), 413, Code.RESOURCE_EXHAUSTED, "The body exceeds 10 bytes."),
    (kind.RouteNotFound("GET", "/x"), 404, Code.UNIMPLEMENTED, "Not Found"),
    (kind.MethodNotAllowed("GET", "/x"), 405, Code.UNIMPLEMENTED, "Method Not Allowed"),
    (kind.ModelNotFound("m-1.0.0"), 500, Code.OK, "Model m-1.0.0 not found."),
    (kind.ModelNotFound("m", 2), 500, Code.OK, "Model m-2 not found."),
    (kind.ModelNotFound(""), 500, Code.OK, "No default model."),
    (kind.LabelNotFound("m", "l"), 500, Code.OK, "Model m has no label l."),
    (kind.SignatureNotFound("m", "s"), 500, Code.OK, "Model m has no signature s."),
    (kind.ModelDecoupled("m"), 500, Code.OK, "Model m answers in a stream."),
    (kind.NotOneAnswer("m"), 500, Code.OK, "Model m did not give exactly one answer."),
    (
        kind.AdminRequired("x-key"),
        403,
        Code.PERMISSION_DENIED,
        "This API is restricted, expecting header x-key.",
    ),
    (kind.Unauthenticated(given=False), 401, Code.UNAUTHENTICATED, "Credentials are required."),
    (kind.Unauthenticated(given=True), 401, Code.UNAUTHENTICATED, "The credentials are not valid."),
    (kind.Forbidden(), 403, Code.PERMISSION_DENIED, "Administration is not allowed."),
    (kind.Forbidden("m"), 403, Code.PERMISSION_DENIED, "Use of model m is not allowed."),
    (
        kind.CrossOriginRefused("http://evil"),
        403,
        Code.PERMISSION_DENIED,
        "This changes the server, which is not for pages of http://evil.",
    ),
    (kind.RateLimited("rows", 1.2), 429, Code.RESOURCE_EXHAUSTED, "Too many rows, retry after 2 s."),
    (kind.ModelControlOff(), 500, Code.OK, "Models are not loaded and unloaded by callers here."),
    (kind.ModelNotStored("m"), 500, Code.OK, "Model m not found."),
    (kind.LoadRefused("m", "no such thing"), 500, Code.OK, "Model m cannot be loaded: no such thing."),
    (kind.LoadFailed("m", {1: "cut short"}), 500, Code.OK, "Model m failed to load: version 1: cut short."),
    (kind.PlatformRefused("m", "caffe"), 500, Code.OK, "Model m cannot be loaded: unknown platform caffe."),
    (kind.LabelRefused("m", "stable", 3), 500, Code.OK, "Model m does not serve version 3."),
    (
        kind.ReloadFailed({("m", 1): kind.Reason("cut short")}),
        500,
        Code.OK,
        "Models failed to load: m version 1: cut short.",
    ),
    (kind.UnknownOutput("y", "m"), 500, Code.OK, "Model m has no output y."),
    (
        kind.InputCount("m", ("a",), ("b",), 2, 2),
        500,
        Code.OK,
        "model 'm' takes 2 to 2 inputs, got ['a'], missing ['b']",
    ),
    (kind.UnknownInput("x", "m"), 500, Code.OK, "Model m has no input x."),
    (kind.BatchMissing("x", "m"), 500, Code.OK, "Tensor x has no first dimension."),
    (kind.BatchMismatch("x", "m"), 500, Code.OK, "Tensor x differs from the others in its first dimension."),
    (kind.BatchTooLarge(9, 8, "m"), 500, Code.OK, "Batch size 9 of model m exceeds the maximum of 8."),
    (
        kind.DtypeMismatch("x", "FP64", "BOOL", "m"),
        500,
        Code.OK,
        "Tensor x dtype not match, expected dtype: BOOL, actual dtype: DT_FLOAT64.",
    ),
    (
        kind.ShapeMismatch("x", (2,), (-1, 4), "m", batched=False),
        500,
        Code.OK,
        "Tensor x shape not match, expected shape: [-1, 4], actual shape: [2].",
    ),
    (
        kind.SequenceIdMissing("m"),
        500,
        Code.OK,
        "Model m takes requests of sequences only, which grps cannot name.",
    ),
    (kind.SequenceNotStarted(5, "m"), 500, Code.OK, "sequence 5 of model 'm' has not been started"),
    (
        kind.SequenceBatch("m"),
        500,
        Code.OK,
        "a request of a sequence has one row, model 'm' takes no more at once",
    ),
    (
        kind.SequenceIdMismatch("a", "INT64", "m"),
        500,
        Code.OK,
        "sequence id a does not fit model 'm', which takes it as INT64",
    ),
    (kind.ClassesUnsupported("y", "BOOL"), 500, Code.OK, "output 'y' is BOOL, which cannot be classified"),
    (kind.ClassesTooMany("y"), 500, Code.OK, "output 'y' is too large to be classified"),
    *((error, 500, Code.OK, "This protocol has no shared memory.") for error in MEMORY),
    (kind.QueueFull("m", 5), 503, Code.OK, "Model m is busy."),
    (kind.QueueTimeout("m"), 503, Code.OK, "Model m is busy, the wait timed out."),
    (kind.WouldBeLate("m", 0.25), 503, Code.OK, "Model m is busy, the answer would be 0.250 s late."),
    (kind.DeadlineExceeded("m"), 503, Code.DEADLINE_EXCEEDED, "Model m did not answer in time."),
    (kind.ModelUnavailable("m"), 503, Code.OK, "Model m is unavailable."),
    (kind.OutOfMemory("m"), 503, Code.OK, "Model m is out of memory."),
    (kind.DeviceLost("m"), 503, Code.OK, "Model m has lost its device, the server restarts."),
    (kind.ModelFailed("KeyError: 'x'"), 500, Code.OK, "KeyError: 'x'"),
    (
        kind.OutputRows("y", (3,), 2),
        500,
        Code.OK,
        "output 'y' has shape [3], but its first dimension must be the 2 rows of the batch",
    ),
    (kind.Unknown("who knows"), 500, Code.OK, "who knows"),
    (kind.Unavailable("not now"), 503, Code.OK, "not now"),
    (kind.Exhausted("too many"), 503, Code.OK, "too many"),
    (kind.TimedOut("too late"), 503, Code.DEADLINE_EXCEEDED, "too late"),
    (kind.PreconditionFailed("not so"), 500, Code.OK, "not so"),
    (kind.AlreadyExists("it is there"), 500, Code.OK, "it is there"),
    (kind.Cancelled("stopped"), 500, Code.OK, "stopped"),
    (kind.SequenceCancelled(5, "m"), 500, Code.OK, "sequence 5 of model 'm' was cancelled"),
    (kind.EncodingFailed("Output y is BOOL."), 500, Code.OK, "Output y is BOOL."),
    (kind.Internal("secret"), 500, Code.OK, "Internal error."),
]


def contract() -> list[type[GatewayError]]:
    """The kinds of the contract, without those that adapters keep to themselves."""
    return [each for each in kind.kinds() if each.__module__.startswith(kind.__name__)]


def test_every_kind_has_a_row_of_its_own_and_a_case_here() -> None:
    assert len(contract()) > 20
    assert [each for each in contract() if each not in TABLE] == []
    assert set(contract()) - {type(error) for error, *_ in CASES} == set()


@pytest.mark.parametrize(
    ("error", "code", "grpc", "text"), CASES, ids=[f"{type(e).__name__}-{c}" for e, c, _, _ in CASES]
)
def test_a_failure_is_an_envelope(error: GatewayError, code: int, grpc: Code, text: str) -> None:
    reply = encode_error(error, CALL)
    assert (reply.body, reply.http_status, reply.grpc_code, reply.message) == (document(code, text), code, grpc, text)
    assert reply.headers.get("Retry-After") == ("1" if code == 503 else None)
    assert reply.headers["Content-Type"] == "application/json;charset=utf-8"
    always = encode_error(error, CALL, always_200=True)
    stays = (kind.RouteNotFound, kind.Unauthenticated, kind.Forbidden, kind.CrossOriginRefused, kind.RateLimited)
    assert always.http_status == (code if isinstance(error, stays) else 200)
    assert (always.body, always.headers) == (reply.body, reply.headers)


@pytest.mark.parametrize(
    ("error", "code", "grpc", "text"), CASES, ids=[f"{type(e).__name__}-{c}" for e, c, _, _ in CASES]
)
def test_in_a_stream_it_is_one_more_document(error: GatewayError, code: int, grpc: Code, text: str) -> None:
    reply = encode_predict_error(error, Call(b"", "POST", "/", {}, "http", notes={"stream": "true"}))
    assert (reply.body, reply.http_status, reply.streamed) == (document(code, text, indent=2), 200, True)
    assert dict(reply.headers) == {"Content-Type": "application/octet-stream"}


def test_the_head_is_judged_before_a_stream_starts() -> None:
    error = BadRequest("Unsupported content type.")
    assert same(encode_predict_error(error, CALL), encode_error(error, CALL))
    assert encode_predict_error(error, CALL).http_status == 400
    assert encode_predict_error(error, CALL, always_200=True).http_status == 200


def same(one: Reply, other: Reply) -> bool:
    def facts(reply: Reply) -> tuple[Any, ...]:
        return (reply.body, reply.http_status, dict(reply.headers), reply.streamed)

    return facts(one) == facts(other)


def test_a_kind_that_nobody_told_the_table_of_is_its_parent_or_internal() -> None:
    class Stranger(GatewayError):
        pass

    class Cousin(kind.QueueFull):
        pass

    assert row_of(Stranger("secret")) is TABLE[kind.Internal]
    assert row_of(Cousin("m", 1)) is TABLE[kind.QueueFull]
    del Stranger, Cousin


def test_texts_are_escaped() -> None:
    reply = encode_error(kind.ModelNotFound('<"\u00e9\n'), CALL)
    assert b'Model <\\"\\u00e9\\n not found.' in bytes(reply.body)  # type: ignore[arg-type]
