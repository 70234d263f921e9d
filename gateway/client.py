"""What the command line asks a running gateway, over Open Inference V2 and the standard library alone."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

Say = Callable[[str], None]


class ClientError(Exception):
    """The question could not be asked, or was answered by an error; str() is for the person at the terminal."""


class Gateway:
    """A gateway at an address."""

    def __init__(self, url: str, timeout: float) -> None:
        if not url.startswith(("http://", "https://")):
            raise ClientError(f"--url must start with http:// or https://, found {url}")
        self._url = url.rstrip("/")
        self._timeout = timeout

    def ask(self, path: str, body: Any = None) -> Any:
        """GET, or POST of a body as JSON -> the answer's JSON. Raises ClientError."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data)  # noqa: S310  (the scheme is checked above)
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as answer:  # noqa: S310
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise ClientError(f"{self._url}{path}: {error.code} {_told(error.read())}") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise ClientError(f"{self._url}{path}: {reason}") from None


def health(gateway: Gateway, live: bool, wait: float, say: Say) -> None:
    """Raises ClientError unless the gateway is ready (or live) within `wait` seconds."""
    path = "/v2/health/live" if live else "/v2/health/ready"
    until = time.monotonic() + wait
    while True:
        try:
            gateway.ask(path)
        except ClientError:
            if time.monotonic() >= until:
                raise
            time.sleep(0.2)
        else:
            say("live" if live else "ready")
            return


def models(gateway: Gateway, say: Say) -> None:
    """One block per model: versions, and every input and output with datatype and shape."""
    for name in gateway.ask("/v2/models")["models"]:
        try:
            about = gateway.ask(f"/v2/models/{urllib.parse.quote(name, safe='')}")
        except ClientError as error:
            say(f"{name}: {error}")
            continue
        say(f"{name}  versions {', '.join(about['versions'])}  {about['platform']}{_placed(gateway, name)}")
        for kind in ("inputs", "outputs"):
            for tensor in about[kind]:
                say(f"  {kind[:-1]:6} {tensor['name']}: {tensor['datatype']} {tensor['shape']}")


def _placed(gateway: Gateway, name: str) -> str:
    """In how many copies a model is where, as far as the gateway says it."""
    try:
        groups = gateway.ask(f"/v2/models/{urllib.parse.quote(name, safe='')}/config").get("instance_group", [])
    except ClientError:
        return ""
    return "".join(f"  {_times(group['count'])}{_where(group)}" for group in groups)


def _where(group: Mapping[str, Any]) -> str:
    gpus = group.get("gpus") or ()
    return ", ".join(f"cuda:{gpu}" for gpu in gpus) or ("cuda" if group.get("kind") == "KIND_GPU" else "cpu")


def _times(count: int) -> str:
    return f"{count} x " if count > 1 else ""


def call(gateway: Gateway, model: str, version: str | None, inputs: Iterable[str], say: Say) -> None:
    """Send inputs as [NAME=]JSON or [NAME=]@FILE, print the outputs. Raises ClientError."""
    path = f"/v2/models/{urllib.parse.quote(model, safe='')}" + (f"/versions/{version}" if version else "")
    about = gateway.ask(path)
    specs = {tensor["name"]: tensor for tensor in about["inputs"]}
    answer = gateway.ask(f"{path}/infer", {"inputs": [_tensor(text, specs) for text in inputs]})
    say(f"{answer['model_name']} version {answer['model_version']}")
    for output in answer["outputs"]:
        say(f"  {output['name']}: {output['datatype']} {output['shape']} {json.dumps(output['data'])}")


def _tensor(text: str, specs: dict[str, Any]) -> dict[str, Any]:
    name, value = _name_and_value(text, specs)
    spec = specs[name]
    shape = _nesting(value)
    if len(shape) == len(spec["shape"]) - 1:
        shape = [1, *shape]
    data = value if isinstance(value, list) else [value]
    return {"name": name, "datatype": spec["datatype"], "shape": shape, "data": data}


def _name_and_value(text: str, specs: dict[str, Any]) -> tuple[str, Any]:
    name, separator, rest = text.partition("=")
    if not separator or name not in specs:
        if len(specs) != 1:
            raise ClientError(f"say which input {text[:40]!r} is: NAME=..., with NAME one of {', '.join(specs)}")
        (name,), rest = specs, text
    try:
        content = Path(rest[1:]).read_text(encoding="utf-8") if rest.startswith("@") else rest
        return name, json.loads(content)
    except OSError as error:
        raise ClientError(f"cannot read {rest[1:]}: {error.strerror}") from None
    except ValueError as error:
        raise ClientError(f"input {name} is no JSON: {error}") from None


def _nesting(value: Any) -> list[int]:
    shape = []
    while isinstance(value, list):
        shape.append(len(value))
        if not value:
            break
        value = value[0]
    return shape


def _told(body: bytes) -> str:
    """The text of an error answer, as far as it has one."""
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace")
