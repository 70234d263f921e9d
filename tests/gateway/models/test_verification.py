"""Models that prove their origin: whatever is not as somebody vouches for it is not loaded, and not imported."""

import asyncio
import importlib.util
import json
import os
import py_compile
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
import yaml

from tensorgate.adapters.open_inference.model_config import triton_config
from tensorgate.gateway.app import catalog, registries, report_line
from tensorgate.gateway.cli.check import misfits
from tensorgate.gateway.cli.main import main
from tensorgate.gateway.config import ConfigError, load_config, model_validator
from tensorgate.gateway.contract.canonical import ModelRef
from tensorgate.gateway.contract.errors import Code, LoadFailed
from tensorgate.gateway.local_engine import LocalEngine
from tensorgate.gateway.model_loading import load_program, loader, model_source, program_of
from tensorgate.gateway.models import model_folder
from tensorgate.gateway.models.file_digest import files_digest
from tensorgate.gateway.models.loader import LoadReport, RepositoryDeps
from tensorgate.gateway.models.meters import Meters
from tensorgate.gateway.models.repository import Repository
from tensorgate.gateway.models.verification import NotVerified, Verifier, pinned
from tensorgate.gateway.routing.router import Router

KINDS = registries()
MODEL = """
from pathlib import Path

import numpy as np

(Path(__file__).parents[2] / "imported").touch()

class Model:
    def __init__(self, context):
        self.weights = (context.path / "weights.txt").read_text()

    def infer(self, inputs, request):
        return {"y": inputs["x"] * np.float32(self.weights)}
"""
TENSORS = {
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1]}],
}
OTHER = "f" * 64


class World:
    """A repository of Python models over tmp_path/models; `imported` is there once code of one has run."""

    def __init__(self, folder: Path, models: dict[str, Any], **sections: Any) -> None:
        self.folder = folder
        self.file = folder / "gateway.yaml"
        self.file.write_text(yaml.safe_dump({"models": models, **sections}))
        self.config = config = load_config(self.file, KINDS)
        self.reports: list[LoadReport] = []
        validate = model_validator(KINDS)
        deps = RepositoryDeps(
            loader(KINDS, lambda ref: self.router.resolve(ref)),
            Meters(),
            lambda model: KINDS.backends[model.backend].versioned,
            lambda model: KINDS.backends[model.backend].parts(model),
            validate,
            runs_code=lambda model: KINDS.backends[model.backend].runs_code,
        )
        self.repository = Repository(catalog(config, KINDS, validate=validate), deps, config.model_control)
        self.router = Router(config, self.repository)
        self.engine = LocalEngine(self.repository, self.router)

    @property
    def imported(self) -> bool:
        return (self.folder / "imported").exists()

    async def load(self) -> str:
        """The last error, empty if all serves."""
        await self.repository.load_all(self.reports.append)
        return self.reports[-1].error

    async def poll(self) -> str:
        self.reports.clear()
        await self.repository.poll(self.reports.append)
        return self.reports[-1].error if self.reports else "nothing has changed"


@pytest.fixture(autouse=True)
def _bytecode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Python model's folder, models/m."""
    made = tmp_path / "models/m"
    made.mkdir(parents=True)
    (made / "model.py").write_text(MODEL)
    (made / "weights.txt").write_text("2")
    return made


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Callable[..., World]]:
    worlds: list[World] = []

    def world(verify: dict[str, Any] | None, **sections: Any) -> World:
        model = {"backend": "python", "path": "models/m/model.py:Model", **TENSORS, "verify": verify}
        made = World(tmp_path, {"m": model}, **sections)
        worlds.append(made)
        return made

    yield world
    for each in worlds:
        await each.repository.close()


def held(folder: Path) -> dict[str, Any]:
    """What a folder proves as it is."""
    return {"sha256": files_digest(folder).sha256, "folder": True}


async def test_the_right_files_serve_and_show_their_digest(make: Any, folder: Path) -> None:
    world = make(proof := held(folder))
    assert await world.load() == ""
    assert world.imported
    assert report_line(world.reports[0]).endswith(f"verified by its digest, sha256 {proof['sha256']}")
    view = world.router.resolve(ModelRef("m"))
    parameters = triton_config(view)["parameters"]
    assert parameters == {
        "verified_by": {"string_value": "its digest"},
        "verified_sha256": {"string_value": proof["sha256"]},
    }
    assert sys.dont_write_bytecode
    assert not (folder / "__pycache__").exists()
    assert misfits(world.config, world.file, KINDS) == []


