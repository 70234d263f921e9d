"""Signs models with model-signing, spoils some, and says what becomes of each; in .venv-verify, in an empty folder.

Writes JSON, a case -> "" if the files are verified, else why not. `python model_signatures.py sign KEY FOLDER` only
signs.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from model_signing import hashing, signing

from tensorgate.gateway.config.verification import VerifyConfig
from tensorgate.gateway.models.verification import NotVerified, verify

FILES = {"model.py": "import weights", "weights.py": "W = 2", "data/table.csv": "1,2"}


def main() -> None:
    if sys.argv[1:2] == ["sign"]:
        key, folder = map(Path, sys.argv[2:])
        make_key(key)
        sign(folder, key)
        return
    here = Path()
    for name, curve in (("ours", ec.SECP256R1()), ("theirs", ec.SECP256R1()), ("long", ec.SECP384R1())):
        make_key(here / name, curve)
    make_chain(here, "ca")
    make_chain(here, "other-ca")
    with no_network():
        found = {name: outcome(here / name.replace(" ", "-"), *CASES[name]) for name in CASES}
    sys.stdout.write(json.dumps(found))


def make_key(place: Path, curve: ec.EllipticCurve | None = None) -> None:
    """PLACE.pem and PLACE.pub"""
    key = ec.generate_private_key(curve or ec.SECP256R1())
    write_key(place, key)


def write_key(place: Path, key: ec.EllipticCurvePrivateKey) -> None:
    plain = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    place.with_suffix(".pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, *plain))
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    place.with_suffix(".pub").write_bytes(public)


def make_chain(here: Path, name: str) -> None:
    """A certificate authority, NAME.crt, and what it has issued for a signer: NAME-leaf.crt and NAME-leaf.pem."""
    now = datetime.now(UTC)

    def issue(subject: str, key: Any, issuer: str, by: Any, *, authority: bool) -> x509.Certificate:
        names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)]) for each in (subject, issuer)]
        usage = dict.fromkeys(("content_commitment", "key_encipherment", "data_encipherment", "crl_sign"), False)
        usage |= {"key_agreement": False, "encipher_only": False, "decipher_only": False}
        return (
            x509.CertificateBuilder(*reversed(names), key.public_key(), x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(
                x509.KeyUsage(digital_signature=not authority, key_cert_sign=authority, **usage), critical=True
            )
            .sign(by, hashes.SHA256())
        )

    authority, signer = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    pem = serialization.Encoding.PEM
    (here / f"{name}.crt").write_bytes(issue(name, authority, name, authority, authority=True).public_bytes(pem))
    leaf = issue("signer", signer, name, authority, authority=False)
    (here / f"{name}-leaf.crt").write_bytes(leaf.public_bytes(pem))
    write_key(here / f"{name}-leaf", signer)


def sign(folder: Path, key: Path, *, signature: Path | None = None, ignored: tuple[str, ...] = ()) -> None:
    """FOLDER/model.sig by KEY.pem"""
    signature = signature or folder / "model.sig"
    hashed = hashing.Config().set_ignored_paths(paths=[signature.name, *ignored])
    config = signing.Config().set_hashing_config(hashed)
    config.use_elliptic_key_signer(private_key=key.with_suffix(".pem")).sign(folder, signature)


def certify(folder: Path, name: str) -> None:
    config = signing.Config().set_hashing_config(hashing.Config().set_ignored_paths(paths=["model.sig"]))
    key, chain = Path(f"{name}-leaf.pem"), [Path(f"{name}.crt")]
    config.use_certificate_signer(
        private_key=key, signing_certificate=Path(f"{name}-leaf.crt"), certificate_chain=chain
    ).sign(folder, folder / "model.sig")


@contextmanager
def no_network() -> Iterator[None]:
    """Verification asks nobody."""

    def refuse(*_: Any) -> NoReturn:
        raise AssertionError("somebody was asked")

    taken = socket.socket.connect, socket.getaddrinfo
    socket.socket.connect, socket.getaddrinfo = refuse, refuse  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        socket.socket.connect, socket.getaddrinfo = taken  # type: ignore[method-assign,assignment]


def outcome(folder: Path, prepare: Callable[[Path], object], wanted: dict[str, Any], file: str = "") -> str:
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    prepare(folder)
    try:
        verified = verify(VerifyConfig.model_validate_json(json.dumps(wanted)), 1, folder / file)
        verified.check_unchanged()
    except NotVerified as error:
        return str(error)
    return ""


def ours(then: Callable[[Path], object] = lambda folder: None, **options: Any) -> Callable[[Path], object]:
    """Signed by us, and then this."""

    def prepare(folder: Path) -> None:
        sign(folder, Path("ours"), **options)
        then(folder)

    return prepare


def one_file(text: str) -> Callable[[Path], object]:
    """A file signed by us, with this in it afterwards."""

    def prepare(folder: Path) -> None:
        sign(folder / "model.py", Path("ours"), signature=folder / "model.sig")
        (folder / "model.py").write_text(text)

    return prepare


def certified(text: str) -> Callable[[Path], object]:
    """Signed by certificate, and one file changed."""

    def prepare(folder: Path) -> None:
        certify(folder, "ca")
        (folder / "weights.py").write_text(text)

    return prepare


def of_another(folder: Path) -> None:
    """The signature of another model of ours."""
    other = folder.with_name(f"{folder.name}-other")
    shutil.copytree(folder, other)
    (other / "weights.py").write_text("W = 3")
    sign(other, Path("ours"))
    shutil.copy(other / "model.sig", folder)


def lead_out(folder: Path) -> None:
    target = folder.with_name(f"{folder.name}-weights.py")
    shutil.move(folder / "weights.py", target)
    (folder / "weights.py").symlink_to(f"../{target.name}")


def forge(folder: Path) -> None:
    """What is said of the files is the truth, and nobody has signed it."""
    bundle = json.loads((folder / "model.sig").read_text())
    envelope = bundle["dsseEnvelope"]
    statement = json.loads(base64.b64decode(envelope["payload"]))
    (folder / "weights.py").write_text("W = 3")
    digest = hashlib.sha256(b"W = 3").hexdigest()
    for each in statement["predicate"]["resources"]:
        each["digest"] = digest if each["name"] == "weights.py" else each["digest"]
    envelope["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()
    (folder / "model.sig").write_text(json.dumps(bundle))


OURS = {"public_key": "ours.pub"}
US = {"identity": "me@example.org", "issuer": "https://issuer.example", "trust_root": "ours.pub"}
CASES: dict[str, tuple[Any, ...]] = {
    "right": (ours(), OURS),
    "right, with Git's files": (ours(lambda folder: (folder / ".gitattributes").write_text("*.bin lfs")), OURS),
    "right, a longer key": (lambda folder: sign(folder, Path("long")), {"public_key": "long.pub"}),
    "right, signed elsewhere": (
        lambda folder: sign(folder, Path("ours"), signature=Path("elsewhere.sig")),
        OURS | {"signature": "../elsewhere.sig"},
    ),
    "right, one file": (one_file(FILES["model.py"]), OURS, "model.py"),
    "right, a file's folder": (ours(), OURS | {"folder": True}, "model.py"),
    "right, certified": (lambda folder: certify(folder, "ca"), {"certificates": ["ca.crt"]}),
    "a byte": (ours(lambda folder: (folder / "weights.py").write_text("W = 3")), OURS),
    "a file added": (ours(lambda folder: (folder / "numpy.py").write_text("")), OURS),
    "a file removed": (ours(lambda folder: (folder / "weights.py").unlink()), OURS),
    "a file renamed": (ours(lambda folder: (folder / "weights.py").rename(folder / "numpy.py")), OURS),
    "a link that leads out": (ours(lead_out), OURS),
    "another key": (lambda folder: sign(folder, Path("theirs")), OURS),
    "no signature": (lambda folder: None, OURS),
    "of another model": (of_another, OURS),
    "a file that the signer left out": (ours(ignored=("weights.py",)), OURS),
    "forged": (ours(forge), OURS),
    "garbage": (lambda folder: (folder / "model.sig").write_text("{}"), OURS),
    "no key": (ours(), {"public_key": "ca.crt"}),
    "one file, changed": (one_file("import numpy"), OURS, "model.py"),
    "another authority": (lambda folder: certify(folder, "other-ca"), {"certificates": ["ca.crt"]}),
    "certified, changed": (certified("W = 3"), {"certificates": ["ca.crt"]}),
    "a key in place of a certificate": (ours(), {"certificates": ["ca.crt"]}),
    "no trust root": (ours(), US),
}

if __name__ == "__main__":
    main()
