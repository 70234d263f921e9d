"""Contradictions between sections: routes without a model, ports that collide, uploads that everybody could make."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

from tensorgate.gateway.config.listeners import Listen
from tensorgate.gateway.config.messages import hint
from tensorgate.gateway.config.options import EVERYTHING, Config
from tensorgate.gateway.config.values import parse_bind, socket_path
from tensorgate.gateway.config.yaml_tree import Loc, key_path, quoted

_ANY_HOST = {"0.0.0.0", "::"}  # noqa: S104
_ANYBODY: Final = "anonymous"
"""Stands for callers without credentials in a list of administrators."""


def contradictions(data: Any, classes: type[Config]) -> Iterator[tuple[Loc, str]]:
    """(location, remark) per contradiction; `classes` validates the same data.

    The data may be wrong in other ways too: values of an unexpected type are skipped, so that one reading of a file
    reports everything.
    """
    models = _mapping(_mapping(data).get("models"))
    elsewhere = bool(_sequence(_mapping(data).get("repositories")) or _mapping(_mapping(data).get("upstreams")))
    if not elsewhere:
        yield from _no_models(data)
        yield from _unknown_loads(_mapping(_mapping(data).get("model_control")), models)
    for name, route in _mapping(_mapping(data).get("routes")).items():
        for loc, target in _targets(route):
            for key, remark in _target_contradictions(name, target, models):
                if not elsewhere or target["model"] in models:  # what a repository holds is known when it is read
                    yield ("routes", name, *loc, key), remark
    yield from _unknown_listeners(data)
    yield from _not_of_grpc(_mapping(_mapping(data).get("listen")))
    yield from _unknown_limited_listeners(data)
    yield from _shares_of_nobody(data)
    yield from _goals_beside_shares(data)
    yield from _shared_ports(_mapping(_mapping(data).get("listen")))
    yield from exposed_uploads(data, classes.uploading_dialects)


def exposed_uploads(data: Any, dialects: Collection[str]) -> Iterator[tuple[Loc, str]]:
    """Uploads that anybody could make who reaches a port from another machine and speaks one of these `dialects`."""
    control, auth = _mapping(_mapping(data).get("model_control")), _mapping(data).get("auth")
    if control.get("allow_uploads") is not True:
        return
    for bind, mode in _ports_of_others(_mapping(data), dialects):
        loc: Loc = ("model_control", "allow_uploads")
        if auth is None:
            if _mapping(data).get("admin") is None:
                remedy = "needs admin or auth, or a port of 127.0.0.1"
                yield loc, f"whoever reaches {bind} could bring models of their own: {remedy}"
                return
        elif _ANYBODY in _sequence(_mapping(auth).get("admins")) and mode != "required":
            yield loc, f"auth.admins has {_ANYBODY}: whoever reaches {bind} could bring models of their own"
            return


def _ports_of_others(data: Mapping[str, Any], dialects: Collection[str]) -> Iterator[tuple[str, str]]:
    """(bind, auth mode) of each port that other machines reach and that speaks one of the dialects."""
    listen = {"http": [each.model_dump() for each in Listen().http], **_mapping(data.get("listen"))}
    usual = _mapping(data.get("auth")).get("mode", "required")
    for port in [*_sequence(listen["http"]), *_sequence(listen.get("grpc"))]:
        try:
            host, _ = parse_bind(_mapping(port).get("bind"))
        except ValueError:  # or a Unix socket, which is of this machine
            continue
        spoken = port.get("dialects")
        if not _is_of_this_machine(host) and (spoken is None or not set(dialects).isdisjoint(_sequence(spoken))):
            yield port["bind"], port.get("auth") or usual


def _is_of_this_machine(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _no_models(data: Any) -> Iterator[tuple[Loc, str]]:
    """Without a repository, the file must name models."""
    if isinstance(data, dict) and "models" not in data:
        yield (), "models: missing required key"
    elif _mapping(data).get("models") == {}:
        yield ("models",), "found an empty mapping, expected at least 1 entry"


def _unknown_loads(control: Mapping[str, Any], models: Mapping[str, Any]) -> Iterator[tuple[Loc, str]]:
    for index, name in enumerate(_sequence(control.get("load"))):
        if isinstance(name, str) and name != EVERYTHING and name not in models:
            yield ("model_control", "load", index), f"no model {quoted(name)}{hint(name, sorted(models))}"


def _targets(route: Any) -> Iterator[tuple[Loc, Mapping[str, Any]]]:
    """(location within the route, target) for all targets of a route, in its short form or its long one."""
    if isinstance(route, list):
        yield from (((index,), _mapping(target)) for index, target in enumerate(route))
    for key in ("targets", "fallback"):
        for index, target in enumerate(_sequence(_mapping(route).get(key))):
            yield (key, index), _mapping(target)
    for index, target in enumerate(_sequence(_mapping(_mapping(route).get("mirror")).get("to"))):
        yield ("mirror", "to", index), _mapping(target)
    for number, rule in enumerate(_sequence(_mapping(route).get("match"))):
        for index, target in enumerate(_sequence(_mapping(rule).get("to"))):
            yield ("match", number, "to", index), _mapping(target)


def _unknown_listeners(data: Any) -> Iterator[tuple[Loc, str]]:
    """Rules whose listener does not exist."""
    known = _listener_names(data)
    for name, route in _mapping(_mapping(data).get("routes")).items():
        for number, rule in enumerate(_sequence(_mapping(route).get("match"))):
            wanted = _mapping(rule).get("listener")
            for text in wanted if isinstance(wanted, list) else [wanted]:
                if known and isinstance(text, str) and text not in known:
                    loc: Loc = ("routes", name, "match", number, "listener")
                    yield loc, f"no listener has the name or the bind {quoted(text)}{hint(text, known)}"


def _not_of_grpc(listen: Mapping[str, Any]) -> Iterator[tuple[Loc, str]]:
    """Keys of gRPC ports that only HTTP ports support."""
    for index, port in enumerate(_sequence(listen.get("grpc"))):
        if _mapping(port).get("cors") is not None:
            yield ("listen", "grpc", index, "cors"), "browsers do not speak gRPC"


def _unknown_limited_listeners(data: Any) -> Iterator[tuple[Loc, str]]:
    known = _listener_names(data)
    for number, limit in enumerate(_sequence(_mapping(data).get("rate_limits"))):
        for index, text in enumerate(_sequence(_mapping(limit).get("listeners"))):
            if isinstance(text, str) and text not in known:
                loc: Loc = ("rate_limits", number, "listeners", index)
                yield loc, f"no listener has the name or the bind {quoted(text)}{hint(text, known)}"


def _shares_of_nobody(data: Any) -> Iterator[tuple[Loc, str]]:
    """Shares of callers that there cannot be."""
    shares = _mapping(_mapping(data).get("shares"))
    by = shares.get("by", "caller")
    if shares and by in ("caller", "claim") and _mapping(data).get("auth") is None:
        yield ("shares",), f"by: {by} needs auth, without which nobody has a name; or say by: header or by: listener"
    if by == "listener":
        known = [*_listener_names(data), _ANYBODY]
        for name in _mapping(shares.get("weights")):
            if isinstance(name, str) and name not in known:
                yield (
                    ("shares", "weights", name),
                    f"no listener has the name or the bind {quoted(name)}{hint(name, known)}",
                )


def _goals_beside_shares(data: Any) -> Iterator[tuple[Loc, str]]:
    """Goals of models whose callers wait by their shares."""
    if _mapping(data).get("shares") is not None:
        for name, model in _mapping(_mapping(data).get("models")).items():
            if _mapping(model).get("target_p99_ms") is not None:
                yield (
                    ("models", name, "target_p99_ms"),
                    "who is due first goes first with a goal, and who has had least with shares; leave out one of them",
                )


def _listener_names(data: Any) -> list[str]:
    """Names and binds of the ports of both transports."""
    listen = _mapping(_mapping(data).get("listen"))
    ports = [_mapping(each) for transport in ("http", "grpc") for each in _sequence(listen.get(transport))]
    return sorted({str(port.get(key)) for port in ports for key in ("name", "bind") if port.get(key)})


def _target_contradictions(
    route: str, target: Mapping[str, Any], models: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    model, label = target.get("model"), target.get("label")
    if not isinstance(model, str):
        return
    if model not in models:
        yield "model", f"no model {quoted(model)}{hint(model, sorted(models))}"
        return
    if route in models and model != route:
        yield "model", f"a route named like the model {route} can lead only to it"
    labels = _mapping(_mapping(models[model]).get("labels"))
    if isinstance(label, str) and label not in labels:
        yield "label", f"the model {model} has no label {quoted(label)}{hint(label, sorted(labels))}"


def _shared_ports(listen: Mapping[str, Any]) -> Iterator[tuple[Loc, str]]:
    located: list[tuple[Loc, Any]] = []
    for transport in ("http", "grpc"):
        located += [(("listen", transport, i), each) for i, each in enumerate(_sequence(listen.get(transport)))]
    taken: list[tuple[str, int, Loc]] = []
    paths: dict[Path, Loc] = {}
    for loc, listener in [*located, (("listen", "metrics"), listen.get("metrics"))]:
        bind = _mapping(listener).get("bind")
        if (path := socket_path(bind)) is not None:
            if (first := paths.setdefault(path, loc)) != loc:
                yield (*loc, "bind"), f"the path is taken by {key_path(first)}"
            continue
        try:
            host, port = parse_bind(bind)
        except ValueError:
            continue
        for other_host, other_port, other in taken:
            if port == other_port != 0 and (host == other_host or {host, other_host} & _ANY_HOST):
                yield (*loc, "bind"), f"port {port} is taken by {key_path(other)}"
                break
        taken.append((host, port, loc))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _sequence(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
