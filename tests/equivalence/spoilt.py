"""Requests with something wrong in them: nobody knows what that is, but both servers have to find the same."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, Final

from form import Ask

_FEW: Final = 4


def spoilt(ask: Ask, document: Any, dump: Callable[[Any], bytes]) -> bytes:
    """The body, or one that somebody has done something to."""
    text = dump(document)
    if not ask.spoil:
        return text
    source = random.Random(ask.spoil)
    way = source.randrange(6)
    if way == 0:
        return text[: source.randrange(len(text))]
    if way == 1:
        at = source.randrange(len(text))
        return text[:at] + bytes([source.choice(b'"[]{},:0x\\ \xff')]) + text[at + 1 :]
    if way == 2:
        return text + source.choice((b" ", b"x", b"{}", b"\0"))
    if way == 3:
        return text.replace(b"0", source.choice((b"1e400", b"-1", b"true", b"null", b'"0"', b"1.5", b"99999999999")), 1)
    if way == 4:
        return text.replace(b'"', b"'", 1)
    document = json.loads(json.dumps(document))
    _change(document, source)
    return dump(document)


def _change(document: Any, source: random.Random) -> None:
    """One member somewhere is gone, is something else, or is there twice."""
    places: list[tuple[Any, Any]] = []

    def walk(value: Any, depth: int = 0) -> None:
        keys = (
            list(value) if isinstance(value, dict) else range(min(len(value), _FEW)) if isinstance(value, list) else ()
        )
        for key in keys:
            places.append((value, key))
            if depth < _FEW:
                walk(value[key], depth + 1)

    walk(document)
    if not places:
        return
    owner, key = source.choice(places)
    way = source.randrange(4)
    if way == 0:
        del owner[key]
    elif way == 1 and isinstance(owner, list):
        owner.append(owner[key])
    elif way == 2 and isinstance(owner, dict):
        owner[f"{key}_"] = owner.pop(key)
    else:
        owner[key] = source.choice((None, True, -1, 1.5, "x", [], {}, [1, "a"], 1 << 40, "FP64", "INT8"))


def spoil_proto(ask: Ask, made: Any) -> None:
    """A field somewhere is gone or is something else."""
    source = random.Random(ask.spoil)
    for _ in range(source.randint(1, 2)):
        target = made
        for _ in range(source.randint(0, 2)):
            below = [value for each, value in target.ListFields() if each.type == each.TYPE_MESSAGE]
            inner = [one for value in below for one in ([value] if hasattr(value, "ListFields") else _some(value))]
            if not inner:
                break
            target = source.choice(inner)
        fields = [each for each, _ in target.ListFields()]
        if not fields:
            continue
        chosen = source.choice(fields)
        value = getattr(target, chosen.name)
        if isinstance(value, str):
            setattr(target, chosen.name, value + "_")
        elif isinstance(value, bytes):
            setattr(target, chosen.name, value[:-1])
        elif isinstance(value, int) and not isinstance(value, bool):
            setattr(target, chosen.name, (value + 1) % 20)
        elif hasattr(value, "append") and len(value) and isinstance(value[0], (int, bytes)) and source.random() < 0.5:
            value.append(value[0])
        elif hasattr(value, "pop") and not hasattr(value, "keys") and len(value):
            value.pop()
        else:
            target.ClearField(chosen.name)


def _some(value: Any) -> list[Any]:
    if hasattr(value, "values"):
        return [value[key] for key in sorted(value) if hasattr(value[key], "ListFields")]
    return list(value)
