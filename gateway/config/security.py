"""Who may call, who may administrate, how often, and with which shares of the devices.

auth:
  keys_file: keys.yaml
  jwt: {algorithms: [RS256], public_key_file: issuer.pem, issuer: "https://issuer.example"}
  admins: ["role:ops"]
  allow: {resnet: [alice, "role:vision"]}
rate_limits: [{requests_per_second: 100, burst: 200}]
shares: {weights: {alice: 3, "role:batch": 1}}
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError, ValidationInfo, field_validator, model_validator

from tensorgate.gateway.config.yaml_tree import NotYaml, key_path, read_tree
from tensorgate.gateway.contract.extras import install_command
from tensorgate.gateway.contract.files import Existing, FileRef
from tensorgate.gateway.contract.options import Options

MAX_KEYS_BYTES: Final = 4 << 20
_SECRETS: Final = ("HS256", "HS384", "HS512")
_PATTERN: Final = r"^[^\x00-\x20\x7f]+$"

Mode = Literal["required", "optional", "off"]
Who = Annotated[str, Field(pattern=_PATTERN)]
"""A caller's name, or "role:NAME"; "*" is every caller who is known, "anonymous" those who are not."""


class Admin(Options):
    """Who may call what changes the server's state: load, unload, online, log settings and their like."""

    header: str = Field(pattern=r"^[A-Za-z0-9_-]+$")
    """The HTTP header, or the gRPC metadata, that such calls must carry."""
    value_env: str | None = Field(default=None, min_length=1)
    """The environment variable that holds its value."""
    value_file: Annotated[FileRef, Existing("file")] | None = None
    """The file that holds its value, in place of a variable."""

    @model_validator(mode="after")
    def _has_a_value(self) -> Admin:
        if (self.value_env is None) == (self.value_file is None):
            raise ValueError("needs value_env or value_file, one of them")
        if not self.value():
            raise ValueError(f"the value of {self.header} is empty: {self._source}")
        if not self.value().isascii():
            raise ValueError(f"the value of {self.header} is not ASCII, which headers need: {self._source}")
        return self

    @property
    def _source(self) -> str:
        return self.value_env or (self.value_file.written if self.value_file else "")

    def value(self) -> bytes:
        """The value that callers must send. Kept out of every dump of the configuration."""
        if self.value_file is not None:
            return self.value_file.path.read_bytes().strip()
        return os.environ.get(self.value_env or "", "").strip().encode()


class ApiKey(Options):
    """A caller's key: never the key itself, only what to know it by."""

    sha256: Annotated[str, Field(pattern=r"^[0-9a-fA-F]{64}$")] | None = None
    """The SHA-256 of the key, in hexadecimal digits: printf %s "$KEY" | sha256sum."""
    env: str | None = Field(default=None, min_length=1)
    """The environment variable that holds the key, in its place."""
    also_sha256: tuple[Annotated[str, Field(pattern=r"^[0-9a-fA-F]{64}$")], ...] = ()
    """Further keys of the same caller, while one is exchanged for another."""
    roles: tuple[Who, ...] = ()
    """The caller's roles."""

    @model_validator(mode="after")
    def _has_a_key(self) -> ApiKey:
        if (self.sha256 is None) == (self.env is None):
            raise ValueError("needs sha256 or env, one of them")
        if self.env is not None and not os.environ.get(self.env, "").strip():
            raise ValueError(f"the environment variable {self.env} holds no key")
        return self

    def digests(self) -> tuple[bytes, ...]:
        """SHA-256 of each of its keys."""
        own = (
            bytes.fromhex(self.sha256) if self.sha256 else sha256(os.environ[self.env or ""].strip().encode()).digest()
        )
        return (own, *map(bytes.fromhex, self.also_sha256))


_KEYS: Final = TypeAdapter(dict[Annotated[str, Field(pattern=_PATTERN)], ApiKey])


def read_keys(path: Path) -> dict[str, ApiKey]:
    """The keys in a file of YAML: {NAME: {sha256: …, roles: […]}}. Raises ValueError, OSError."""
    with path.open("rb") as file:
        content = file.read(MAX_KEYS_BYTES + 1)
    if len(content) > MAX_KEYS_BYTES:
        raise ValueError(f"{path}: larger than {MAX_KEYS_BYTES >> 20} MiB")
    try:
        tree = read_tree(content.decode("utf-8-sig"))
    except (UnicodeDecodeError, NotYaml) as error:
        raise ValueError(f"{path}: {error if isinstance(error, UnicodeDecodeError) else error.finding.text}") from None
    if tree.findings:
        raise ValueError(f"{path}: {tree.findings[0].text}")
    try:
        return _KEYS.validate_python(tree.data, strict=False)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        text = first["msg"].removeprefix("Value error, ")
        raise ValueError(f"{path}: {key_path(first['loc'])}: {text}") from None


