"""Gateways behind gateways: their configurations, and requests to them."""

from __future__ import annotations

from typing import Any

import yaml
from serving import Gateway


def listening() -> dict[str, Any]:
    return {"http": [{"bind": "127.0.0.1:0"}], "grpc": [{"bind": "127.0.0.1:0"}]}


def address(gateway: Gateway, transport: str) -> str:
    return f"127.0.0.1:{gateway.grpc_port if transport == 'grpc' else gateway.port}"


def remote(dialect: str, transport: str, where: str | list[str], model: str, **changes: Any) -> dict[str, Any]:
    upstream = {"dialect": dialect, "transport": transport, "address": where, "model": model}
    upstream |= changes.pop("upstream", {})
    return {"backend": "remote", "upstream": upstream, **changes}


def front(models: dict[str, Any]) -> str:
    return yaml.safe_dump({"listen": listening(), "models": models})


def infer(gateway: Gateway, model: str, **inputs: list[Any]) -> Any:
    """A V2 request; FP32 inputs as columns."""
    tensors = [
        {"name": name, "datatype": "FP32", "shape": [len(values), 1], "data": values} for name, values in inputs.items()
    ]
    return gateway.post(f"/v2/models/{model}/infer", {"inputs": tensors})