def add_a_cache(folder: Path) -> None:
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__/model.cpython-311.pyc").write_bytes(b"\0")


def lead_out(folder: Path) -> None:
    shutil.move(folder / "weights.txt", folder.parent / "weights.txt")
    (folder / "weights.txt").symlink_to("../weights.txt")


TAMPERED: dict[str, Callable[[Path], object]] = {
    "a byte of the code": lambda folder: (folder / "model.py").write_text(MODEL.replace("inputs", "outputs")),
    "a byte of the weights": lambda folder: (folder / "weights.txt").write_text("3"),
    "a file added": lambda folder: (folder / "numpy.py").write_text("1 / 0"),
    "a file removed": lambda folder: (folder / "weights.txt").unlink(),
    "a file renamed": lambda folder: (folder / "weights.txt").rename(folder / "weights.bin"),
    "a cached module": add_a_cache,
    "a link that leads out": lead_out,
}


@pytest.mark.parametrize("how", TAMPERED)
async def test_nothing_of_other_files_is_imported(make: Any, folder: Path, how: str) -> None:
    world = make(held(folder))
    TAMPERED[how](folder)
    error = await world.load()
    assert error.startswith("not verified: ")
    assert str(folder) in error or "leads out of the folder" in error
    assert not world.imported
    (status,) = world.repository.statuses("m")
    assert (status.state, status.code) == ("END", Code.FAILED_PRECONDITION)
    assert status.error.startswith("not verified: ")
    assert str(folder.parent) not in status.error
    ((name, problem),) = misfits(world.config, world.file, KINDS)
    assert (name, "models.m.verify: not verified: " in str(problem)) == ("m", True)
    assert not world.imported


async def test_a_cache_beside_a_file_does_not_stand_for_it(make: Any, folder: Path) -> None:
    """Python takes it if it tells the source's size and time."""
    other = folder / "other.py"
    other.write_text("raise RuntimeError('of somebody else')" + MODEL)
    file = folder / "model.py"
    file.write_text(MODEL + "\n" * (other.stat().st_size - file.stat().st_size))
    os.utime(other, ns=(1, 10**18))
    os.utime(file, ns=(1, 10**18))
    cache = Path(importlib.util.cache_from_source(str(file)))
    py_compile.compile(str(other), str(cache))
    other.unlink()
    assert "of somebody else" in await make(None).load()
    assert await make({"sha256": files_digest(file).sha256}).load() == ""


async def test_nothing_above_a_version_is_imported(tmp_path: Path) -> None:
    place = tmp_path / "models/t"
    (place / "1").mkdir(parents=True)
    (place / "helper.py").write_text("raise RuntimeError('of somebody else')")
    (place / "1/model.py").write_text(
        "import helper\n\nclass TritonPythonModel:\n    def execute(self, requests): ...\n"
    )
    tensors = {key: [{**each, "shape": [1]} for each in some] for key, some in TENSORS.items()}
    model = {"backend": "triton_python", "path": "models/t", **tensors}
    for proof, error in ((None, "of somebody else"), (files_digest(place / "1").sha256, "No module named 'helper'")):
        world = World(tmp_path, {"t": model | ({"verify": {"sha256": proof}} if proof else {})})
        assert error in await world.load()
        await world.repository.close()


async def test_a_file_elsewhere_is_not_that_of_the_version(tmp_path: Path) -> None:
    digests = versions(tmp_path, 1)
    model = {"backend": "onnx", "path": "models/v", "file": "../../x.onnx", "verify": {"sha256": digests["1"]}}
    world = World(tmp_path, {"v": model})
    assert await world.load() == "not verified: file: ../../x.onnx does not lie in the version's folder"
    await world.repository.close()