class Jwt(Options):
    """JSON Web Tokens as credentials. Only what is said here is believed: no token chooses its algorithm, its key or
    where to fetch one. Needs the extra jwt."""

    algorithms: Annotated[
        tuple[Literal["HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA"], ...],
        Field(min_length=1),
    ]
    """The algorithms that are accepted: HS… with a secret, the others with public keys."""
    secret_env: str | None = Field(default=None, min_length=1)
    """The environment variable that holds the secret, 32 bytes at least."""
    secret_file: Annotated[FileRef, Existing("file")] | None = None
    """The file that holds the secret."""
    public_key_file: Annotated[FileRef, Existing("file")] | None = None
    """The issuer's public key, in PEM form."""
    jwks_file: Annotated[FileRef, Existing("file")] | None = None
    """The issuer's public keys, as a JWK set; read again when it changes, as the others."""
    issuer: str | None = Field(default=None, min_length=1)
    """What `iss` must be; null: anything."""
    audience: str | None = Field(default=None, min_length=1)
    """What `aud` must hold; null: tokens that are for nobody in particular."""
    leeway_seconds: float = Field(default=0, ge=0, le=600, allow_inf_nan=False)
    """By how much the issuer's clock may differ."""
    required_claims: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """What a token must say beside `exp` and the caller's name."""
    name_claim: str = Field(default="sub", min_length=1)
    """Which claim is the caller's name."""
    roles_claim: str = Field(default="roles", min_length=1)
    """Which claim has its roles, a list or a text with spaces."""

    @model_validator(mode="after")
    def _has_one_key(self) -> Jwt:
        sources = (self.secret_env, self.secret_file, self.public_key_file, self.jwks_file)
        if sum(source is not None for source in sources) != 1:
            raise ValueError("needs secret_env, secret_file, public_key_file or jwks_file, one of them")
        shares_a_secret = self.secret_env is not None or self.secret_file is not None
        for algorithm in self.algorithms:
            if (algorithm in _SECRETS) is not shares_a_secret:
                needs = "a secret" if algorithm in _SECRETS else "a public key"
                raise ValueError(f"{algorithm} needs {needs}")
        if shares_a_secret and len(self.key_material()) < 32:
            raise ValueError("the secret is shorter than 32 bytes")
        self.keys()
        return self

    def keys(self) -> Mapping[str | None, Any]:
        """Verification keys by the key id in tokens, or the only one under None. Each JWK is valid for its own
        algorithm alone. Raises ValueError, OSError.
        """
        try:
            import jwt
        except ImportError:
            raise ValueError(f"tokens need PyJWT: {install_command('jwt')}") from None
        material = self.key_material()
        algorithms = jwt.algorithms.get_default_algorithms()
        for algorithm in self.algorithms:
            if algorithm not in algorithms:
                raise ValueError(f"{algorithm} needs PyJWT with cryptography: {install_command('jwt')}")
        if self.jwks_file is not None:
            return _jwks(self.jwks_file.written, material)
        if self.public_key_file is None:
            return {None: material}
        try:
            return {None: algorithms[self.algorithms[0]].prepare_key(material)}
        except (ValueError, TypeError, jwt.PyJWTError):
            raise ValueError(
                f"{self.public_key_file.written}: no public key of {self.algorithms[0]} in PEM form"
            ) from None

    def file(self) -> Path | None:
        """The file of the keys; None if they come from the environment."""
        reference = self.secret_file or self.public_key_file or self.jwks_file
        return None if reference is None else reference.path

    def key_material(self) -> bytes:
        """The content of the file or variable; white space around a secret is removed. Raises OSError."""
        path = self.file()
        if path is None:
            return os.environ.get(self.secret_env or "", "").strip().encode()
        content = path.read_bytes()
        return content.strip() if self.secret_file is not None else content


def _jwks(name: str, material: bytes) -> Mapping[str | None, Any]:
    import jwt

    try:
        keys = jwt.PyJWKSet.from_dict(json.loads(material)).keys
    except (ValueError, TypeError, AttributeError, jwt.PyJWTError):
        raise ValueError(f"{name}: no set of JWKs") from None
    if any(key.key_type == "oct" for key in keys):
        raise ValueError(f"{name}: a shared secret among public keys")
    if len(keys) == 1:
        return {None: keys[0]}
    if not all(key.key_id for key in keys):
        raise ValueError(f"{name}: several keys, and one without a kid")
    return {key.key_id: key for key in keys}


