"""The proof of origin: whether a version's files are what somebody vouches for, before a byte of them is parsed.

`Verifier.check` runs in the loader's threads before everything else: before a backend describes or loads the model,
before its code is imported. It hashes every file, so that what it says is about contents. A backend opens the files by
their names again later: so their states are kept, inode and times of change among them, and `Verified.check_unchanged`
compares them once the model is loaded. What was written in between is found, and the model is not served; code among it
has run by then. Only files that nobody else may write to rule that out.

Python would run a cached module beside a source file in place of it. Those caches are files like all others here, and
no process that serves verified models writes any.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from tensorgate.gateway.config import ModelConfig, ModelControl
from tensorgate.gateway.config.verification import VerifyConfig
from tensorgate.gateway.contract.errors import text_of
from tensorgate.gateway.contract.extras import install_command
from tensorgate.gateway.models.file_digest import FilesDigest, FileState, file_states, files_digest, state_of

_MAX_NAMES: Final = 5
_GIT: Final = frozenset((".git", ".gitattributes", ".github", ".gitignore"))
"""What model-signing leaves out unless it is told otherwise."""
_PROGRAM: Final = ".py"
_MISMATCH: Final = "Signature mismatch"
"""How model-signing begins to say that files are not those that were signed."""


class NotVerified(ValueError):
    """A version whose files prove nothing: the text names the file, and the remedy."""


@dataclass(frozen=True, slots=True)
class Verified:
    """A version whose files have been checked: their digest, whose word it was, and the states that they were in."""

    sha256: str
    by: str
    place: Path
    states: Mapping[str, FileState]
    whole_folder: bool = False

    def check_unchanged(self) -> None:
        """Raises NotVerified if a file has become another since it was checked, or came, or went. In a thread."""
        try:
            now: Mapping[str, FileState] = file_states(self.place)
        except (OSError, ValueError) as error:
            raise NotVerified(f"not verified: the files changed while they were loaded: {text_of(error)}") from None
        if now != self.states:
            names = sorted(name for name in {*now, *self.states} if now.get(name) != self.states.get(name))
            raise NotVerified(f"not verified: {_listed(names, self.place)} changed while the model was loaded")

    def plain(self) -> dict[str, Any]:
        """For those who show it, and for `pinned`."""
        return {"sha256": self.sha256, "by": self.by, "folder": self.whole_folder}


def pinned(config: ModelConfig, proof: Mapping[str, Any] | None) -> ModelConfig:
    """A configuration with the very files of a `Verified.plain` as what is to be loaded: processes that load them by
    themselves, also when they are started again, check that and nothing else.
    """
    if proof is None:
        return config
    return config.model_copy(update={"verify": VerifyConfig(sha256=proof["sha256"], folder=proof["folder"])})


class Verifier:
    """Checks versions as their entries say, else as `model_control` says for all."""

    def __init__(self, control: ModelControl | None = None) -> None:
        self._default = control.verify if control else None
        self._required = bool(control and control.require_verification)

    def check(self, config: ModelConfig, version: int, path: Path) -> Verified | None:
        """Check a version at its path; None if nothing is asked of it. In a thread. Raises NotVerified.

        A model without files, as an ensemble or one of another server, has nothing to prove.
        """
        wanted = config.verify or self._default
        if config.path is None:
            return None
        if wanted is not None:
            named = PurePosixPath(getattr(config, "file", ""))
            if named.is_absolute() or ".." in named.parts:
                raise NotVerified(f"not verified: file: {named} does not lie in the version's folder")
            return verify(wanted, version, path)
        if self._required:
            raise NotVerified(
                "not verified: model_control.require_verification asks for a proof, and the model has none: add "
                "verify to its entry, or to model_control for all models"
            )
        return None


def verified_place(wanted: VerifyConfig, path: Path) -> Path:
    """The file or folder that is held to a proof, of a version at this path."""
    return path.parent if wanted.folder and not path.is_dir() else path


def verify(wanted: VerifyConfig, version: int, path: Path) -> Verified:
    """Check a version's files. In a thread. Raises NotVerified."""
    place = verified_place(wanted, path)
    try:
        digest = files_digest(place)
    except (OSError, ValueError) as error:
        raise NotVerified(f"not verified: {text_of(error)}") from None
    if _PROGRAM in {Path(name).suffix for name in digest.files} or place.suffix == _PROGRAM:
        sys.dont_write_bytecode = True
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # of processes that are started later
    if wanted.sha256 is not None:
        _check_digest(wanted, version, place, digest)
    else:
        _check_signature(wanted, place, digest)
    return Verified(digest.sha256, wanted.by(), place, digest.states, wanted.folder)