async def test_a_poll_keeps_what_serves_until_the_files_are_right_again(make: Any, folder: Path) -> None:
    world = make(held(folder), model_control={"mode": "poll"})
    assert await world.load() == ""
    served = world.repository.snapshot.models["m"][1]
    (folder / "weights.txt").write_text("3")
    assert "not verified" in await world.poll()
    assert world.repository.snapshot.models["m"][1] is served
    (folder / "weights.txt").write_text("2")
    assert await world.poll() == ""
    assert world.repository.snapshot.models["m"][1] is not served


async def test_files_that_change_while_they_are_loaded_do_not_serve(make: Any, folder: Path) -> None:
    code = MODEL.replace("class Model:", "Path(__file__).with_name('weights.txt').write_text('3')\n\nclass Model:")
    (folder / "model.py").write_text(code)
    world = make(held(folder))
    assert await world.load() == "not verified: weights.txt changed while the model was loaded"
    assert not world.repository.snapshot.models


async def test_a_process_that_loads_by_itself_takes_the_very_files(make: Any, folder: Path) -> None:
    world = make(None, model_control={"verify": held(folder)})
    config, path = world.config.models["m"], folder / "model.py"
    verified = Verifier(world.config.model_control).check(config, 1, path)
    assert verified is not None
    source = replace(model_source(config, "m", 1, path), device="cpu")
    program = program_of(pinned(config, verified.plain()), source)

    def refuse(asked: Any) -> NoReturn:
        raise AssertionError(asked)

    def load() -> None:
        load_program(KINDS, model_validator(KINDS), program, refuse, refuse).executors[0].close()

    load()
    (folder / "weights.txt").write_text("3")
    (world.folder / "imported").unlink()
    with pytest.raises(NotVerified, match="the SHA-256 of"):
        load()
    assert not world.imported


# ------------------------------------------------------------------------------------------ versions, and what is bound


def versions(tmp_path: Path, *numbers: int) -> dict[str, str]:
    """Folders models/v/N with the demo's model, and their digests."""
    for number in numbers:
        shutil.copytree("config/demo/models/half_plus_two/1", tmp_path / f"models/v/{number}")
        (tmp_path / f"models/v/{number}/notes").write_text(str(number))
    return {str(number): files_digest(tmp_path / f"models/v/{number}").sha256 for number in numbers}


async def test_every_version_has_its_digest(tmp_path: Path) -> None:
    digests = versions(tmp_path, 1, 2, 3)
    model = {"backend": "onnx", "path": "models/v", "versions": "all", "verify": {"sha256": digests | {"3": OTHER}}}
    world = World(tmp_path, {"v": model})
    await world.load()
    assert {report.version: report.error[:12] for report in world.reports} == {1: "", 2: "", 3: "not verified"}
    await world.repository.close()
    del model["verify"]["sha256"]["3"]  # type: ignore[index]
    world = World(tmp_path, {"v": model})
    assert "verify.sha256 has no version 3; tensorgate digest" in await world.load()
    await world.repository.close()


async def test_required_of_all_that_have_files(tmp_path: Path, folder: Path) -> None:
    digests = versions(tmp_path, 1)
    models = {
        "m": {"backend": "python", "path": "models/m/model.py:Model", **TENSORS},
        "v": {"backend": "onnx", "path": "models/v", "verify": {"sha256": digests["1"]}},
        "both": {
            "backend": "ensemble",
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1]}],
            "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1]}],
            "steps": [{"model": "v", "inputs": {"x": "x"}, "outputs": {"y": "y"}}],
        },
    }
    world = World(tmp_path, models, model_control={"require_verification": True})
    await world.load()
    errors = {report.name: report.error for report in world.reports}
    assert errors["m"].startswith("not verified: model_control.require_verification asks for a proof")
    assert not world.imported
    assert (errors["v"], errors["both"]) == ("", "")
    await world.repository.close()


async def test_a_model_yaml_does_not_choose_its_proof(tmp_path: Path) -> None:
    """Whoever writes files into a repository writes this one, too."""
    digests = versions(tmp_path, 1, 2)
    for number in digests:
        own = tmp_path / f"repository/r{number}"
        shutil.copytree(tmp_path / f"models/v/{number}", own / "1")
        (own / "model.yaml").write_text(f"{{backend: onnx, verify: {{sha256: {digests[number]}}}}}")
    control = {"require_verification": True, "verify": {"sha256": digests["1"]}}
    world = World(tmp_path, {}, repositories=["repository"], model_control=control)
    await world.load()
    assert {report.name: report.error[:12] for report in world.reports} == {"r1": "", "r2": "not verified"}
    await world.repository.close()


