"""What is missing is named so that its installation works as it is told: by the packages, not by a name of our own."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tensorgate.gateway.contract.extras import install_command

ROOT = Path(__file__).parents[3]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
TOLD = re.compile(r"""install_command\(["'](.*?)["']\)""")


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_packages_of_an_extra_are_told(extra: str) -> None:
    words = re.findall(r"'(.*?)'", install_command(extra).removeprefix("pip install "))
    assert [str(Requirement(word)) for word in words] == [str(Requirement(each)) for each in EXTRAS[extra]]


def test_a_program_that_is_not_installed_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", none)
    assert install_command("text") == "pip install -e '.[text]'"


def test_messages_name_extras_that_there_are() -> None:
    files = [file for room in ("gateway", "adapters", "backends") for file in (ROOT / room).rglob("*.py")]
    texts = [file.read_text(encoding="utf-8") for file in files]
    told = {extra for text in texts for extra in TOLD.findall(text)}
    assert len(told) > 6
    assert told <= EXTRAS.keys()
    assert not [text for text in texts if re.search(r"pip install '?tensorgate", text)]
