"""What `tensorgate ops` says: every operator, with an example that can be copied."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tensorgate.gateway.app import registries
from tensorgate.gateway.cli.main import main

OPS = registries().ops


@pytest.mark.parametrize("name", OPS)
def test_every_operator_is_explained(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["ops", name]) == 0
    first, about, *lines = capsys.readouterr().out.splitlines()
    assert first == name
    assert about.endswith(".")
    (tmp_path / "tokenizer.json").touch()
    example = next(line.partition("Example:")[2] for line in lines if "Example:" in line)
    options = OPS[name].options
    step = options.model_validate_json(json.dumps(yaml.safe_load(example)), context=tmp_path / "g.yaml")
    assert step.model_dump()["op"] == name
    for key, said in options.model_json_schema()["properties"].items():
        if key != "op":
            assert said["description"], key
            assert any(line.lstrip().startswith(f"{key}: ") for line in lines), key


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in told] == sorted(OPS)
    assert main(["ops", "sofmax"]) == 2
    assert capsys.readouterr().err == "there is no operator sofmax; did you mean softmax?\n"
