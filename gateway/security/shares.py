"""Whose share of the devices a call is answered from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from tensorgate.gateway.config import SharesConfig
from tensorgate.gateway.contract.call import Call
from tensorgate.gateway.security.access import ROLE, UNKNOWN

ShareOf: TypeAlias = Callable[[Call], str]
"""The caller of a call, as the weights name it; "" is whom they call anonymous."""
OTHERS: Final = "(others)"


def share_of(shares: SharesConfig) -> ShareOf:
    """How a configuration tells callers apart."""
    weights = frozenset(shares.weights)
    if shares.by == "listener":
        return lambda call: next((name for name in call.listener if name in weights), (*call.listener, "")[0])
    if shares.by == "header":
        header = (shares.header or "").lower()

        def by_header(call: Call) -> str:
            value = call.headers.get(header, "")
            return value if value in weights or not value else OTHERS

        return by_header
    roles = [name for name in shares.weights if name.startswith(ROLE)]

    def by_name(call: Call) -> str:
        caller = call.caller
        if caller is None:
            return ""
        if caller.name not in weights:
            for role in roles:
                if role.removeprefix(ROLE) in caller.roles:
                    return role
        return _own(caller.name)

    def by_claim(call: Call) -> str:
        claim = "" if call.caller is None else call.caller.claim
        return _own(claim) if claim else by_name(call)

    return by_claim if shares.by == "claim" else by_name


def _own(name: str) -> str:
    """The share of a name, which is never that of a role."""
    return OTHERS if name.startswith(ROLE) else "" if name == UNKNOWN else name
