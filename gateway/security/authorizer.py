"""Authorizes every call before it is decoded, on all ports, dialects and transports.

    limits by address ─▶ authentication ─▶ administrators only? ─▶ limits by caller ─▶ (decode) ─▶ limits by model

Which models a caller may use is checked by `access` where they are resolved. Pages, and gRPC's health and reflection,
are authorized here, too.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from tensorgate.gateway.config import Auth, Config, SharesConfig
from tensorgate.gateway.contract.call import NOBODY, Call, Caller, Peer
from tensorgate.gateway.contract.canonical import InferRequest
from tensorgate.gateway.contract.dialect import Endpoint
from tensorgate.gateway.contract.errors import Forbidden, InvalidArgument, Unauthenticated
from tensorgate.gateway.security.access import AccessRules, allows
from tensorgate.gateway.security.auth import AdminKey, Authenticator
from tensorgate.gateway.security.limit_table import LimitTable
from tensorgate.gateway.security.rate_limit import Limit, RateLimits, requests_of
from tensorgate.gateway.security.shares import share_of

HEALTH: Final = frozenset({"live", "ready", "model_ready"})
"""Endpoint.method of health checks by orchestrators."""
PREFLIGHT: Final = frozenset({"preflight"})
"""Endpoint.method of CORS preflights, which browsers send without credentials."""
MAX_UNAUTHENTICATED_BYTES: Final = 64 << 10
"""The largest body that is read of a caller who may turn out to be refused."""


class Authorizer:
    """Authenticates callers, refuses calls, and says whose share each is. Without `auth`, every caller is admitted as
    anonymous.
    """

    def __init__(
        self,
        auth: Auth | None,
        limits: RateLimits,
        access: AccessRules | None = None,
        max_elements: int | None = None,
        shares: SharesConfig | None = None,
    ) -> None:
        self._access = access
        self._max_elements = max_elements
        self._auth = auth
        self._limits = limits
        self._authenticator = (
            None if auth is None else Authenticator(auth, claim=None if shares is None else shares.claim)
        )
        self._share_of = None if shares is None else share_of(shares)
        self._mode = "off" if auth is None else auth.mode
        self._counts = bool(limits.after_decode) or any(limit.counts_rows for limit in limits.all)
        self._is_admin = allows(auth.admins if auth else ())
        self._open = PREFLIGHT | HEALTH if auth is None or auth.health == "open" else PREFLIGHT

    def enter(self, endpoint: Endpoint, call: Call, admin: AdminKey | None) -> None:
        """Authenticate a call before its body is decoded, and count it; `call.ending` releases the counts.

        Raises Unauthenticated, Forbidden, AdminRequired, RateLimited.
        """
        is_open = endpoint.method in self._open
        if not is_open:
            for limit in self._limits.before_auth:
                _count(limit, call)
        if self._authenticator is not None:
            call.caller = self._caller(call.headers, call.peer, call.auth, is_open=is_open)
        if self._share_of is not None:
            call.share = self._share_of(call)
        if endpoint.admin:
            self._check_admin(call, admin)
        if not is_open:
            for limit in self._limits.after_auth:
                _count(limit, call)

    def admit(self, call: Call, question: Any) -> None:
        """Check a decoded question. Raises Forbidden, RateLimited, and InvalidArgument for too many elements."""
        if self._access is not None:
            self._access.check_question(call.caller, question)
        if self._max_elements is not None or self._counts:
            requests = requests_of(question)
            if requests:
                self._check_elements(requests)
                self._count(call, requests)

    def admit_whole(self, call: Call, name: str) -> None:
        """Check a call that another server answers, unread: it counts as one row of the model. Raises RateLimited."""
        for limit in self._limits.after_decode:
            if name in limit.names:  # type: ignore[operator]
                _count(limit, call)

    def visible(self, call: Call, question: Any, answer: Any) -> Any:
        """An answer without the models that its caller may not use."""
        return answer if self._access is None else self._access.visible(call.caller, question, answer)

    def _check_elements(self, requests: Sequence[InferRequest]) -> None:
        most = self._max_elements
        if most is None:
            return
        elements = sum(array.size for request in requests for array in request.inputs.values())
        if elements > most:
            raise InvalidArgument(f"the request has {elements} tensor elements, more than {most}")

    def _count(self, call: Call, requests: Sequence[InferRequest]) -> None:
        for limit in self._limits.after_decode:
            if not limit.names.isdisjoint([request.view.name for request in requests]):  # type: ignore[union-attr]
                _count(limit, call)
                if limit.concerns(call):
                    limit.count_rows(call, requests)
        for limit in self._limits.all:
            if limit.concerns(call):
                limit.count_rows(call, requests)

    def may_enter(self, endpoint: Endpoint, headers: Mapping[str, str], mode: str) -> bool:
        """Whether `enter` may admit a call with these headers."""
        return endpoint.method in self._open or self.knows(headers, mode)

    def knows(self, headers: Mapping[str, str], mode: str) -> bool:
        """Whether these headers may authenticate a caller; True if the connection's certificate could."""
        if self._authenticator is None or (mode or self._mode) != "required" or self._authenticator.by_certificate:
            return True
        try:
            return self._authenticator.caller(headers, NOBODY) is not None
        except Unauthenticated:
            return False

    def check_builtin(self, headers: Mapping[str, str], peer: Peer, mode: str, *, health: bool) -> Caller | None:
        """Authenticate a caller of gRPC's health or reflection service. Raises Unauthenticated."""
        if self._authenticator is None:
            return None
        return self._caller(headers, peer, mode, is_open=health and bool(self._open & HEALTH))

    def may(self, caller: Caller | None, name: str) -> bool:
        """Whether a caller may use a model or route."""
        return self._access is None or self._access.may(caller, name)

    @property
    def counts_tensors(self) -> bool:
        """Whether requests have to be read: there are limits of their rows or elements."""
        return self._max_elements is not None or any(limit.counts_rows for limit in self._limits.all)

    @property
    def knows_callers(self) -> bool:
        """Whether callers are authenticated."""
        return self._authenticator is not None

    def check_administrator(self, headers: Mapping[str, str], peer: Peer, admin: AdminKey | None) -> None:
        """Check a call to a page that changes the server's state. Raises Unauthenticated, Forbidden, AdminRequired."""
        caller = self._authenticator.caller(headers, peer) if self._authenticator is not None else None
        if self._auth is not None and self._is_admin(caller):
            return
        if admin is not None:
            admin.check(headers)
        elif caller is None:
            raise Unauthenticated(given=False)
        else:
            raise Forbidden

    def check_page(self, kind: str, headers: Mapping[str, str], peer: Peer, mode: str) -> None:
        """Check a call to a page of this kind, metrics or page.

        Basic credentials, whose password is an API key, count here alone, because nothing can be changed here: browsers
        send them also when another site's page leads there. Browsers are prompted for them on metrics; the operator's
        page asks for a key by itself. Raises Unauthenticated, Forbidden.
        """
        auth, authenticator = self._auth, self._authenticator
        if auth is None or authenticator is None or (mode or self._mode) == "off":
            return
        wanted = auth.metrics if kind == "metrics" else auth.page
        if wanted == "open":
            return
        key = _basic(headers.get("authorization", ""))
        try:
            caller = authenticator.caller(headers, peer) if key is None else authenticator.key(key)
        except Unauthenticated:
            raise _unknown(kind, given=True) from None
        if caller is None:
            raise _unknown(kind, given=False)
        if wanted == "admins" and not self._is_admin(caller):
            raise Forbidden

    def _caller(self, headers: Mapping[str, str], peer: Peer, mode: str, *, is_open: bool) -> Caller | None:
        mode = mode or self._mode
        if mode == "off" or self._authenticator is None:
            return None
        try:
            caller = self._authenticator.caller(headers, peer)
        except Unauthenticated:
            if is_open:
                return None
            raise
        if caller is None and mode == "required" and not is_open:
            raise Unauthenticated(given=False)
        return caller

    def _check_admin(self, call: Call, admin: AdminKey | None) -> None:
        """Raises Forbidden or AdminRequired; without `auth` and `admin`, everybody is an administrator."""
        if self._auth is not None and self._is_admin(call.caller):
            return
        if admin is not None:
            admin.check(call.headers)
        elif self._auth is not None:
            raise Forbidden


