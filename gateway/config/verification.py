"""How a model proves its origin before it is loaded: a digest that is written down, or somebody's signature."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from tensorgate.gateway.config.values import MAX_VERSION, refuse
from tensorgate.gateway.contract.files import Existing, FileRef
from tensorgate.gateway.contract.options import Options

SIGNATURE: Final = "model.sig"
_DIGEST: Final = "[0-9a-fA-F]{64}"
_PROOFS: Final = ("sha256", "public_key", "certificates", "identity")


def _check_digest(digest: Any, *version: str) -> str:
    if not isinstance(digest, str) or re.fullmatch(_DIGEST, digest) is None:
        text = "expected 64 hexadecimal digits, as tensorgate digest prints them"
        raise refuse(*version, text=text) if version else ValueError(text)
    return digest.lower()


def _check_digests(value: Any) -> Any:
    """A digest, or one for each version."""
    if not isinstance(value, Mapping):
        return _check_digest(value)
    digests = {}
    for version, digest in value.items():
        if not (isinstance(version, str) and re.fullmatch("[0-9]{1,19}", version) and int(version) <= MAX_VERSION):
            raise refuse(str(version), text="is no version")
        digests[version] = _check_digest(digest, version)
    return digests


Digests = Annotated[
    str | dict[str, str],
    BeforeValidator(_check_digests),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": f"^{_DIGEST}$"},
                {"type": "object", "additionalProperties": {"type": "string", "pattern": f"^{_DIGEST}$"}},
            ]
        }
    ),
]
"""A SHA-256 in hexadecimal digits, or for each version one."""


class VerifyConfig(Options):
    """What a model's files have to prove before a byte of them is read as a model: one of sha256, public_key,
    certificates and identity.
    """

    sha256: Digests | None = None
    """The digest that `tensorgate digest` prints of the model's file, or of a version's folder; of several versions
    {"1": DIGEST, "2": DIGEST}."""
    public_key: Annotated[FileRef, Existing("file")] | None = None
    """The public key, PEM, of an elliptic curve, whose owner has signed. Signatures are those of OpenSSF's
    model-signing."""
    certificates: tuple[Annotated[FileRef, Existing("file")], ...] = ()
    """The certificates, PEM, from one of which that of the signer descends."""
    identity: str | None = Field(default=None, min_length=1)
    """Who has signed by Sigstore: the address, or the URL of a workflow, that the certificate names."""
    issuer: str | None = Field(default=None, min_length=1)
    """With identity: the URL of the OpenID provider that vouches for it."""
    trust_root: Annotated[FileRef, Existing("file")] | None = None
    """With identity: Sigstore's keys, as its ClientTrustConfig in JSON. Nothing is fetched."""
    signature: str = Field(default=SIGNATURE, min_length=1)
    """Where the signature lies, from the folder of the version's files on."""
    folder: bool = False
    """Of a model that is one file: whether all of that file's folder is held to the proof, for what is read beside the
    file."""

    @model_validator(mode="after")
    def _is_one_proof(self) -> Any:
        given = [name for name in _PROOFS if getattr(self, name)]
        if len(given) != 1:
            raise ValueError(f"expected one of {', '.join(_PROOFS)}")
        if self.identity is not None:
            for key in ("issuer", "trust_root"):
                if getattr(self, key) is None:
                    raise ValueError(f"identity needs {key}")
        elif self.issuer is not None or self.trust_root is not None:
            raise ValueError("issuer and trust_root are of an identity")
        if self.sha256 is not None and self.signature != SIGNATURE:
            raise ValueError("sha256 needs no signature")
        return self

    def digest(self, version: int) -> str | None:
        """The digest that a version must have; None if none is written for it."""
        return self.sha256.get(str(version)) if isinstance(self.sha256, dict) else self.sha256

    def files(self) -> tuple[FileRef, ...]:
        """The keys and certificates."""
        named = (self.public_key, *self.certificates, self.trust_root)
        return tuple(file for file in named if file is not None)

    def by(self) -> str:
        """Whose word it is, in few words."""
        if self.public_key is not None:
            return f"the key {self.public_key.path.name}"
        if self.certificates:
            return f"certificates of {', '.join(file.path.name for file in self.certificates)}"
        return self.identity or "its digest"
