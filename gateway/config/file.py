"""A YAML file -> Config, or everything that is wrong with it at once, each with its line and column.

`yaml_tree` turns the text into plain data with locations, the classes of `options` validate that as JSON, and
`messages` turns each of pydantic's errors into a finding with its location.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import TypeAdapter, ValidationError

from tensorgate.gateway.config.checks import contradictions
from tensorgate.gateway.config.messages import Translator
from tensorgate.gateway.config.model import ModelConfig
from tensorgate.gateway.config.options import Config, ModelControl, config_class, some_model
from tensorgate.gateway.config.values import CustomOp
from tensorgate.gateway.config.yaml_tree import Finding, Loc, NotYaml, Position, Tree, key_path, read_tree
from tensorgate.gateway.contract.files import FileRef
from tensorgate.gateway.contract.operator import OpKind
from tensorgate.gateway.contract.registries import Registries

MAX_BYTES: Final = 4 << 20

_CUSTOM_OP: TypeAdapter[FileRef] = TypeAdapter(CustomOp)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong. Line and column count from 1; 0 where the file could not be read at all."""

    file: Path
    line: int
    column: int
    key: str
    text: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}:{self.column}" if self.line else str(self.file)
        return _printable(f"{where}: {self.key}: {self.text}" if self.key else f"{where}: {self.text}")


class ConfigError(Exception):
    """The configuration cannot be used. `str()` has one line per problem, in the order of the file."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


def load_config(path: Path, registries: Registries, repositories: Sequence[Path] = ()) -> Config:
    """Read and check a configuration. Paths in it are relative to its folder and must exist; `repositories` are added
    to its own. Raises ConfigError.
    """
    return load_text(_read_text(path), path, registries, repositories)


def load_text(text: str, path: Path, registries: Registries, repositories: Sequence[Path] = ()) -> Config:
    """Like `load_config`, with this text in place of the file's."""
    tree = _tree(text, path)
    own, findings = _with_custom_ops(tree, path, registries)
    return (
        _validated(tree, path, config_class(own), repositories, findings).with_ops(own.ops).with_digest(_digest(text))
    )


def parse_config(text: str, path: Path, classes: type[Config], repositories: Sequence[Path] = ()) -> Config:
    """Like `load_text`, by the class for these registries; the text defines no operators of its own. Relative paths
    start at the folder of `path`, which need not exist.
    """
    return _validated(_tree(text, path), path, classes, repositories, []).with_digest(_digest(text))


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def _tree(text: str, path: Path) -> Tree:
    try:
        return read_tree(text)
    except NotYaml as error:
        raise ConfigError((_problem(path, error.finding),)) from None


def _validated(
    tree: Tree, path: Path, classes: type[Config], repositories: Sequence[Path], findings: list[Finding]
) -> Config:
    if repositories and isinstance(tree.data, dict):
        own = tree.data.get("repositories") or []
        tree.data["repositories"] = [*own, *(str(folder.absolute()) for folder in repositories)]
    findings += [Finding(tree.locations[loc].value, loc, text) for loc, text in contradictions(tree.data, classes)]
    try:
        config = classes.model_validate_json(json.dumps(tree.data), context=path.absolute())
    except ValidationError as error:
        findings += Translator(tree, _schema(classes)).findings(error.errors(include_url=False))
    findings = [*tree.findings, *(finding for finding in findings if finding.loc not in tree.doubtful)]
    if findings:
        raise ConfigError(tuple(_problem(path, each) for each in sorted(findings, key=lambda each: each.position)))
    return config


def _with_custom_ops(tree: Tree, path: Path, registries: Registries) -> tuple[Registries, list[Finding]]:
    """The registries plus the operators of the section `ops`, and a finding for each that cannot be loaded. The section
    is read before the rest, which may use the operators; validation reports one that is no mapping.
    """
    section = tree.data.get("ops") if isinstance(tree.data, dict) else None
    if not isinstance(section, dict) or registries.load_op is None:
        return registries, []
    own: dict[str, OpKind] = {}
    findings = []
    for name, text in _load_ops(section, path, registries, own):
        findings.append(Finding(tree.locations["ops", name].value, ("ops", name), text))
    return replace(registries, ops={**registries.ops, **own}), findings


