"""The command line as a whole: what each verb says of itself, and how one that cannot ask a server ends."""

import pytest

from tensorgate.gateway.cli import main as command_line
from tensorgate.gateway.cli.main import main


@pytest.mark.parametrize("verb", ["models", "call m 1", "health"])
def test_an_address_that_is_none(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*verb.split(), "--url", "ftp://localhost"]) == 1
    assert capsys.readouterr().err == "--url must start with http:// or https://, found ftp://localhost\n"


@pytest.mark.parametrize("verb", ["serve", "check", "plan", "schema", "ops", "models", "call", "diff", "health"])
def test_help_is_the_docstring_of_the_verb(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    text, _, example = (getattr(command_line, f"_{verb}").__doc__ or "").partition("example:")
    shown = capsys.readouterr().out.split()
    words = " ".join(shown)
    assert " ".join(text.split()) in words
    assert words.endswith("example: " + " ".join(example.split()))