def _check_digest(wanted: VerifyConfig, version: int, place: Path, digest: FilesDigest) -> None:
    expected = wanted.digest(version)
    if expected is None:
        raise NotVerified(f"not verified: verify.sha256 has no version {version}; tensorgate digest {place} prints it")
    if expected != digest.sha256:
        caches = [name for name in digest.files if "__pycache__" in name]
        hint = f" ({caches[0]} is of Python's making: remove it)" if caches else ""
        raise NotVerified(
            f"not verified: the SHA-256 of {place} is {digest.sha256}, and verify.sha256 says {expected}{hint}; "
            f"tensorgate digest --files {place} lists its files"
        )


# ----------------------------------------------------------------------------------------------------------- signatures


def _check_signature(wanted: VerifyConfig, place: Path, digest: FilesDigest) -> None:
    """Raises NotVerified unless the signature is there, is that of whom the configuration names, and covers every file
    as it is.
    """
    folder = place if place.is_dir() else place.parent
    file = folder / wanted.signature
    try:
        before = state_of(file.stat())
        content = file.read_bytes()
    except OSError as error:
        raise NotVerified(
            f"not verified: the signature {file} cannot be read: {error.strerror}; model_signing sign makes it, "
            "and verify.signature says where it lies"
        ) from None
    verifying = _configured(wanted)
    own = {os.path.relpath(file, place)} if place.is_dir() else set()
    try:
        verifying.verify(place, file)
        unsigned = [name for name in digest.files if name not in _signed(content) and name not in own]
        if state_of(file.stat()) != before:
            raise ValueError("the signature was written to while it was read")
    except Exception as error:  # the library's, cryptography's, OpenSSL's, Sigstore's, and those of a file that is none
        text = _differences(content, digest, own, place) if text_of(error).startswith(_MISMATCH) else _reason(error)
        raise NotVerified(f"not verified by {wanted.by()}: signature {file}: {text}") from None
    unsigned = sorted(name for name in unsigned if name.partition("/")[0] not in _GIT)
    if unsigned:
        raise NotVerified(
            f"not verified by {wanted.by()}: the signature {file} was made to ignore {_listed(unsigned, place)}: sign "
            "it, too, or remove it"
        )


def _configured(wanted: VerifyConfig) -> Any:
    """The library with whose word counts. Raises NotVerified where it is not installed, or cannot read its keys."""
    try:
        from model_signing import verifying  # only who verifies signatures needs it
    except ImportError as error:
        command = install_command("verify")
        raise NotVerified(f"not verified: signatures need model-signing ({text_of(error)}): {command}") from None
    config = verifying.Config()
    try:
        if wanted.public_key is not None:
            return config.use_elliptic_key_verifier(public_key=wanted.public_key.path)
        if wanted.certificates:
            return config.use_certificate_verifier(certificate_chain=[file.path for file in wanted.certificates])
        root = wanted.trust_root
        return config.use_sigstore_verifier(
            identity=wanted.identity, oidc_issuer=wanted.issuer, trust_config=root.path if root else None
        )
    except Exception as error:
        names = ", ".join(str(file.path) for file in wanted.files())
        raise NotVerified(f"not verified: {names}: {_reason(error)}") from None


def _signed(content: bytes) -> dict[str, str]:
    """The files that a signature covers, "." for a file alone, with their digests. A signer may leave out what is
    loaded. Raises ValueError, KeyError, TypeError.

    Source: model-signing, the in-toto statement in a bundle's DSSE envelope; before 1.0, files are its subjects.
    """
    statement = json.loads(base64.b64decode(json.loads(content)["dsseEnvelope"]["payload"]))
    resources = (statement.get("predicate") or {}).get("resources")
    if resources is None:
        return {each["name"]: each["digest"]["sha256"] for each in statement["subject"]}
    return {each["name"]: each["digest"] for each in resources}


def _differences(content: bytes, digest: FilesDigest, own: set[str], place: Path) -> str:
    """Which files are not those that were signed, by a signature that holds."""
    signed = _signed(content)
    found = {name: sha256 for name, sha256 in digest.files.items() if name not in own}
    groups = {
        "differs": [name for name in found if name in signed and signed[name] != found[name]],
        "came": [name for name in found if name not in signed and name.partition("/")[0] not in _GIT],
        "is missing": [name for name in signed if name not in found],
    }
    return "; ".join(f"{_listed(sorted(names), place)} {what}" for what, names in groups.items() if names)


def _reason(error: Exception) -> str:
    """An error in one line."""
    if isinstance(error, (KeyError, TypeError, AttributeError)):
        return f"no signature of this kind ({type(error).__name__}: {text_of(error)})"
    return " ".join(text_of(error).split()) or type(error).__name__


def _listed(names: list[str], place: Path) -> str:
    shown = [place.name if name == "." else name for name in names[:_MAX_NAMES]]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
