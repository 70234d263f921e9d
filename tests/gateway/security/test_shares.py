"""Whose share a call is, by what a configuration goes by."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from tensorgate.gateway.config import Jwt, SharesConfig
from tensorgate.gateway.contract.call import Call, Caller
from tensorgate.gateway.security.auth import JwtVerifier
from tensorgate.gateway.security.authorizer import Authorizer
from tensorgate.gateway.security.rate_limit import RateLimits
from tensorgate.gateway.security.shares import OTHERS, share_of

SECRET = "0123456789abcdef0123456789abcdef"


def call(caller: Caller | None = None, listener: tuple[str, ...] = (), **headers: str) -> Call:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Call(b"", "POST", "/", named, "http", caller=caller, listener=listener)


def by(**config: Any) -> Any:
    return share_of(SharesConfig(**config))


def test_by_the_caller_s_name_or_a_role_with_a_weight() -> None:
    of = by(weights={"alice": 3, "role:batch": 1, "role:web": 2})
    assert of(call(Caller("alice", frozenset({"web"})))) == "alice"
    assert of(call(Caller("bob"))) == "bob"
    assert of(call(Caller("bob", frozenset({"web", "batch"})))) == "role:batch", "the first that has a weight"
    assert of(call(Caller("bob", frozenset({"other"})))) == "bob"
    assert of(call()) == ""
    assert of(call(Caller("anonymous"))) == "", "a name that stands for those without one"
    assert of(call(Caller("role:web"))) == OTHERS, "nobody has a role by being called so"


def test_by_a_header_only_those_that_have_a_weight() -> None:
    of = by(by="header", header="X-Team", weights={"a": 3})
    assert of(call(x_team="a")) == "a"
    assert of(call(x_team="b")) == of(call(x_team="c")) == OTHERS
    assert of(call()) == ""


def test_by_the_port() -> None:
    of = by(by="listener", weights={"10.0.0.1:80": 2})
    assert of(call(listener=("front", "10.0.0.1:80"))) == "10.0.0.1:80"
    assert of(call(listener=("back", "10.0.0.1:81"))) == "back"
    assert of(call()) == ""


def test_by_a_claim_and_where_there_is_none_by_name() -> None:
    of = by(by="claim", claim="team", weights={"role:web": 2})
    assert of(call(Caller("alice", claim="vision"))) == "vision"
    assert of(call(Caller("alice"))) == "alice"
    assert of(call(Caller("alice", claim="role:web"))) == OTHERS
    assert of(call(Caller("alice", frozenset({"web"})))) == "role:web"
    assert of(call()) == ""


@pytest.mark.parametrize(
    ("said", "known"), [("vision", "vision"), (7, ""), ("", ""), ("a\nb", ""), ("x" * 257, ""), (None, "")]
)
def test_a_token_carries_its_claim(said: Any, known: str, monkeypatch: pytest.MonkeyPatch) -> None:
    jwt = pytest.importorskip("jwt")
    monkeypatch.setenv("SECRET", SECRET)
    verifier = JwtVerifier(Jwt(algorithms=("HS256",), secret_env="SECRET"), claim="team")
    token = jwt.encode({"sub": "alice", "exp": int(time.time()) + 60, "team": said}, SECRET, "HS256")
    assert verifier.caller(token, b"digest").claim == known


def test_the_authorizer_says_it_of_every_call() -> None:
    endpoint: Any = SimpleNamespace(method="infer", admin=False)
    for config, share in (
        (SharesConfig(by="header", header="x-team", weights={"a": 2}), "a"),
        (None, ""),
    ):
        each = call(x_team="a")
        Authorizer(None, RateLimits(()), shares=config).enter(endpoint, each, None)
        assert each.share == share


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"by": "header"}, "by: header needs header"),
        ({"by": "claim"}, "by: claim needs claim"),
        ({"header": "x-team"}, "header is of by: header"),
        ({"by": "listener", "claim": "team"}, "claim is of by: claim"),
        ({"weights": {"a": 0}}, "greater than 0"),
        ({"default_weight": -1}, "greater than 0"),
        ({"max_queue_size": 0}, "greater than or equal to 1"),
    ],
)
def test_what_makes_no_sense_is_refused(config: Any, text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        SharesConfig(**config)
