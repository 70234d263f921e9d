"""Where configurations come from, what counts as a change on disk, and files that callers send."""

import json
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tensorgate.adapters.open_inference.model_override import translate
from tensorgate.gateway.app import catalog, registries
from tensorgate.gateway.config import Config, load_config, model_validator
from tensorgate.gateway.contract.backend import BackendKind
from tensorgate.gateway.contract.errors import ModelNotFound
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.models import model_folder
from tensorgate.gateway.models.catalog import Catalogs, FolderCatalog, YamlCatalog, folder_reader
from tensorgate.gateway.models.model_folder import tree_fingerprint, wanted_versions


class Still(Options):
    """Options of a backend that computes nothing."""


KINDS = replace(registries(), backends={name: BackendKind(Still, Any) for name in ("onnx", "still")})  # type: ignore[arg-type]
VALIDATE = model_validator(KINDS)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    for folder in ("a/1", "a/2", "repo/b/1", "repo/.git", "repo/a/9"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "repo/readme.txt").write_text("no model")
    (tmp_path / "labels.txt").write_text("one\ntwo")
    (tmp_path / "repo/b/model.yaml").write_text("backend: still\nmax_batch_size: 8\n")
    (tmp_path / "g.yaml").write_text(
        "models: {a: {backend: onnx, path: a, class_labels: {y: labels.txt}}}\nrepositories: [repo]\n"
    )
    return load_config(tmp_path / "g.yaml", KINDS)


def folders(tmp_path: Path) -> FolderCatalog:
    return FolderCatalog([tmp_path / "repo"], folder_reader(translate), VALIDATE)


def test_models_of_the_yaml_and_of_folders_are_one_catalog(config: Config, tmp_path: Path) -> None:
    whole = catalog(config, KINDS)
    assert whole.names() == ("a", "b")
    first, second = whole.read("a"), whole.read("b")
    assert first is config.models["a"]
    assert (second.backend, second.max_batch_size, second.path and second.path.path) == (
        "still",
        8,
        tmp_path / "repo/b",
    )
    assert folders(tmp_path).names() == ("a", "b")  # of two with one name the first catalog's counts
    (tmp_path / "repo/c").mkdir()
    assert whole.names() == ("a", "b", "c")
    with pytest.raises(ValueError, match="neither backend nor platform is given"):
        whole.read("c")
    for name in ("nope", "../a", ".git", ""):
        with pytest.raises(ModelNotFound):
            whole.read(name)
        assert whole.fingerprint(name) == ()


def test_another_configuration_for_a_model_of_the_yaml(config: Config, tmp_path: Path) -> None:
    written = YamlCatalog(config, translate, VALIDATE)
    text = '{"max_batch_size": "16", "backend": "onnxruntime", "version_policy": {"specific": {"versions": [2]}}}'
    changed = written.read("a", text)
    assert (changed.max_batch_size, changed.versions.named) == (16, (2,))
    assert changed.path == config.models["a"].path
    assert changed.class_labels == config.models["a"].class_labels
    elsewhere = written.read("a", "{}", tmp_path / "repo/b")
    assert elsewhere.path is not None
    assert elsewhere.path.path == tmp_path / "repo/b"
    with pytest.raises(ValueError, match="takes no other configuration"):
        YamlCatalog(config).read("a", "{}")


def test_another_configuration_for_a_model_in_a_folder(config: Config, tmp_path: Path) -> None:
    assert folders(tmp_path).read("b", '{"max_batch_size": 2}').max_batch_size == 2
    upload = tmp_path / "sent"
    upload.mkdir()
    made = folders(tmp_path).read("unheard-of", '{"backend": "onnxruntime"}', upload)
    assert (made.backend, made.path and made.path.path) == ("onnx", upload)
    (upload / "model.yaml").write_text("backend: onnx\npath: /etc\nclass_labels: {y: /etc/passwd}\n")
    made = folders(tmp_path).read("unheard-of", "{}", upload)
    assert (made.backend, made.path and made.path.path, made.class_labels) == ("onnx", upload, {})
    for name in ("a/b", "a\nb"):
        with pytest.raises(ValueError, match="a model's name"):
            folders(tmp_path).read(name, '{"backend": "onnxruntime"}', upload)
    with pytest.raises(ModelNotFound):
        Catalogs(YamlCatalog(config)).read("unheard-of", "{}", upload)


