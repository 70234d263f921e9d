"""What no section of the configuration can know by itself: routes and their models, ports and their neighbours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.config.values import parse_bind
from gateway.config.words import hint
from gateway.config.yaml_tree import Loc, key_path, quoted

_ANY_HOST = {"0.0.0.0", "::"}  # noqa: S104


def contradictions(data: Any) -> Iterator[tuple[Loc, str]]:
    """(place, remark) for what only several sections together show to be wrong.

    Works on plain data that may be wrong in other ways too, and passes over what it cannot understand, so that one
    reading of a file tells everything.
    """
    models = _mapping(_mapping(data).get("models"))
    elsewhere = bool(_sequence(_mapping(data).get("repositories")))
    if not elsewhere:
        yield from _no_models(data)
    for name, targets in _mapping(_mapping(data).get("routes")).items():
        for index, target in enumerate(_sequence(targets)):
            for key, remark in _target_contradictions(name, _mapping(target), models):
                if not elsewhere or target["model"] in models:  # what a repository holds is known when it is read
                    yield ("routes", name, index, key), remark
    yield from _shared_ports(_mapping(_mapping(data).get("listen")))


def _no_models(data: Any) -> Iterator[tuple[Loc, str]]:
    """Only a repository makes up for having no models here."""
    if isinstance(data, dict) and "models" not in data:
        yield (), "models: missing required key"
    elif _mapping(data).get("models") == {}:
        yield ("models",), "found an empty mapping, expected at least 1 entry"


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
    places: list[tuple[Loc, Any]] = []
    for transport in ("http", "grpc"):
        places += [(("listen", transport, i), each) for i, each in enumerate(_sequence(listen.get(transport)))]
    taken: list[tuple[str, int, Loc]] = []
    for loc, listener in [*places, (("listen", "metrics"), listen.get("metrics"))]:
        try:
            host, port = parse_bind(_mapping(listener).get("bind"))
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
