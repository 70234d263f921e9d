"""Authenticates callers: API keys, JSON Web Tokens, client certificates, and the administrator's key.

Only the SHA-256 of an API key is known, and looked up in a table, so that timing reveals nothing of the key. A token is
verified once and cached by its SHA-256 until it expires.
"""

from __future__ import annotations

import hmac
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeGuard

from tensorgate.gateway.config import Admin, Auth, Jwt
from tensorgate.gateway.contract.call import Caller, Peer
from tensorgate.gateway.contract.errors import AdminRequired, Unauthenticated

log = logging.getLogger(__name__)

MAX_CREDENTIAL_BYTES: Final = 8 << 10
_MAX_NAME_CHARACTERS: Final = 256
MAX_TOKENS: Final = 4096
"""How many verified tokens are cached."""
_DATES: Final = ("exp", "nbf", "iat")
_LAST_SECOND: Final = 2**53
"""JSON's numbers above it are not exact, and no date is that late."""
LOOK_EVERY_S: Final = 1.0
"""The shortest time between two checks whether files of keys have changed."""
_CLOCK_TICK_NS: Final = 2_000_000_000
"""File systems count time in steps of this length at most: two changes within one may leave the same stamp, so files
that changed so shortly before they were read are read once more."""
_FileStamp: TypeAlias = tuple[int, int, int, int]
"""(size, inode, content changed, anything changed), the last two in nanoseconds since the epoch."""


class Authenticator:
    """Credentials -> caller. Files of keys are read again when they change; if that fails, the old keys stay valid.

    Raises ValueError if the first reading fails.
    """

    def __init__(self, auth: Auth, clock: Callable[[], float] = time.time, claim: str | None = None) -> None:
        """`claim` is one that callers carry along."""
        self._auth = auth
        self._claim = claim
        self._clock = clock
        self.by_certificate = auth.certificates
        files = (auth.keys_file.path if auth.keys_file else None, auth.jwt.file() if auth.jwt else None)
        self._files = [file for file in files if file is not None]
        self._stamp: tuple[_FileStamp, ...] | None = None
        """Of the files that were read last; None where they may have changed since without another stamp."""
        self._problem = ""
        self._look_at = clock() + LOOK_EVERY_S
        self._read()

    def caller(self, headers: Mapping[str, str], peer: Peer) -> Caller | None:
        """Whose credentials these headers or this connection carry; None if there are none. Raises Unauthenticated."""
        bearer = headers.get("authorization")
        if bearer is not None:
            scheme, _, credential = bearer.partition(" ")
            if scheme.lower() != "bearer":
                raise Unauthenticated(given=True)
            return self._known(credential.strip(), may_be_token=True)
        key = headers.get("x-api-key")
        if key is not None:
            return self._known(key, may_be_token=False)
        if self.by_certificate and (names := peer.names()):
            return Caller(names[0])
        return None

    def key(self, credential: str) -> Caller:
        """Whose API key that is. Raises Unauthenticated."""
        return self._known(credential, may_be_token=False)

    def _known(self, credential: str, *, may_be_token: bool) -> Caller:
        if self._files and self._clock() > self._look_at:
            self._look_again()
        data = credential.encode("utf-8", "surrogateescape")
        if not 0 < len(data) <= MAX_CREDENTIAL_BYTES:
            raise Unauthenticated(given=True)
        digest = sha256(data).digest()
        found = self._keys.get(digest)
        if found is not None and hmac.compare_digest(found[0], digest):
            return found[1]
        if may_be_token and self._tokens is not None:
            return self._tokens.caller(credential, digest)
        raise Unauthenticated(given=True)

    def _read(self) -> None:
        """Read keys and tokens' keys; if either fails, neither changes. Raises ValueError, OSError."""
        stamp = self._stamps()  # first: so a change while they are read gives another one
        now_ns = time.time_ns()
        keys = {
            digest: (digest, Caller(name, frozenset(key.roles)))
            for name, key in self._auth.all_keys().items()
            for digest in key.digests()
        }
        jwt = self._auth.jwt
        self._tokens = None if jwt is None else JwtVerifier(jwt, self._clock, self._claim)
        self._keys = keys
        is_settled = all(abs(now_ns - changed_ns) > _CLOCK_TICK_NS for *_, changed_ns in stamp)
        self._stamp = stamp if is_settled else None

    def _stamps(self) -> tuple[_FileStamp, ...]:
        return tuple(
            [(seen.st_size, seen.st_ino, seen.st_mtime_ns, seen.st_ctime_ns) for seen in map(Path.stat, self._files)]
        )

    def _look_again(self) -> None:
        self._look_at = self._clock() + LOOK_EVERY_S
        try:
            if self._stamps() == self._stamp:
                return
            self._read()
        except (OSError, ValueError) as error:  # and once more at the next look: a file may be half written now
            if str(error) != self._problem:
                log.error("the keys from before stay: %s", error)
            self._problem = str(error)
        else:
            self._problem = ""
            log.info("keys read again: %s", ", ".join(map(str, self._files)))