def test_folders_of_another_format_have_another_reader(config: Config, tmp_path: Path) -> None:
    asked: list[Any] = []

    def other(folder: Path, configuration: str | None, name: str) -> dict[str, Any]:
        asked.append((folder.name, configuration, name))
        return {"backend": "onnx", "path": str(folder)}

    both = FolderCatalog([tmp_path / "repo"], folder_reader(translate, other), VALIDATE)
    assert [both.read(name).backend for name in ("a", "b")] == ["onnx", "still"]
    assert both.read("b", "{}").backend == "onnx"
    assert both.read("new", "{}", tmp_path / "repo/a").backend == "onnx"
    assert asked == [("a", None, "a"), ("b", "{}", "b"), ("a", "{}", "new")]


BROKEN_FOLDERS = [
    ("backend: still\nbackend: still\n", "model.yaml:2:1"),
    ("- still", "expected a mapping"),
    ("a: [", "not YAML"),
    ("backend: stil", "expected one of onnx, still"),
    ("backend: still\npath: ../nowhere", "no such file"),
]


@pytest.mark.parametrize(("text", "remark"), BROKEN_FOLDERS)
def test_a_broken_folder_says_what_is_wrong(config: Config, tmp_path: Path, text: str, remark: str) -> None:
    (tmp_path / "repo/b/model.yaml").write_text(text)
    with pytest.raises(ValueError, match=remark):
        folders(tmp_path).read("b")


# -------------------------------------------------------------------------------------------------------- fingerprints


def test_a_fingerprint_changes_with_whatever_the_model_is_made_of(config: Config, tmp_path: Path) -> None:
    whole = catalog(config, KINDS)
    seen = {whole.fingerprint("a")}
    (tmp_path / "a/2/model.onnx").write_bytes(b"12")
    seen.add(whole.fingerprint("a"))
    (tmp_path / "a/2/model.onnx").write_bytes(b"123")
    seen.add(whole.fingerprint("a"))
    os.utime(tmp_path / "a/2/model.onnx", (1, 1))
    seen.add(whole.fingerprint("a"))
    (tmp_path / "a/3").mkdir()
    seen.add(whole.fingerprint("a"))
    (tmp_path / "a/1").rmdir()
    seen.add(whole.fingerprint("a"))
    (tmp_path / "labels.txt").write_text("one\ntwo\nthree")
    seen.add(whole.fingerprint("a"))
    assert len(seen) == 7
    (tmp_path / "a/2/__pycache__").mkdir()
    (tmp_path / "a/2/__pycache__/x.pyc").write_text("left by Python")
    (tmp_path / "a/.hidden").write_text("left by an editor")
    (tmp_path / "repo/b/model.yaml").write_text("{}")
    assert whole.fingerprint("a") in seen


def test_a_fingerprint_is_taken_of_what_can_be_read(tmp_path: Path) -> None:
    assert tree_fingerprint(tmp_path / "nowhere") == ()
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    assert tree_fingerprint(tmp_path) == tree_fingerprint(tmp_path)


# ------------------------------------------------------------------------------------------------------------- uploads


def test_files_are_stored_for_this_user_alone() -> None:
    upload = model_folder.store({"1/model.onnx": b"abc", "labels.txt": b"", "2/deep/er/x": b"y"})
    place = Path(upload.name)
    found = {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}
    assert found == {"1/model.onnx": b"abc", "labels.txt": b"", "2/deep/er/x": b"y"}
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    upload.cleanup()
    assert not place.exists()


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "/etc/x",
        "../x",
        "1/../../x",
        "1/..",
        "1//x",
        "./x",
        "1/",
        "a\\..\\x",
        "x\0y",
        "\n",
        "a/" * 20 + "x",
    ],
)
def test_paths_that_lead_elsewhere_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="does not lie below"):
        model_folder.store({"1/fine": b"", name: b"x"})


