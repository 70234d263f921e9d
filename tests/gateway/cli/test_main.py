"""The command line as a whole: what each verb says of itself, and how one that cannot ask a server ends."""

import signal
from pathlib import Path

import pytest

from tensorgate.gateway.cli import main as command_line
from tensorgate.gateway.cli import serving
from tensorgate.gateway.cli.main import main
from tensorgate.gateway.config import Config

DEMO = Path(__file__).parents[3] / "config/demo.yaml"


@pytest.mark.parametrize("verb", ["models", "usage", "call m 1", "health"])
def test_an_address_that_is_none(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*verb.split(), "--url", "ftp://localhost"]) == 1
    assert capsys.readouterr().err == "--url must start with http:// or https://, found ftp://localhost\n"


def test_doors_of_the_command_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[object] = []

    def serve_by_doors(config: Config, doors: int, log: object) -> int:
        seen.extend((config.processes.doors, doors))
        return 9

    monkeypatch.setattr(serving, "_serve_by_doors", serve_by_doors)
    monkeypatch.setattr("tensorgate.gateway.app.tune_process", lambda: None)
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    assert main(["serve", str(DEMO), "--doors", "3"]) == 9
    assert seen == [3, 3]
    for wrong in ("0", "257", "-1", "many"):
        with pytest.raises(SystemExit):
            main(["serve", str(DEMO), f"--doors={wrong}"])
        assert "expected auto, or a number from 1 to 256" in capsys.readouterr().err


@pytest.mark.parametrize(
    "verb", ["serve", "check", "plan", "schema", "ops", "models", "usage", "call", "diff", "health"]
)
def test_help_is_the_docstring_of_the_verb(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    text, _, example = (getattr(command_line, f"_{verb}").__doc__ or "").partition("example:")
    shown = capsys.readouterr().out.split()
    words = " ".join(shown)
    assert " ".join(text.split()) in words
    assert words.endswith("example: " + " ".join(example.split()))