class AdminKey:
    """The header, and its value, that a call must carry to change the server's state. Compared in constant time."""

    def __init__(self, admin: Admin) -> None:
        self._header = admin.header
        self._key = admin.header.lower()
        self._value = admin.value()

    def check(self, headers: Mapping[str, str]) -> None:
        """Raises AdminRequired unless the headers carry the key."""
        shown = headers.get(self._key, "")
        if not hmac.compare_digest(shown.encode("utf-8", "surrogateescape"), self._value):
            raise AdminRequired(self._header)


class JwtVerifier:
    """Verifies JSON Web Tokens. Raises ValueError for invalid keys."""

    def __init__(self, config: Jwt, clock: Callable[[], float] = time.time, claim: str | None = None) -> None:
        self._config = config
        self._claim = claim
        self._clock = clock
        # By the token's digest. Stale when the token expires, which is checked each time, and when the keys change:
        # then there is a new JwtVerifier.
        self._verified: OrderedDict[bytes, Caller] = OrderedDict()
        self._keys = config.keys()

    def caller(self, token: str, digest: bytes) -> Caller:
        """The caller that a token names. Raises Unauthenticated."""
        known = self._verified.get(digest)
        if known is not None:
            if self._clock() < known.until:
                return known
            del self._verified[digest]
            raise Unauthenticated(given=True)
        caller = self._verify(token)
        self._verified[digest] = caller
        if len(self._verified) > MAX_TOKENS:
            self._verified.popitem(last=False)
        return caller

    def _verify(self, token: str) -> Caller:
        import jwt  # an extra

        config = self._config
        try:
            key = (
                self._keys[jwt.get_unverified_header(token).get("kid")] if None not in self._keys else self._keys[None]
            )
            claims = jwt.decode(
                token,
                key,
                algorithms=list(config.algorithms),
                issuer=config.issuer,
                audience=config.audience,
                leeway=config.leeway_seconds,
                options={"require": ["exp", config.name_claim, *config.required_claims]},
            )
        except (jwt.PyJWTError, KeyError, ValueError, TypeError, ArithmeticError, RecursionError):
            raise Unauthenticated(given=True) from None
        if not all(_is_date(claims[claim]) for claim in _DATES if claim in claims):
            raise Unauthenticated(given=True)
        name, roles = claims[config.name_claim], claims.get(config.roles_claim, ())
        if not _is_name(name):
            raise Unauthenticated(given=True)
        listed = roles.split() if isinstance(roles, str) else roles if isinstance(roles, (list, tuple)) else ()
        known = frozenset(role for role in listed if isinstance(role, str))
        claim = claims.get(self._claim) if self._claim else None
        until = float(claims["exp"]) + config.leeway_seconds
        return Caller(name, known, until, claim if _is_name(claim) else "")


def _is_name(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and value.isprintable() and 0 < len(value) <= _MAX_NAME_CHARACTERS


def _is_date(value: Any) -> bool:
    """Whether a claim is a NumericDate, a JSON number (RFC 7519, section 2). PyJWT also accepts text and booleans."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _LAST_SECOND