def test_uploads_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_folder, "MAX_BYTES", 10)
    monkeypatch.setattr(model_folder, "MAX_FILES", 2)
    model_folder.store({"a": b"12345", "b": b"12345"}).cleanup()
    for files in ({"a": b"12345", "b": b"123456"}, {"a": b"", "b": b"", "c": b""}):
        with pytest.raises(ValueError, match="more than 2 files or 10 bytes"):
            model_folder.store(files)
    for files in ({"a": b"", "a/b": b""}, {"x" * 300: b""}):
        with pytest.raises(ValueError, match="cannot be stored"):
            model_folder.store(files)


# ------------------------------------------------------------------------------------------ Triton's text of the matter


TRANSLATED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"name": "m", "max_batch_size": "16"}, {"max_batch_size": 16}),
    ({"version_policy": {"latest": {"num_versions": "2"}}}, {"versions": {"latest": 2}}),
    ({"version_policy": {"all": {}}}, {"versions": "all"}),
    ({"instance_group": [{"count": 2, "kind": "KIND_CPU"}, {"kind": "KIND_CPU"}]}, {"instances": 3}),
    ({"dynamic_batching": {"max_queue_delay_microseconds": "100"}}, {"max_queue_delay_us": 100}),
    ({"parameters": {"k": {"string_value": "v"}}}, {"parameters": {"k": "v"}}),
    (
        {
            "max_batch_size": 4,
            "input": [{"name": "x", "data_type": "TYPE_STRING", "dims": ["-1"], "optional": True}],
            "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [3]}],
        },
        {
            "max_batch_size": 4,
            "inputs": [{"name": "x", "datatype": "BYTES", "shape": [-1, -1], "optional": True}],
            "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 3]}],
        },
    ),
]


@pytest.mark.parametrize(("text", "plain"), TRANSLATED)
def test_a_triton_configuration_is_translated(text: dict[str, Any], plain: dict[str, Any]) -> None:
    own = {"backend": "onnx", "path": "p"}
    assert translate(json.dumps(text), own) == own | plain


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ('{"max_batch_size": "many"}', "many"),
        ('{"max_batch_size": 1.5}', "'max_batch_size' has a wrong type"),
        ('{"max_batch_size": {"a": 1}}', "'max_batch_size' has a wrong type"),
        ('{"backend": "tensorrt"}', "cannot be computed by 'tensorrt'"),
        ('{"backend": "python"}', "cannot be computed by 'python'"),
        ('{"input": [{"name": "x"}]}', "'input' has a wrong type or lacks something"),
        ('{"version_policy": {"newest": {}}}', "'version_policy'"),
        ('{"version_policy": {"all": {}, "latest": {}}}', "too many values"),
        ('{"instance_group": 3}', "'instance_group'"),
    ],
)
def test_a_broken_triton_configuration_is_refused(text: str, remark: str) -> None:
    with pytest.raises(ValueError, match=remark):
        translate(text, {"backend": "onnx", "path": "p"})


def test_a_link_that_leads_to_itself_is_no_model(config: Config, tmp_path: Path) -> None:
    (tmp_path / "repo/loop").symlink_to(tmp_path / "repo/loop")
    assert folders(tmp_path).names() == ("a", "b")


def test_versions_are_numbers_that_callers_can_ask_for(config: Config, tmp_path: Path) -> None:
    names = (
        "0",
        "01",
        "002",
        str(2**63 - 1),
        str(2**63),
        "9" * 200,
        "1e3",
        "-1",
        "+2",
        "1_0",
        "\u0663",
        "\u00b2",
        "1.0",
    )
    for name in names:
        (tmp_path / "repo/b" / name).mkdir()
    (tmp_path / "repo/b/model.yaml").write_text("backend: still\nversions: all\n")
    found = wanted_versions(folders(tmp_path).read("b"))
    assert {version: folder.name for version, folder in found.items()} == {
        0: "0",
        1: "1",
        2: "002",
        2**63 - 1: str(2**63 - 1),
    }


def test_what_may_never_end_is_not_read(config: Config, tmp_path: Path) -> None:
    (tmp_path / "repo/b/labels.txt").symlink_to("/dev/zero")
    (tmp_path / "repo/b/model.yaml").write_text("backend: still\nclass_labels: {y: labels.txt}\n")
    with pytest.raises(ValueError, match="not a regular file"):
        folders(tmp_path).read("b")