async def test_uploads_prove_what_the_entry_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = versions(tmp_path, 1)
    folders: list[Path] = []

    def store(files: Mapping[str, bytes]) -> model_folder.Upload:
        upload = model_folder.store(files)
        folders.append(Path(upload.name))
        return upload

    monkeypatch.setattr("tensorgate.gateway.models.loader.store", store)
    control = {"mode": "explicit", "allow_uploads": True, "require_verification": True}
    entry = {"backend": "onnx", "path": "models/v", "verify": {"sha256": digests["1"]}}
    listen = {"http": [{"bind": "127.0.0.1:0"}], "grpc": []}
    world = World(tmp_path, {"v": entry}, model_control=control, listen=listen, repositories=["models"])
    files = {f"1/{file.name}": file.read_bytes() for file in (tmp_path / "models/v/1").iterdir()}
    text = json.dumps({"backend": "onnxruntime"})
    await world.repository.load("v", text, files)
    for name, sent in (("v", files | {"1/notes": b"2"}), ("new", files)):
        with pytest.raises(LoadFailed, match="not verified"):
            await world.repository.load(name, text, sent)
    served, *refused = folders
    assert served.exists()
    assert [each.exists() for each in refused] == [False, False]
    await world.repository.close()
    assert not served.exists()


REFUSED = {
    "{}": "expected one of sha256, public_key, certificates, identity",
    f"{{sha256: {OTHER}, public_key: gateway.yaml}}": "expected one of",
    "{sha256: abc}": "expected 64 hexadecimal digits",
    "{sha256: {1: abc}}": "expected 64 hexadecimal digits",
    f"{{sha256: {{one: {OTHER}}}}}": "is no version",
    f"{{sha256: {OTHER}, signature: x.sig}}": "sha256 needs no signature",
    "{identity: me@example.org}": "identity needs issuer",
    "{identity: me@example.org, issuer: https://issuer.example}": "identity needs trust_root",
    "{public_key: gateway.yaml, issuer: https://issuer.example}": "issuer and trust_root are of an identity",
    "{public_key: none.pem}": "no such file",
}


@pytest.mark.parametrize("verify", REFUSED)
def test_what_is_no_proof(tmp_path: Path, folder: Path, verify: str) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(f"models: {{m: {{backend: python, path: 'models/m/model.py:Model', verify: {verify}}}}}")
    with pytest.raises(ConfigError, match=REFUSED[verify]):
        load_config(file, KINDS)


async def test_signatures_need_their_library(make: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder.parent / "key.pem").write_text("")
    proof = {"public_key": "models/key.pem", "folder": True}
    assert "the signature" in (error := await make(proof).load())
    assert error.endswith("model_signing sign makes it, and verify.signature says where it lies")
    (folder / "model.sig").write_text("{}")
    monkeypatch.setitem(sys.modules, "model_signing", None)
    assert "not verified: signatures need model-signing" in await make(proof).load()
    assert not (folder.parents[1] / "imported").exists()


def test_the_verb_prints_what_is_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["digest", str(folder), str(folder / "model.py")]) == 0
    found = files_digest(folder)
    own = f"{files_digest(folder / 'model.py').sha256}  {folder / 'model.py'}\n"
    assert capsys.readouterr().out == f"{found.sha256}  {folder}\n{own}"
    assert main(["digest", "--files", str(folder)]) == 0
    assert capsys.readouterr().out == f"{found.manifest()}{found.sha256}  {folder}\n"
    assert main(["digest", str(folder / "none")]) == 1
    assert "none" in capsys.readouterr().err
    (folder / "b").symlink_to("none")
    assert main(["digest", str(folder)]) == 1
    assert "b is a link to nothing" in capsys.readouterr().err


async def test_what_asks_nothing_costs_no_look_at_files(make: Any, folder: Path) -> None:
    world = make(None)
    (folder / "pipe").symlink_to("none")
    assert await world.load() == ""
    assert await asyncio.to_thread(Verifier().check, world.config.models["m"], 1, folder / "model.py") is None
