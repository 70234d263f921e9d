"""Errors cross with their kind, text and facts: every dialect says the same of them on either side."""

import inspect
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import pytest

from tensorgate.gateway.app import registries
from tensorgate.gateway.contract import errors
from tensorgate.gateway.contract.call import Call
from tensorgate.gateway.contract.dialect import Endpoint
from tensorgate.gateway.contract.errors import Code, GatewayError, InvalidArgument, ModelFailed
from tensorgate.gateway.crossing.failures import error_of, failure_of
from tensorgate.gateway.crossing.frames import CrossingBroken, FrameReader, add_frame
from tensorgate.gateway.crossing.messages import Failure

VALUES: Mapping[str, Any] = {
    "str": 'a "é"\n',
    "int": 7,
    "float": 2.5,
    "bool": True,
    "int | None": 3,
    "ErrorReason | None": errors.ErrorReason.UPSTREAM,
    "int | str": "s1",
    "tuple[str, ...]": ("a", "b"),
    "tuple[int, ...]": (2, -1),
}
KINDS = [kind for kind in errors.kinds() if kind.__module__.startswith("tensorgate.gateway.contract.errors")]


def made(kind: type[GatewayError]) -> GatewayError | None:
    """One of a kind; None for those that only relayed calls end with, which the engine encodes itself."""
    given: list[Any] = []
    named: dict[str, Any] = {}
    for parameter in list(inspect.signature(kind.__init__).parameters.values())[1:]:
        if parameter.name in {"args", "kwargs"}:
            continue
        if parameter.annotation not in VALUES:
            return None
        value = VALUES[parameter.annotation]
        if parameter.kind is parameter.KEYWORD_ONLY:
            named[parameter.name] = value
        else:
            given.append(value)
    return kind(*given, **named)


ERRORS = [error for kind in KINDS if (error := made(kind)) is not None]
TARGETS = {
    "open_inference": ("/v2/models/m/infer", "/v2/models/m/generate"),
    "tf_serving": ("/v1/models/m:predict", "/v1/models/m:classify"),
    "grps": ("/grps/v1/infer/predict",),
    "openai": ("/v1/embeddings", "/v1/messages", "/v2/rerank", "/embed"),
}
ENDPOINTS: list[tuple[str, Endpoint]] = []
for name, kind in registries().dialects.items():
    dialect = kind.make(kind.options())
    ENDPOINTS += [(name, endpoint) for endpoint in dialect.grpc.values()]
    ENDPOINTS += [(name, dialect.match("POST", target).endpoint) for target in TARGETS[name]]


def crossed(error: BaseException) -> GatewayError:
    buffer = bytearray()
    add_frame(failure_of(5, error), buffer)
    [failure] = FrameReader[Failure](Failure).receive(memoryview(buffer))
    assert failure.call == 5
    return error_of(failure)


def test_there_are_kinds_and_endpoints() -> None:
    assert {kind for kind in KINDS if made(kind) is None} == {errors.LoadFailed, errors.ReloadFailed}
    assert len(ENDPOINTS) > 20


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_every_kind(error: GatewayError) -> None:
    found = crossed(error)
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert vars(found) == vars(error)
    assert (found.code, found.http_headers) == (error.code, error.http_headers)
    for name, endpoint in ENDPOINTS:
        call = Call(b"", "POST", "/", {}, "grpc" if endpoint.address.startswith("/") else "http", dialect=name)
        here, there = endpoint.encode_error(error, call), endpoint.encode_error(found, call)
        assert here == there or (
            (here.body, here.http_status, here.headers, here.grpc_code, here.message)
            == (there.body, there.http_status, there.headers, there.grpc_code, there.message)
        )


class Own(InvalidArgument):
    def __init__(self, where: PurePath, what: object) -> None:
        super().__init__(f"not {where}")
        self.where, self.what, self.code = where, what, Code.ABORTED


class InvalidArgumentOfMine(Own):
    pass


class Bare(GatewayError):
    pass


ModelFailedNamesake = type("ModelFailed", (ModelFailed,), {})


def test_a_class_of_a_user_falls_back_to_the_nearest_public_one() -> None:
    found = crossed(InvalidArgumentOfMine(PurePath("/a"), object()))
    assert type(found) is InvalidArgument
    assert str(found) == "not /a"
    assert found.code is Code.ABORTED
    assert type(crossed(ModelFailedNamesake("x"))) is ModelFailed
    assert (type(crossed(Bare("x"))), str(crossed(Bare("x")))) == (GatewayError, "x")


@pytest.mark.parametrize(
    "fact",
    [1 << 80, -(1 << 80), "\ud800", {1, "a"}, {(1, 2): "x"}, [[object()]], b"\xff", float("nan"), None, type],
    ids=range(10),
)
def test_any_fact_crosses_somehow(fact: Any) -> None:
    error = ModelFailed("text \ud800")
    error.fact = fact  # type: ignore[attr-defined]
    assert str(crossed(error)) == "text ?"


def test_a_bug_keeps_its_text() -> None:
    found = crossed(KeyError("secret"))
    assert (type(found).__name__, str(found)) == ("Internal", "")


@pytest.mark.parametrize(
    ("kind", "facts"),
    [("KeyError", {}), ("", {}), ("Own", {}), ("InvalidArgument", {"code": 99}), ("InvalidArgument", {"code": "x"})],
)
def test_hostile_failures(kind: str, facts: dict[str, Any]) -> None:
    with pytest.raises(CrossingBroken):
        error_of(Failure(1, kind, "", facts))