class Auth(Options):
    """Who calls, and what they may do. Credentials are an API key or a token in `Authorization: Bearer …`, an API key
    in `x-api-key`, over gRPC in metadata of the same names, or a client's certificate."""

    mode: Mode = "required"
    """required: who is not known is refused; optional: only wrong credentials are; off: none are looked at. Ports may
    differ."""
    keys: dict[Who, ApiKey] = Field(default_factory=dict)
    """API keys, by the caller's name."""
    keys_file: Annotated[FileRef, Existing("file")] | None = None
    """A YAML file of further ones, of the same form; read again when it changes."""
    jwt: Jwt | None = None
    """JSON Web Tokens; null: none are accepted."""
    certificates: bool = False
    """Whether a client's certificate says who it is: by its first URI or DNS name, else its common name."""
    admins: tuple[Who, ...] = ()
    """Who may change the server's state, beside who has the key of `admin`."""
    allow: dict[str, tuple[Who, ...]] = Field(default_factory=dict)
    """A model's or a route's name -> who may use it; "*" stands for all that are not named. A route that is named
    decides for the models behind it. Without an entry, everybody may who is let in."""
    hide_forbidden: bool = False
    """Whether a model that a caller may not use is to it as if it were not there."""
    health: Literal["open", "closed"] = "open"
    """open: whether server and models live and are ready is told to everybody, for orchestrators have no keys."""
    metrics: Literal["open", "required", "admins"] = "required"
    """Who may read /metrics."""
    page: Literal["open", "required", "admins"] = "admins"
    """Who may see what the operator's page shows, every model among it. The page itself asks for the key."""

    @field_validator("keys_file")
    @classmethod
    def _is_readable(cls, file: FileRef | None) -> FileRef | None:
        if file is not None:
            read_keys(file.path)
        return file

    @model_validator(mode="after")
    def _knows_somebody(self) -> Auth:
        if self.mode == "required" and not (self.keys or self.keys_file or self.jwt or self.certificates):
            raise ValueError("nobody could call: needs keys, keys_file, jwt or certificates")
        return self

    def all_keys(self) -> dict[str, ApiKey]:
        """The configured keys and those in the file, which is read now. Raises ValueError, OSError."""
        return {**self.keys, **(read_keys(self.keys_file.path) if self.keys_file else {})}


class RateLimit(Options):
    """How much callers may ask for. Each caller has its own share, unless `by` says otherwise; all limits count that a
    request falls under."""

    by: Literal["caller", "address", "all"] = "caller"
    """Whose requests are counted together: those of one caller (all whom nobody knows are one), of one IP address as
    the connection has it, or all."""
    callers: tuple[Who, ...] | None = None
    """Whom it is for; null: everybody."""
    names: tuple[Annotated[str, Field(min_length=1)], ...] | None = None
    """The public names of the models and routes that it is for; null: every call, but for health."""
    listeners: tuple[Annotated[str, Field(min_length=1)], ...] | None = None
    """The ports that it is for, by name or bind; null: all."""
    requests_per_second: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """How many on average."""
    burst: int | None = Field(default=None, ge=1)
    """How many at once, after a rest; null: those of a second."""
    rows_per_minute: int | None = Field(default=None, ge=1)
    """How many rows of batches on average; a request without a batch is one."""
    bytes_per_minute: int | None = Field(default=None, ge=1)
    """How many bytes of bodies on average."""
    tokens_per_minute: int | None = Field(default=None, ge=1)
    """How many tokens of texts on average, asked and answered: those that the dialect openai counts."""
    concurrent: int | None = Field(default=None, ge=1)
    """How many may be on their way."""

    @model_validator(mode="after")
    def _says_something(self) -> RateLimit:
        per_minute = self.rows_per_minute or self.bytes_per_minute or self.tokens_per_minute
        if not (self.requests_per_second or per_minute or self.concurrent):
            raise ValueError(
                "needs requests_per_second, rows_per_minute, bytes_per_minute, tokens_per_minute or concurrent"
            )
        if self.burst is not None and self.requests_per_second is None:
            raise ValueError("burst is of requests_per_second")
        return self

    @field_validator("callers")
    @classmethod
    def _are_known_by_then(cls, callers: Any, info: ValidationInfo) -> Any:
        if callers is not None and info.data.get("by") == "address":
            raise ValueError("limits by address are looked at before anybody knows who calls")
        return callers


class SharesConfig(Options):
    """Shares of the devices. Where several callers want one, each gets time there by its weight, over all models; what
    one does not want is for the others, and each has a queue of its own."""

    by: Literal["caller", "claim", "header", "listener"] = "caller"
    """Who is one caller: whom auth knows by a name, whose tokens say the same in a claim, who sends the same in a
    header, or who comes by the same port. All whom that does not tell are one, `anonymous`."""
    claim: str | None = Field(default=None, min_length=1)
    """Of `by: claim`: which one. Callers whose tokens lack it are told by their names."""
    header: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_-]+$")
    """Of `by: header`: which one, of HTTP or of gRPC's metadata. Values that `weights` has not are one caller, for
    whoever calls may send any."""
    weights: dict[Who, Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]] = Field(default_factory=dict)
    """How much of a device each gets, compared with the others: a caller's name -> its weight. By caller, callers of
    a `role:NAME` have one share together."""
    default_weight: float = Field(default=1, gt=0, le=1e6, allow_inf_nan=False)
    """The weight of all others, each."""
    max_queue_size: int | None = Field(default=None, ge=1)
    """How many requests of each may wait for a model; null: as many as the model says."""

    @model_validator(mode="after")
    def _says_by_what(self) -> SharesConfig:
        for key, given in (("claim", self.claim), ("header", self.header)):
            if (self.by == key) is not (given is not None):
                raise ValueError(f"by: {key} needs {key}: which one" if given is None else f"{key} is of by: {key}")
        return self
