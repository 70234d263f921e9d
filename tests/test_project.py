"""What is said in two places is the same in both."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from setuptools import find_packages

from tensorgate.backends.ops import OPS
from tensorgate.gateway.app import registries
from tensorgate.gateway.config import json_schema, load_config

ROOT = Path(__file__).parent.parent


def test_the_schema_for_editors_is_that_of_the_classes() -> None:
    committed = json.loads((ROOT / "config/schema.json").read_text(encoding="utf-8"))
    assert committed == json_schema(registries()), "say `make schema`"


def test_the_descriptor_set_is_that_of_the_proto_files(tmp_path: Path) -> None:
    made = tmp_path / "descriptors.binpb"
    sources = sorted(path.name for path in (ROOT / "proto").glob("*.proto"))
    command = ["-m", "grpc_tools.protoc", "-Iproto", "--include_imports", f"--descriptor_set_out={made}", *sources]
    subprocess.run([sys.executable, *command], cwd=ROOT, check=True)
    assert made.read_bytes() == (ROOT / "adapters/protobuf/messages/descriptors.binpb").read_bytes(), "say `make proto`"


def test_every_package_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found = {
        ".".join(("tensorgate", *path.parent.relative_to(ROOT).parts))
        for top in ("gateway", "adapters", "backends")
        for path in (ROOT / top).rglob("__init__.py")
    }
    assert found | {"tensorgate"} == set(find_packages(ROOT, **project["tool"]["setuptools"]["packages"]["find"]))


def test_heavy_libraries_are_imported_only_when_a_model_asks_for_them() -> None:
    heavy = "{'onnxruntime', 'cupy', 'onnx', 'tensorflow', 'torch', 'grpc'}"
    code = f"import sys, tensorgate.gateway.app as a; a.registries(); print(sorted({heavy} & set(sys.modules)))"
    told = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


def test_every_file_that_is_read_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    told = project["tool"]["setuptools"]["package-data"]
    named = {f"{package.replace('.', '/')}/{name}" for package, names in told.items() for name in names}
    code = {".py", ".pyi", ".cpp", ".hpp", ".so", ".pyc"}
    found = {
        f"{'' if top == 'tensorgate' else 'tensorgate/'}{path.relative_to(ROOT)}"
        for top in ("gateway", "adapters", "backends", "tensorgate")
        for path in (ROOT / top).rglob("*")
        if path.is_file() and path.suffix not in code
    }
    assert found == named


# ----------------------------------------------------------------------------------------------------------- the papers

PAPERS = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / ".github").rglob("*.md")]


@pytest.mark.parametrize("paper", PAPERS, ids=[paper.name for paper in PAPERS])
def test_links_and_named_files_are_there(paper: Path) -> None:
    text = paper.read_text(encoding="utf-8")
    links = {link.split("#")[0] for link in re.findall(r"\]\(([^):]+)\)", text)}
    assert [link for link in links if link and not (paper.parent / link).exists()] == []
    named = re.findall(
        r"`((?:gateway|adapters|backends|proto|tests|tensorgate|config|deploy|benchmarks)/[\w./-]*)`", text
    )
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_what_the_page_on_gpus_names_is_there(tmp_path: Path) -> None:
    """Its configurations are right; options, operators, extras, series and commands are those of the sources."""
    text = (ROOT / "docs/gpu.md").read_text(encoding="utf-8")
    (tmp_path / "config").symlink_to(ROOT / "config")
    (tmp_path / "try").mkdir()
    blocks = re.findall(r"^```yaml\n# (try/\S+)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) == len(re.findall(r"^```yaml", text, re.MULTILINE)) > 0
    for name, block in blocks:
        (tmp_path / name).write_text(block)
        load_config(tmp_path / name, registries())
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    said = re.findall(r"`([^`\n]+)`|\*\*(\w+)\.\*\*", prose)
    words = {word for pair in said for word in pair if re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)+", word)}
    sources = "".join(
        file.read_text(encoding="utf-8") for top in ("gateway", "adapters") for file in (ROOT / top).rglob("*.py")
    )
    series = {word for word in words if word.startswith(("tensorgate_", "nv_"))}
    assert len(series) > 5
    stems = [re.sub("^tensorgate_(gpu|device)_|_total$", "", each) for each in series]
    assert [stem for stem in stems if f'"{stem}"' not in sources] == []
    known = set(re.findall(r'"(\w+)": \{', json.dumps(json_schema(registries())))) | OPS.keys()
    assert sorted(words - series - known) == []
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert set(re.findall(r"[`g]\[([\w-]+)\]", text)) <= extras.keys()


def test_every_target_is_explained() -> None:
    told = subprocess.run(["make", "--silent", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert re.findall(r"^make (\S+) +\S", told, re.MULTILINE) == phony.split()
    for paper in PAPERS:
        for target in re.findall(r"^\$ make ([\w-]+)|`make ([\w-]+)`", paper.read_text(encoding="utf-8"), re.MULTILINE):
            assert "".join(target) in phony.split(), paper.name


def test_github_reads_its_files() -> None:
    files = [*(ROOT / ".github").rglob("*.yml"), ROOT / ".pre-commit-config.yaml"]
    read = {file.name: yaml.safe_load(file.read_text(encoding="utf-8")) for file in files}
    matrix = read["ci.yml"]["jobs"]["test"]["strategy"]["matrix"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert [f"Programming Language :: Python :: {each}" for each in matrix["python"]] == [
        each for each in project["classifiers"] if re.search(r"3\.\d", each)
    ]
    assert {"run": ".ci/run", "env": {"PYTHON": "python${{ matrix.python }}"}} in read["ci.yml"]["jobs"]["test"][
        "steps"
    ]


# ------------------------------------------------------------------------------------------------------------ the clock

CLOCKS = {"time", "monotonic", "perf_counter", "monotonic_ns", "perf_counter_ns", "time_ns"}
MEASURES = ("tests/system/heavy/", "tests/system/soak")
"""What loads a server for minutes, or a foreign one, goes by the clock."""


def by_the_clock(source: str) -> Iterator[str]:
    """Lines that wait for a length of time, or judge by one; "# real time: why" on the line says that it must be so."""
    if re.search(r"sleep|time\(|monotonic|perf_counter|time_ns", source) is None:
        return
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", None) or getattr(node.func, "id", None)
            is_wrong = name == "sleep" and [ast.dump(each) for each in node.args] != ["Constant(value=0)"]
        elif isinstance(node, ast.Assert):
            calls = (each.func for each in ast.walk(node.test) if isinstance(each, ast.Call))
            is_wrong = any(isinstance(call, ast.Attribute) and call.attr in CLOCKS for call in calls)
        else:
            continue
        told = lines[node.lineno - 1 : node.end_lineno]
        if is_wrong and not any(re.search(r"# real time: \w", line) for line in told):
            yield f"{node.lineno}: {told[0].strip()}"


def test_no_test_goes_by_the_clock() -> None:
    """A busy machine proves nothing wrong. tests/shared/waiting.py has what to wait with."""
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if not str(path.relative_to(ROOT)).startswith(MEASURES)
        for line in by_the_clock(path.read_text(encoding="utf-8"))
    ]
    assert found == [], "wait with `until` or `wait_until`, or stop the time with the fixture `clock`"


def test_what_goes_by_the_clock_is_found() -> None:
    wrong = [
        "time.sleep(1)",
        "await asyncio.sleep(0.1)",
        "assert time.monotonic() - begun < 2",
        "assert loop.time() < late",
        "assert a == 1 and perf() or time.perf_counter() > b",
    ]
    right = ["await asyncio.sleep(0)", "time.sleep(9)  # real time: so it must be", "assert clock() - begun < 2"]
    told = [list(by_the_clock(f"async def test():\n    {line}\n")) for line in wrong + right]
    assert [bool(each) for each in told] == [True] * len(wrong) + [False] * len(right)


@pytest.mark.parametrize("script", re.findall(r"python (tests/\S+)", (ROOT / "Makefile").read_text(encoding="utf-8")))
def test_what_make_runs_starts(script: str) -> None:
    """Without pytest's paths, and with the folder that make leaves it."""
    done = subprocess.run([sys.executable, script, "--help"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout[:6]) == (0, "usage:"), done.stderr