def _count(limit: Limit, call: Call) -> None:
    if limit.concerns(call) and (leave := limit.enter(call)) is not None:
        call.on_end(leave)


def _basic(authorization: str) -> str | None:
    """The password of Basic credentials; None for another scheme."""
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        return base64.b64decode(value.strip(), validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""


def _unknown(kind: str, *, given: bool) -> Unauthenticated:
    error = Unauthenticated(given=given)
    if kind == "metrics":
        error.http_headers = {"WWW-Authenticate": 'Basic realm="tensorgate", charset="UTF-8"'}
    return error


def authorizer_of(
    config: Config, behind: Callable[[str], Iterable[str]], table: LimitTable | None = None
) -> tuple[Authorizer | None, AccessRules | None]:
    """The authorizer and the access rules of a configuration; None if it has none. `behind` gives the models that a
    route leads to; `table` is where several processes count calls together. Raises ValueError, OSError for keys that
    cannot be read.
    """
    auth, most, shares = config.auth, config.limits.max_elements, config.shares
    if auth is None and not config.rate_limits and most is None and shares is None:
        return None, None
    access = AccessRules(auth.allow, behind, hide=auth.hide_forbidden) if auth is not None and auth.allow else None
    return Authorizer(auth, RateLimits(config.rate_limits, table=table), access, most, shares), access
