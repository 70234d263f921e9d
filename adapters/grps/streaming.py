"""Whether a caller wants a stream, told where the configuration says: query, header or body. Source: grps v1.1.0,
`streaming_ctrl` of server.yml.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorgate.adapters.grps.options import StreamingControl
from tensorgate.adapters.json.body import OBJECT, read
from tensorgate.gateway.contract.call import Call
from tensorgate.gateway.contract.errors import GatewayError

STREAMING = "streaming"
"""The argument of an address whose query asks for a stream."""

Asks = Callable[[Call], bool]


def asks_for_stream(control: StreamingControl) -> Asks:
    """What looks at a call; the mode replaces the others entirely."""
    if control.ctrl_mode == "query_param":
        return lambda call: STREAMING in call.args
    if control.ctrl_mode == "header_param":
        name = control.ctrl_key.lower()
        return lambda call: call.headers.get(name, "").lower() == "true"
    return lambda call: _member(call, control.ctrl_key) is True


def _member(call: Call, key: str) -> Any:
    """A member of a body that is a JSON object; None of any other body."""
    try:
        value = read(bytes(call.body), call.max_json_depth or 100)
    except GatewayError:
        return None
    return value.get(key) if isinstance(value, OBJECT) else None
