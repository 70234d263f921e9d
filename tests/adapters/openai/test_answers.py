"""Answers of models -> what OpenAI's clients and their neighbours read: texts in pieces, stop words, reasons."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorgate.adapters.openai import KIND
from tensorgate.adapters.openai.errors import TABLE
from tensorgate.adapters.openai.events import EventCutter
from tensorgate.adapters.openai.options import OpenAiOptions
from tensorgate.adapters.openai.readdress import readdressed
from tensorgate.adapters.openai.template import ChatTemplate
from tensorgate.gateway.contract import errors as kind
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.canonical import InferResponse
from tensorgate.gateway.contract.errors import GatewayError, InvalidArgument, ModelFailed, Unsupported, kinds
from tests.adapters.openai.test_requests import TEMPLATE, TOLD, options
from tests.conftest import paper_model, resolver

DIALECT = KIND.make(OpenAiOptions())
PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions", "messages": "/v1/messages"}


def said(text: str | bytes, **parameters: Any) -> InferResponse:
    data = text.encode() if isinstance(text, str) else text
    return InferResponse({"told": np.array([data], object)}, parameters, final=False)


def told(path: str, answers: list[InferResponse], **asked: Any) -> tuple[list[bytes], bool]:
    """What a call sends for these answers of its model, as the service would do it, and whether it had enough."""
    mappings = options(kind="completion", chat_template=TEMPLATE)
    view = asked.pop("view", None) or paper_model(
        "m", {"text": ("BYTES", (1,))}, TOLD, decoupled=True, mappings=mappings
    )
    said_before = {"prompt": "p"} if path == PATHS["completions"] else {"messages": [{"role": "user", "content": "p"}]}
    body = {"model": "m", "max_tokens": 50, **said_before, **asked}
    call = Call(json.dumps(body).encode(), "POST", path, {}, "http", in_thread=True)
    endpoint = DIALECT.match("POST", path).endpoint
    assert endpoint.follow is not None
    assert endpoint.encode_end is not None
    request: Any = endpoint.decode(call, resolver(view))
    replies: list[Reply] = []
    last = InferResponse({})
    is_enough = False
    for last in answers:
        is_enough = endpoint.follow(last, request)
        if request.stream:
            replies.append(endpoint.encode(last, request))
        if is_enough:
            break
    if not request.stream:
        replies.append(endpoint.encode(last, request))
    if (end := endpoint.encode_end(last, request)) is not None:
        replies.append(end)
    return [bytes(reply.body) for reply in replies], is_enough  # type: ignore[arg-type]


def events(bodies: list[bytes]) -> list[Any]:
    """The documents of a stream of events."""
    lines = [line for line in b"".join(bodies).split(b"\n") if line.startswith(b"data: ")]
    return [json.loads(line[6:]) for line in lines if line != b"data: [DONE]"]


def text_of(name: str, bodies: list[bytes]) -> str:
    """All that a stream said."""
    if name == "messages":
        return "".join(
            each["delta"].get("text", "") for each in events(bodies) if each["type"] == "content_block_delta"
        )
    choices = [each["choices"][0] for each in events(bodies) if each["choices"]]
    return "".join(each["text"] if name == "completions" else each["delta"].get("content", "") for each in choices)


# -------------------------------------------------------------------------------------------------------------- pieces


@given(st.text(min_size=1), st.lists(st.integers(1, 9)), st.lists(st.text(min_size=1, max_size=4), max_size=3))
def test_however_a_text_is_cut_the_same_is_told(text: str, sizes: list[int], stops: list[str]) -> None:
    """Cut between any bytes, within characters and stop words, too."""
    data, pieces = text.encode("utf-8", "ignore"), []
    whole = data.decode()
    for size in sizes:
        pieces.append(said(data[:size]))
        data = data[size:]
    pieces.append(said(data))
    found = [at for at in (whole.find(stop) for stop in stops) if at >= 0]
    wanted = whole[: min(found)] if found else whole
    asked = {"stop": stops} if stops else {}
    for name in ("completions", "chat"):
        bodies, is_enough = told(PATHS[name], pieces, stream=True, **asked)
        assert text_of(name, bodies) == wanted
        assert is_enough is bool(found)
        (body,), _ = told(PATHS[name], pieces, **asked)
        choice = json.loads(body)["choices"][0]
        assert (choice["text"] if name == "completions" else choice["message"]["content"]) == wanted
    bodies, _ = told(PATHS["messages"], pieces, stream=True, **({"stop_sequences": stops} if stops else {}))
    assert text_of("messages", bodies) == wanted


def test_bytes_that_are_no_text_are_replaced() -> None:
    bodies, _ = told(PATHS["completions"], [said(b"a\xff"), said(b"b\xe2\x82")], stream=True)
    assert text_of("completions", bodies) == "a\ufffdb\ufffd"


def test_an_answer_that_is_no_text_is_the_models_failure() -> None:
    with pytest.raises(ModelFailed, match="'told' is no text"):
        told(PATHS["chat"], [InferResponse({"told": np.zeros(1, np.float32)})])


REASONS: list[tuple[list[InferResponse], dict[str, Any], str, str]] = [
    ([said("a")], {}, "stop", "end_turn"),
    ([said("a"), said("b")], {"max_tokens": 2}, "length", "max_tokens"),
    ([said("a"), said("b")], {"max_tokens": 3}, "stop", "end_turn"),
    ([said("a"), said("", finish_reason="length")], {}, "length", "max_tokens"),
    ([said("a"), said("", finish_reason="content_filter")], {}, "content_filter", "refusal"),
    ([], {}, "stop", "end_turn"),
]


@pytest.mark.parametrize(("answers", "asked", "reason", "anthropics"), REASONS)
def test_why_a_text_ends(answers: list[InferResponse], asked: dict[str, Any], reason: str, anthropics: str) -> None:
    for name in ("completions", "chat"):
        bodies, _ = told(PATHS[name], answers, stream=True, **asked)
        assert [each["choices"][0]["finish_reason"] for each in events(bodies)][-1] == reason
        assert b"".join(bodies).endswith(b"data: [DONE]\n\n")
        (body,), _ = told(PATHS[name], answers, **asked)
        assert json.loads(body)["choices"][0]["finish_reason"] == reason
    (body,), _ = told(PATHS["messages"], answers, **asked)
    assert json.loads(body)["stop_reason"] == anthropics


def test_what_the_model_says_of_tokens_is_told() -> None:
    answers = [said("a"), said("", prompt_tokens=7, completion_tokens=11)]
    (body,), _ = told(PATHS["chat"], answers)
    assert json.loads(body)["usage"] == {"prompt_tokens": 7, "completion_tokens": 11, "total_tokens": 18}
    bodies, _ = told(PATHS["chat"], answers, stream=True, stream_options={"include_usage": True})
    assert events(bodies)[-1]["usage"]["total_tokens"] == 18
    assert all(each["usage"] is None for each in events(bodies)[:-1])
    (body,), _ = told(PATHS["chat"], [said("a")])
    assert "usage" not in json.loads(body)  # nobody has counted


def test_named_events_come_in_their_order() -> None:
    bodies, _ = told(PATHS["messages"], [said("a"), said("b")], stream=True)
    names = [line[7:] for line in b"".join(bodies).split(b"\n") if line.startswith(b"event: ")]
    assert names == [
        b"message_start",
        b"content_block_start",
        b"ping",
        b"content_block_delta",
        b"content_block_delta",
        b"content_block_stop",
        b"message_delta",
        b"message_stop",
    ]


# -------------------------------------------------------------------------------------------------------------- errors


def test_every_kind_of_failure_has_its_row() -> None:
    missing = [each for each in kinds() if each not in TABLE and each.__module__.startswith("tensorgate.gateway")]
    assert [each for each in missing if not issubclass(each, tuple(TABLE))] == []


FORMS: dict[str, Any] = {
    "/v1/chat/completions": lambda body: (body["error"]["message"], body["error"]["type"], body["error"]["code"]),
    "/v1/messages": lambda body: (body["error"]["message"], body["error"]["type"], body["type"]),
    "/v2/rerank": lambda body: (body["message"], body["error"]["type"], body["error"]["code"]),
    "/embed": lambda body: (body["error"], body["error_type"], None),
}
TOLD_ERRORS: list[tuple[GatewayError, list[tuple[int, str, str | None]]]] = [
    (
        kind.ModelNotFound("m"),
        [
            (404, "invalid_request_error", "model_not_found"),
            (404, "not_found_error", "error"),
            (404, "invalid_request_error", "model_not_found"),
            (404, "Backend", None),
        ],
    ),
    (
        InvalidArgument("no"),
        [
            (400, "invalid_request_error", None),
            (400, "invalid_request_error", "error"),
            (400, "invalid_request_error", None),
            (422, "Validation", None),
        ],
    ),
    (
        kind.Unauthenticated(given=True),
        [
            (401, "invalid_request_error", "invalid_api_key"),
            (401, "authentication_error", "error"),
            (401, "invalid_request_error", "invalid_api_key"),
            (401, "Backend", None),
        ],
    ),
    (
        kind.RateLimited("requests", 3),
        [
            (429, "rate_limit_error", "rate_limit_exceeded"),
            (429, "rate_limit_error", "error"),
            (429, "rate_limit_error", "rate_limit_exceeded"),
            (429, "Overloaded", None),
        ],
    ),
    (
        kind.QueueFull("m", 2),
        [
            (503, "server_error", "server_overloaded"),
            (529, "overloaded_error", "error"),
            (503, "server_error", "server_overloaded"),
            (429, "Overloaded", None),
        ],
    ),
    (
        kind.WouldBeLate("m", 0.25),
        [
            (503, "server_error", "server_overloaded"),
            (529, "overloaded_error", "error"),
            (503, "server_error", "server_overloaded"),
            (429, "Overloaded", None),
        ],
    ),
    (
        kind.Internal(),
        [
            (500, "server_error", None),
            (500, "api_error", "error"),
            (500, "server_error", None),
            (424, "Backend", None),
        ],
    ),
]


@pytest.mark.parametrize("number", range(len(TOLD_ERRORS)))
def test_an_error_in_each_form(number: int) -> None:
    error, wanted = TOLD_ERRORS[number]
    for (path, read), (status, type_, code) in zip(FORMS.items(), wanted, strict=True):
        reply = DIALECT.match("POST", path).endpoint.encode_error(error, Call(b"", "POST", path, {}, "http"))
        text, told_type, told_code = read(json.loads(bytes(reply.body)))  # type: ignore[arg-type]
        assert (reply.http_status, told_type, told_code) == (status, type_, code)
        assert text
        assert (reply.headers.get("Retry-After") == "1") is isinstance(error, (kind.QueueFull, kind.WouldBeLate))


def test_an_error_behind_the_beginning_is_an_event() -> None:
    for path, name in (("/v1/chat/completions", b"data: "), ("/v1/messages", b"event: error\ndata: ")):
        call = Call(b"", "POST", path, {}, "http")
        call.has_replied = True
        reply = DIALECT.match("POST", path).endpoint.encode_error(ModelFailed("late"), call)
        assert bytes(reply.body).startswith(name)  # type: ignore[arg-type]
        assert bytes(reply.body).endswith(b"\n\n")  # type: ignore[arg-type]
        assert reply.streamed


# ----------------------------------------------------------------------------------------------------------- templates


def template(tmp_path: Path, text: str, name: str = "chat.jinja", **config: Any) -> ChatTemplate:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    if name.endswith(".jinja"):
        (tmp_path / name).write_text(text)
    return ChatTemplate(tmp_path / name)


MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "<b>"}]


def test_a_template_of_a_model(tmp_path: Path) -> None:
    text = (
        "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>{{ m.content | trim }}{{ eos_token }}\n{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}{{ messages | tojson }}"
    )
    made = template(tmp_path, text, bos_token="<s>", eos_token={"content": "</s>"})
    written = json.dumps(MESSAGES, separators=(",", ":"))
    assert made.prompt(MESSAGES, {}) == f"<s><|user|>hi</s>\n<|assistant|><b></s>\n<|assistant|>{written}"
    assert "<|assistant|>[" not in made.prompt(MESSAGES, {"add_generation_prompt": False})


def test_a_template_within_a_tokenizers_configuration(tmp_path: Path) -> None:
    listed = [{"name": "tools", "template": "x"}, {"name": "default", "template": "{{ messages[0].content }}"}]
    assert template(tmp_path, "", "tokenizer_config.json", chat_template=listed).prompt(MESSAGES, {}) == "hi"
    with pytest.raises(Unsupported, match="has no chat_template"):
        template(tmp_path, "", "tokenizer_config.json")


def test_what_a_template_refuses_is_said_in_its_words(tmp_path: Path) -> None:
    refusing = template(tmp_path, "{{ raise_exception('Roles must alternate') }}")
    with pytest.raises(InvalidArgument, match="Roles must alternate"):
        refusing.prompt(MESSAGES, {})
    with pytest.raises(InvalidArgument, match="does not take these messages"):
        template(tmp_path, "{{ messages[0].content.there.is.none }}").prompt(MESSAGES, {})
    with pytest.raises(Unsupported, match="cannot be read"):
        template(tmp_path, "{% for %}")


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    ],
)
def test_a_template_stays_in_its_sandbox(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidArgument):
        template(tmp_path, text).prompt(MESSAGES, {})


def test_what_callers_give_a_template_does_not_take_the_place_of_its_own(tmp_path: Path) -> None:
    made = template(tmp_path, "{{ bos_token }}{{ thinking }}{{ messages | length }}", bos_token="<s>")
    assert made.prompt(MESSAGES, {"thinking": "no", "bos_token": "x", "messages": []}) == "<s>no2"


# ------------------------------------------------------------------------------------------------------ the other side


@given(st.lists(st.binary(max_size=20)), st.lists(st.integers(1, 9)))
def test_events_are_found_however_they_come(documents: list[bytes], sizes: list[int]) -> None:
    lines = [b"data: " + document.replace(b"\n", b"").replace(b"\r", b"") for document in documents]
    stream = b"".join(line + b"\r\n\r\n: comment\nid: 1\n" for line in lines)
    cutter, found = EventCutter(), []
    for size in sizes:
        found += cutter.feed(stream[:size])
        stream = stream[size:]
    found += cutter.feed(stream) + cutter.end()
    assert found == lines


MEMBERS = st.dictionaries(st.text(), st.integers() | st.text() | st.dictionaries(st.text(), st.text()), max_size=5)


@given(MEMBERS, st.text(min_size=1))
def test_the_models_name_is_replaced_and_nothing_else(members: dict[str, Any], name: str) -> None:
    body = json.dumps({**members, "model": "here", "nested": {"model": "inner"}}).encode()
    target, pieces = readdressed(Call(body, "POST", "/openai/v1/completions?a=b", {}, "http"), name)
    assert target == "/completions?a=b"
    assert json.loads(b"".join(bytes(piece) for piece in pieces)) == {**json.loads(body), "model": name}


# --------------------------------------------------------------------------------------------------- log probabilities


def scored(*tokens: tuple[str, float]) -> InferResponse:
    """An answer of some tokens, each beside the likelier ' the'."""
    told = [
        {"7": {"logprob": logprob, "rank": 2, "decoded_token": token}, "3": {"logprob": -0.1, "decoded_token": " the"}}
        for token, logprob in tokens
    ]
    outputs = {"told": "".join(token for token, _ in tokens).encode(), "scores": json.dumps(told).encode()}
    return InferResponse({name: np.array([data], object) for name, data in outputs.items()}, final=False)


def scored_model() -> Any:
    mappings = options(kind="completion", chat_template=TEMPLATE, logprobs="scores")
    return paper_model(
        "m", {"text": ("BYTES", (1,))}, {**TOLD, "scores": TOLD["told"]}, decoupled=True, mappings=mappings
    )


def test_completions_tell_how_likely_tokens_were() -> None:
    answers = [scored((" a", -1.5), (" b", -2.5)), scored((" c", -3.5))]
    bodies, _ = told(PATHS["completions"], answers, view=scored_model(), logprobs=1)
    assert json.loads(bodies[0])["choices"][0]["logprobs"] == {
        "tokens": [" a", " b", " c"],
        "token_logprobs": [-1.5, -2.5, -3.5],
        "top_logprobs": [{" the": -0.1}] * 3,
        "text_offset": [1, 3, 5],  # behind the prompt
    }
    bodies, _ = told(PATHS["completions"], answers, view=scored_model(), logprobs=2, stream=True, echo=True)
    pieces = [json.loads(body.removeprefix(b"data: ").split(b"\n")[0])["choices"][0] for body in bodies]
    assert [piece["text"] for piece in pieces] == ["p a b", " c", ""]
    assert [piece["logprobs"]["text_offset"] for piece in pieces] == [[1, 3], [5], []]
    assert pieces[0]["logprobs"]["top_logprobs"][0] == {" the": -0.1, " a": -1.5}


def test_chats_tell_how_likely_tokens_were() -> None:
    answers = [scored((" ä", -1.5)), scored((" c", -3.5))]
    wanted = [
        {
            "token": token,
            "logprob": logprob,
            "bytes": list(token.encode()),
            "top_logprobs": [{"token": " the", "logprob": -0.1, "bytes": [32, 116, 104, 101]}],
        }
        for token, logprob in ((" ä", -1.5), (" c", -3.5))
    ]
    asked = {"logprobs": True, "top_logprobs": 1, "view": scored_model()}
    bodies, _ = told(PATHS["chat"], answers, **asked)
    assert json.loads(bodies[0])["choices"][0]["logprobs"] == {"content": wanted, "refusal": None}
    bodies, _ = told(PATHS["chat"], answers, stream=True, **asked)
    events = [json.loads(line[6:]) for line in b"".join(bodies).split(b"\n\n") if line[6:7] == b"{"]
    assert [event["choices"][0]["logprobs"] for event in events] == [
        None,
        *({"content": [each], "refusal": None} for each in wanted),
        None,
    ]


def test_tokens_behind_a_stop_word_are_not_told() -> None:
    answers = [scored((" a", -1.0), (" b", -2.0), (" c", -3.0))]
    bodies, is_enough = told(PATHS["completions"], answers, view=scored_model(), logprobs=1, stop=" b")
    choice = json.loads(bodies[0])["choices"][0]
    assert (is_enough, choice["text"], choice["logprobs"]["tokens"]) == (True, " a", [" a"])


@pytest.mark.parametrize("scores", [b"[", b"3", b'[{"1": {"logprob": "x"}}]', b"[{}]", b'[{"1": {}}]'])
def test_log_probabilities_that_are_none(scores: bytes) -> None:
    answer = InferResponse({"told": np.array([b"a"], object), "scores": np.array([scores], object)}, final=False)
    with pytest.raises(ModelFailed, match="log probabilities cannot be read"):
        told(PATHS["completions"], [answer], view=scored_model(), logprobs=1)


# ---------------------------------------------------------------------------------------------------------------- forms

FASTAPI = KIND.make(OpenAiOptions(error_form="fastapi"))


@pytest.mark.parametrize(
    ("body", "status", "detail"),
    [
        ({}, 422, [{"type": "missing_required_parameter", "loc": ["body", "model"], "msg": "Field required"}]),
        ({"model": 3}, 422, "Input should be a valid string"),
        ({"model": None}, 422, "Input should be a valid string"),
        ({"model": "m", "prompt": "a", "logprobs": 6}, 422, "Input should be less than or equal to 5"),
        ({"model": "m", "prompt": "a", "min_tokens": -1}, 422, "Input should be greater than or equal to 0"),
        (
            {"model": "m", "prompt": "a", "stream_options": {}},
            400,
            "`stream_options` can only be used when `stream` is True",
        ),
        ({"model": "m", "prompt": "a", "tools": [1]}, 400, "'tools' is not supported by this model."),
        ({"model": "x", "prompt": "a"}, 400, "Unknown model: x"),
    ],
)
def test_errors_as_servers_made_with_fastapi_have_them(body: dict[str, Any], status: int, detail: Any) -> None:
    view = paper_model("m", {"text": ("BYTES", (1,))}, TOLD, decoupled=True, mappings=options(kind="completion"))
    call = Call(json.dumps(body).encode(), "POST", PATHS["completions"], {}, "http", in_thread=True)
    endpoint = FASTAPI.match("POST", PATHS["completions"]).endpoint
    with pytest.raises(GatewayError) as raised:
        endpoint.decode(call, resolver(view))
    reply = endpoint.encode_error(raised.value, call)
    found = json.loads(bytes(reply.body))["detail"]  # type: ignore[arg-type]
    assert reply.http_status == status
    assert detail in (found, found[0]["msg"] if isinstance(found, list) else found)