def _load_ops(
    section: Mapping[str, Any], path: Path, registries: Registries, own: dict[str, OpKind]
) -> Iterator[tuple[str, str]]:
    """One of the gateway's own name takes its place, so that a new operator of ours breaks nobody's configuration."""
    for name, written in section.items():
        try:
            file = _CUSTOM_OP.validate_python(written, context=path.absolute())
        except ValidationError:
            continue  # validation of the whole file reports it
        try:
            if registries.load_op is not None:
                own[name] = registries.load_op(name, file.path, file.member)
        except ValueError as error:
            yield name, str(error)


# Never stale: classes are made once, and a set of kinds has its own.
@lru_cache(maxsize=8)
def _schema(classes: type[Config]) -> Mapping[str, Any]:
    return classes.model_json_schema()


def model_validator(registries: Registries) -> Callable[[Mapping[str, Any], Path], ModelConfig]:
    """What turns the plain form of one model's entry, and the folder that its paths start from, into a ModelConfig.

    Raises ValueError that names the keys that are wrong.
    """
    adapter: TypeAdapter[ModelConfig] = TypeAdapter(some_model(registries))

    def validate(plain: Mapping[str, Any], folder: Path) -> ModelConfig:
        text = json.dumps(plain)
        try:
            return adapter.validate_json(text, context=folder.absolute() / "model")
        except ValidationError as error:
            findings = Translator(read_tree(text), adapter.json_schema()).findings(error.errors(include_url=False))
            texts = [f"{key_path(each.loc)}: {each.text}" if each.loc else each.text for each in findings]
            raise ValueError("; ".join(map(_printable, texts))) from None

    return validate


def with_model_control(
    config: Config, mode: str | None, load: Sequence[str] | None, poll_seconds: float | None
) -> Config:
    """The configuration with what the command line says of model control in place of the file's. Raises ConfigError."""
    given = {"mode": mode, "load": load, "poll_seconds": poll_seconds}
    changes = {key: value for key, value in given.items() if value is not None}
    if not changes:
        return config
    plain = config.model_control.model_dump(mode="json") | changes
    if plain["mode"] != "explicit":
        plain["load"] = load or []
    if plain["mode"] == "none":
        plain["model_roots"] = []
    try:
        control = ModelControl.model_validate_json(json.dumps(plain), context=config.source)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        text = "; ".join(f"{key_path(each['loc'])}: {each['msg'].removeprefix('Value error, ')}" for each in errors)
        raise ConfigError((Problem(config.source, 0, 0, "model_control", text),)) from None
    return config.model_copy(update={"model_control": control})


def with_doors(config: Config, doors: int | Literal["auto"] | None) -> Config:
    """The configuration with so many doors in place of the file's; None: as it is."""
    if doors is None:
        return config
    return config.model_copy(update={"processes": config.processes.model_copy(update={"doors": doors})})


def locator(path: Path) -> Callable[[Loc, str], Problem]:
    """(keys and indices, remark) -> the problem with its line in this file, as far as it has these keys."""
    try:
        locations = read_tree(_read_text(path)).locations
    except (NotYaml, ConfigError):
        locations = {}

    def locate(loc: Loc, text: str) -> Problem:
        known = next((loc[:length] for length in range(len(loc), 0, -1) if loc[:length] in locations), ())
        position = locations[known].key if known else Position(0, 0)
        return Problem(path, position.line, position.column, key_path(loc), text)

    return locate


def read_plain(path: Path) -> dict[str, Any]:
    """The mapping in a small YAML file, as plain data. Raises ValueError with its line and column."""
    try:
        tree = read_tree(_read_text(path))
    except NotYaml as error:
        raise ValueError(str(_problem(path, error.finding))) from None
    except ConfigError as error:
        raise ValueError(str(error)) from None
    if tree.findings:
        raise ValueError(str(_problem(path, tree.findings[0])))
    if not isinstance(tree.data, dict):
        raise ValueError(f"{path}: expected a mapping")
    return tree.data


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise ConfigError((Problem(path, 0, 0, "", reason),)) from None
    if len(content) > MAX_BYTES:
        raise ConfigError((Problem(path, 0, 0, "", f"larger than {MAX_BYTES >> 20} MiB"),))
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode()
        position = Position(before.count("\n") + 1, len(before) - before.rfind("\n"))
        raise ConfigError((Problem(path, position.line, position.column, "", "not UTF-8 text"),)) from None


def _problem(path: Path, finding: Finding) -> Problem:
    return Problem(path, finding.position.line, finding.position.column, key_path(finding.loc), finding.text)


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)
