"""What people install: an sdist without links, one wheel for all of Python's versions, and its neighbours beside it."""

import json
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from serving import ROOT

pytestmark = pytest.mark.heavy

SOURCES = ("gateway", "adapters", "backends", "tensorgate")
FILES = ("pyproject.toml", "README.md", "LICENSE")
ALONE = ("--quiet", "--no-deps", "--ignore-installed")
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info")
BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, 'build_' + sys.argv[1])(sys.argv[2])"
MODEL = """
import adapters
from backends.mine import FACTOR

class Model:
    def __init__(self, context):
        assert adapters.OWNER == "the user"

    def infer(self, inputs, request):
        return {"y": inputs["x"] * FACTOR}
"""
ASK = """
import json, pathlib, tensorgate, urllib.request

body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [2]}]}
with tensorgate.Server(pathlib.Path("gateway.yaml")) as server:
    with urllib.request.urlopen(f"{server.url}/v2/models/m/infer", json.dumps(body).encode()) as answer:
        print(json.load(answer)["outputs"][0]["data"])
"""


def build(folder: Path, kind: str) -> Path:
    """The folder's sdist or wheel, made by the tools of this environment."""
    subprocess.run([sys.executable, "-c", BUILD, kind, "dist"], cwd=folder, check=True, capture_output=True)
    (made,) = (folder / "dist").glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return made


def pip(python: Path, *words: str | Path) -> None:
    done = subprocess.run([python, "-m", "pip", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def says(python: Path, code: str, folder: Path) -> str:
    done = subprocess.run([python, "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def fresh(folder: Path, *, borrows: bool = True) -> Path:
    """The interpreter of a new environment. One that borrows finds the libraries of this one, but not its tensorgate:
    that is editable, and what finds it is read nowhere else.
    """
    venv.create(folder, with_pip=True)
    python = folder / "bin/python"
    if borrows:
        pip(python, "uninstall", "--quiet", "--yes", "setuptools")  # the bundled one, which is old
        (own,) = (folder / "lib").glob("python*/site-packages")
        (own / "borrowed.pth").write_text(f"{Path(pytest.__file__).parents[1]}\n")
    return python


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("tree")
    for name in SOURCES:
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=LEFT_OUT)
    for name in FILES:
        shutil.copy(ROOT / name, tree)
    return build(tree, "sdist")


@pytest.fixture(scope="module")
def unpacked(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return folder / sdist.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def wheel(unpacked: Path) -> Path:
    return build(unpacked, "wheel")


def sources() -> set[str]:
    """Every file of the package, by its name where it is installed."""
    found = {
        f"{'' if top == 'tensorgate' else 'tensorgate/'}{path.relative_to(ROOT)}"
        for top in SOURCES
        for path in (ROOT / top).rglob("*")
        if path.is_file() and path.suffix in (".py", ".pyi", ".binpb", ".html", ".typed")
    }
    return {*found, "tensorgate/py.typed"}


def test_the_sdist_has_files_in_place_of_links(sdist: Path, unpacked: Path) -> None:
    with tarfile.open(sdist) as archive:
        assert not [member.name for member in archive.getmembers() if member.issym() or member.islnk()]
    assert {name for name in sources() if not (unpacked / name).is_file()} == set()


def test_one_wheel_fits_every_python(wheel: Path) -> None:
    assert "-cp311-abi3-" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = {*archive.namelist()}
    helpers = {f"tensorgate/adapters/_native/{path.stem}.abi3.so" for path in ROOT.glob("adapters/_native/*.cpp")}
    assert {name for name in names if ".dist-info/" not in name} == sources() | helpers
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_a_wheel_brings_all_that_it_needs(wheel: Path, tmp_path: Path) -> None:
    python = fresh(tmp_path / "fresh", borrows=False)
    pip(python, "install", "--quiet", wheel)
    pip(python, "check")
    code = "import tensorgate; import tensorgate.gateway.app as app; app.registries(); print(tensorgate.__version__)"
    assert says(python, code, tmp_path) == wheel.name.split("-")[1]
    assert says(python, "from tensorgate.adapters._native import _numbers; print('compiled')", tmp_path) == "compiled"


def test_an_editable_install_is_the_folder(unpacked: Path, tmp_path: Path) -> None:
    python = fresh(tmp_path / "fresh")
    tree = tmp_path / "tree"
    shutil.copytree(unpacked, tree, ignore=LEFT_OUT)
    pip(python, "install", *ALONE, "--no-build-isolation", "-e", tree)
    assert says(python, "import tensorgate.gateway as g; print(g.__file__)", tmp_path).startswith(str(tree))


@pytest.mark.parametrize("order", [("ours", "theirs"), ("theirs", "ours")], ids="-".join)
def test_other_projects_have_folders_of_the_same_names(order: tuple[str, str], wheel: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    for name in ("adapters", "backends"):
        (theirs / name).mkdir(parents=True)
        (theirs / name / "__init__.py").write_text("OWNER = 'theirs'\n")
    text = "[project]\nname = 'theirs'\nversion = '1'\n[tool.setuptools]\npackages = ['adapters', 'backends']\n"
    (theirs / "pyproject.toml").write_text(text)
    python = fresh(tmp_path / "fresh")
    wheels = {"ours": wheel, "theirs": build(theirs, "wheel")}
    for name in order:
        pip(python, "install", *ALONE, wheels[name])
    code = "import adapters, backends, tensorgate.gateway.app as app; app.registries(); print(adapters.OWNER, backends)"
    assert says(python, code, tmp_path).startswith("theirs <module 'backends'")
    pip(python, "uninstall", "--quiet", "--yes", "tensorgate")
    assert says(python, "import adapters; print(adapters.OWNER)", tmp_path) == "theirs"


def test_a_model_finds_folders_of_its_own_of_the_same_names(wheel: Path, tmp_path: Path) -> None:
    """Those of the path that the user gives Python."""
    python = fresh(tmp_path / "fresh")
    pip(python, "install", *ALONE, wheel)
    (tmp_path / "backends").mkdir()
    (tmp_path / "backends/mine.py").write_text("FACTOR = 3\n")
    (tmp_path / "adapters.py").write_text("OWNER = 'the user'\n")
    (tmp_path / "model.py").write_text(MODEL)
    named = {"inputs": "x", "outputs": "y"}
    tensors = {key: [{"name": name, "datatype": "FP32", "shape": [1]}] for key, name in named.items()}
    config = {"models": {"m": {"backend": "python", "path": "model.py:Model", **tensors}}}
    (tmp_path / "gateway.yaml").write_text(json.dumps(config))
    assert says(python, ASK, tmp_path) == "[6.0]"
