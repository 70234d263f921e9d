"""Messages -> the prompt that a chat model was trained on, by its chat template, in Jinja's sandbox.

A template is the operator's, and messages are the callers': they are values and never templates. Source: Hugging
Face, chat templates; the names that templates may use are those of transformers.
"""

from __future__ import annotations

import datetime
import importlib
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import orjson

from tensorgate.adapters.openai.fields import BadField
from tensorgate.gateway.contract.call import Call, MustOffload
from tensorgate.gateway.contract.errors import InvalidArgument, Unsupported
from tensorgate.gateway.contract.extras import install_command
from tensorgate.gateway.contract.text import TextOptions

_MEMO: Final = "chat_template"
_BESIDE: Final = "tokenizer_config.json"
_DEFAULT: Final = "default"
_DEFAULTS: Final = {"tools": None, "documents": None, "add_generation_prompt": True}
_opening = threading.Lock()


class _Refused(Exception):
    """The template's own word about messages that it does not take."""


class ChatTemplate:
    """A template, compiled once. In any thread. Raises Unsupported for a file that has none."""

    def __init__(self, path: Path) -> None:
        try:
            jinja2: Any = importlib.import_module("jinja2")
            sandbox: Any = importlib.import_module("jinja2.sandbox")
        except ImportError:
            raise Unsupported(f"chat templates are read by the library jinja2: {install_command('text')}") from None
        text, self._tokens = _read(path)
        environment = sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"], undefined=jinja2.Undefined
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
        try:
            self._template = environment.from_string(text)
        except jinja2.TemplateError as error:
            raise Unsupported(f"the model's chat template cannot be read: {error}") from None

    def prompt(self, messages: Sequence[Mapping[str, Any]], more: Mapping[str, Any]) -> str:
        """`more` are values of the caller's for the template. Raises InvalidArgument for what it does not take."""
        try:
            text: str = self._template.render({**_DEFAULTS, **more, **self._tokens, "messages": messages})
        except _Refused as error:
            raise BadField(str(error), "messages") from None
        except Exception as error:  # whatever a template does with what callers say
            raise InvalidArgument(f"The model's chat template does not take these messages: {error}") from None
        return text


def _refuse(text: str) -> NoReturn:
    raise _Refused(text)


def _tojson(value: Any, indent: int | None = None, **_: Any) -> str:
    """Jinja's own escapes HTML."""
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 if indent else None).decode()


def _read(path: Path) -> tuple[str, dict[str, str]]:
    """A template, and the special tokens that it may name."""
    try:
        text = path.read_text()
        beside = path if path.suffix == ".json" else path.parent / _BESIDE
        settings = orjson.loads(beside.read_bytes()) if beside.is_file() else {}
    except (OSError, ValueError) as error:
        raise Unsupported(f"the model's chat template cannot be read: {error}") from None
    tokens = {}
    for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
        token = settings.get(name)
        token = token.get("content") if isinstance(token, dict) else token
        tokens[name] = token if isinstance(token, str) else ""
    if path is not beside:
        return text, tokens
    found = settings.get("chat_template")
    if isinstance(found, list):
        found = next((each.get("template") for each in found if each.get("name") == _DEFAULT), None)
    if not isinstance(found, str):
        raise Unsupported(f"{path.name} has no chat_template")
    return found, tokens


def template_of(options: TextOptions, call: Call) -> ChatTemplate | None:
    """A model's template, if it has one. Raises MustOffload on the event loop where it must be read first, and
    Unsupported.
    """
    if options.chat_template is None:
        return None
    found: ChatTemplate | None = options.memo.get(_MEMO)
    if found is None:
        if not call.in_thread:
            raise MustOffload
        with _opening:
            found = options.memo.get(_MEMO) or ChatTemplate(options.chat_template.path)
            options.memo[_MEMO] = found
    return found
