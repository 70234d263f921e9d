"""Bodies of OpenAI's requests and their neighbours' -> tensors and parameters: tables of both outcomes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorgate.adapters.openai import KIND
from tensorgate.adapters.openai.errors import row_of
from tensorgate.adapters.openai.fields import BadField
from tensorgate.adapters.openai.options import OpenAiOptions
from tensorgate.adapters.openai.routes import endpoints
from tensorgate.gateway.contract.call import Call, MustOffload
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelView
from tensorgate.gateway.contract.errors import GatewayError, MalformedJson, ModelNotFound
from tensorgate.gateway.contract.files import FileRef
from tensorgate.gateway.contract.questions import InferTogether, KnownAnswer
from tensorgate.gateway.contract.text import TextOptions
from tests.conftest import paper_model, resolver

DEMO = Path(__file__).parents[3] / "config/demo/models/writer"
TOKENIZER, TEMPLATE = (FileRef(name, DEMO / name) for name in ("tokenizer.json", "chat_template.jinja"))
DIALECT = KIND.make(OpenAiOptions.model_validate({"default_models": {"embedding": "e", "reranker": "r"}}))
TEXT = ("BYTES", (-1,))
VECTORS = {"v": ("FP32", (-1, 3))}
TOLD = {"told": ("BYTES", (1,))}


def options(**more: Any) -> dict[str, Any]:
    """A view's mappings."""
    return {"text": TextOptions.model_construct(**{**TextOptions(kind="embedding").__dict__, **more})}


@pytest.fixture
def views(make_model: Callable[..., ModelView]) -> list[ModelView]:
    one = ("BYTES", (1,))
    sampled = {"prompt": one, "max_new": ("INT32", (1,)), "temperature": ("FP32", (1,)), "stop": ("BYTES", (-1,))}
    return [
        make_model("e", {"text": TEXT}, VECTORS, max_batch_size=4, mappings=options(kind="embedding")),
        make_model(
            "counted",
            {"text": TEXT},
            VECTORS,
            mappings=options(kind="embedding", tokenizer=TOKENIZER, max_tokens=5),
        ),
        make_model(
            "packed",
            {"text": TEXT},
            VECTORS,
            max_batch_size=4,
            mappings=options(kind="embedding", tokenizer=TOKENIZER, max_batch_tokens=8, truncation=True, max_tokens=6),
        ),
        make_model("r", {"q": TEXT, "t": TEXT}, {"s": ("FP32", (-1, 1))}, mappings=options(kind="reranker")),
        make_model("g", {"text": one}, TOLD, decoupled=True, mappings=options(kind="completion")),
        make_model(
            "full",
            sampled,
            TOLD,
            decoupled=True,
            mappings=options(
                kind="completion",
                prompt="prompt",
                tokenizer=TOKENIZER,
                chat_template=TEMPLATE,
                parameters={"max_tokens": "max_new"},
                fixed={"exclude": True},
            ),
        ),
        make_model(
            "chat",
            {"talk": one, "sampling": one, "stream": ("BOOL", (1,))},
            TOLD,
            decoupled=True,
            mappings=options(kind="chat", messages="talk", sampling="sampling"),
        ),
        make_model("tensors", {"x": ("FP32", (1,))}, {"y": ("FP32", (1,))}),
    ]


@pytest.fixture
def ask(views: list[ModelView], make_resolve: Callable[..., Any]) -> Callable[..., Any]:
    """(path, body) -> the question that the dialect makes of it."""

    def run(path: str, body: Any, **more: Any) -> Any:
        match = DIALECT.match("POST", path)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        more.setdefault("in_thread", True)
        call = Call(data, "POST", path, more.pop("headers", {}), "http", match.args, **more)
        return match.endpoint.decode(call, make_resolve(*views))

    return run


def plain(request: InferRequest) -> dict[str, Any]:
    """Its inputs, with texts as texts."""
    return {
        name: [text.decode() for text in array.reshape(-1)] if array.dtype == object else array.tolist()
        for name, array in request.inputs.items()
    }


# ---------------------------------------------------------------------------------------------------------- embeddings


@pytest.mark.parametrize(("given", "texts"), [("a", ["a"]), (["a", "ß"], ["a", "ß"])])
def test_texts_become_one_request(ask: Callable[..., Any], given: Any, texts: list[str]) -> None:
    request = ask("/openai/v1/embeddings", {"model": "e", "input": given})
    assert plain(request) == {"text": texts}
    assert [output.name for output in request.outputs] == ["v"]


def test_more_texts_than_a_batch_are_several_requests(ask: Callable[..., Any]) -> None:
    question = ask("/v1/embeddings", {"model": "e", "input": [str(number) for number in range(10)]})
    assert isinstance(question, InferTogether)
    assert [len(request.inputs["text"]) for request in question.requests] == [4, 4, 2]


def test_texts_of_like_length_run_together_within_the_budget_of_tokens(ask: Callable[..., Any]) -> None:
    """Of 2, 6, 1, 1, 7 (cut to 6), 1 and 1 tokens."""
    texts = ["light", "In the beginning", "a", "b", "God said let there be light", "c", "d"]
    question = ask("/v1/embeddings", {"model": "packed", "input": texts})
    packs = [[text.decode() for text in request.inputs["text"]] for request in question.requests]
    assert packs == [["In the beginning"], ["God said let there be"], ["light", "a", "b", "c"], ["d"]]
    assert [request.tokens for request in question.requests] == [6, 6, 2, 1]


@given(st.lists(st.sampled_from(["a", "light", "In the beginning", "In the beginning God created"]), min_size=1))
def test_answers_are_in_the_order_of_the_texts(texts: list[str]) -> None:
    """However they run together: each text's vector is (number of its bytes, 0, 0)."""
    mappings = options(kind="embedding", tokenizer=TOKENIZER, max_batch_tokens=18)
    view = paper_model("m", {"text": TEXT}, VECTORS, max_batch_size=3, mappings=mappings)
    body = json.dumps({"model": "m", "input": texts}).encode()
    endpoint = DIALECT.match("POST", EMBED).endpoint
    question: Any = endpoint.decode(Call(body, "POST", EMBED, {}, "http", in_thread=True), resolver(view))

    def answer(request: InferRequest) -> InferResponse:
        rows = request.inputs["text"]
        assert len(rows) <= 3
        assert len(rows) * request.tokens <= 18
        return InferResponse({"v": np.array([[len(text), 0, 0] for text in rows], np.float32)})

    is_one = isinstance(question, InferRequest)
    answers = answer(question) if is_one else [answer(each) for each in question.requests]
    told = json.loads(endpoint.encode(answers, question).body)
    assert [each["embedding"][0] for each in told["data"]] == [len(text) for text in texts]


def test_tokens_are_texts_of_the_models_own_tokenizer(ask: Callable[..., Any]) -> None:
    tokens = ask("/openai/v1/tokenize", {"model": "counted", "prompt": "In the"}).answer["tokens"]
    assert plain(ask("/v1/embeddings", {"model": "counted", "input": tokens})) == {"text": ["In the"]}
    both = ask("/v1/embeddings", {"model": "counted", "input": [tokens, tokens[:1]]})
    assert (plain(both), both.wire.tokens) == ({"text": ["In the", "In"]}, 3)


@pytest.mark.parametrize("cut", [True, False])
def test_long_texts_are_cut_or_refused(ask: Callable[..., Any], cut: bool) -> None:
    body = {"inputs": "In the beginning God", "truncate": cut, "model": "counted"}
    if cut:
        assert plain(ask("/embed", body)) == {"text": ["In the beginn"]}
    else:
        with pytest.raises(BadField, match="maximum context length is 5 tokens, however you requested 7"):
            ask("/embed", body)


# ------------------------------------------------------------------------------------------------------------ refusals


EMBED, COMPLETE, CHAT = "/v1/embeddings", "/v1/completions", "/v1/chat/completions"
HI: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}]}
WRONG: dict[str, tuple[str, Any, str, str | None]] = {
    "no JSON": (EMBED, b"{", "could not parse the JSON body", None),
    "a list": (EMBED, [], "must be a JSON object, but is an array", None),
    "no model": (EMBED, {"input": "a"}, "Missing required parameter: 'model'", "model"),
    "a model that is none": (
        EMBED,
        {"model": 1, "input": "a"},
        "expected a string, but got an int",
        "model",
    ),
    "an unknown model": (EMBED, {"model": "x", "input": "a"}, "The model `x` does not exist", "model"),
    "a model of tensors": (
        EMBED,
        {"model": "tensors", "input": "a"},
        "takes tensors, and no texts",
        "model",
    ),
    "another kind": (EMBED, {"model": "g", "input": "a"}, "is for completions", "model"),
    "no input": (EMBED, {"model": "e"}, "Missing required parameter: 'input'", "input"),
    "null": (EMBED, {"model": "e", "input": None}, "Missing required parameter: 'input'", "input"),
    "nothing": (EMBED, {"model": "e", "input": []}, "an empty array", "input"),
    "an empty text": (EMBED, {"model": "e", "input": ["a", ""]}, "a text is empty", "input"),
    "texts and tokens": (EMBED, {"model": "e", "input": ["a", 1]}, "expected a string, an array", "input"),
    "booleans": (EMBED, {"model": "counted", "input": [True]}, "expected a string, an array", "input"),
    "logprobs of a model that tells none": (
        COMPLETE,
        {"model": "g", "prompt": "a", "logprobs": 1},
        "not supp",
        "logprobs",
    ),
    "many logprobs": (COMPLETE, {"model": "g", "prompt": "a", "logprobs": 6}, "expected at most 5", "logprobs"),
    "a half token": (COMPLETE, {"model": "g", "prompt": "a", "min_tokens": -1}, "at least 0", "min_tokens"),
    "a number for a flag": (COMPLETE, {"model": "g", "prompt": "a", "ignore_eos": 3}, "a boolean", "ignore_eos"),
    "a null for a model": (COMPLETE, {"model": None, "prompt": "a"}, "Missing required parameter", "model"),
    "tokens without a tokenizer": (EMBED, {"model": "e", "input": [1]}, "takes no tokens", "input"),
    "a token that is none": (EMBED, {"model": "counted", "input": [1024]}, "tokens are 0 to 1023", "input"),
    "too many texts": (EMBED, {"model": "e", "input": ["a"] * 2049}, "2048 is the most", "input"),
    "a format": (EMBED, {"model": "e", "input": "a", "encoding_format": "x"}, "one of", "encoding_format"),
    "dimensions": (EMBED, {"model": "e", "input": "a", "dimensions": 0}, "at least 1", "dimensions"),
    "no prompt": (COMPLETE, {"model": "g"}, "Missing required parameter: 'prompt'", "prompt"),
    "a hot one": (COMPLETE, {"model": "g", "prompt": "a", "temperature": 2.1}, "at most 2", "temperature"),
    "a number that is none": (COMPLETE, {"model": "g", "prompt": "a", "top_p": "1"}, "a number, but", "top_p"),
    "no tokens": (COMPLETE, {"model": "g", "prompt": "a", "max_tokens": 0}, "at least 1", "max_tokens"),
    "half a choice": (COMPLETE, {"model": "g", "prompt": "a", "n": 1.5}, "an integer, but", "n"),
    "too many choices": (COMPLETE, {"model": "g", "prompt": "a", "n": 129}, "at most 128", "n"),
    "too many in all": (COMPLETE, {"model": "g", "prompt": ["a"] * 20, "n": 100}, "1024 is the most", "n"),
    "stops": (COMPLETE, {"model": "g", "prompt": "a", "stop": [1]}, "an array of strings", "stop"),
    "many stops": (COMPLETE, {"model": "g", "prompt": "a", "stop": ["x"] * 17}, "16 is the most", "stop"),
    "a long stop": (COMPLETE, {"model": "g", "prompt": "a", "stop": "x" * 257}, "more than 256", "stop"),
    "options of no stream": (
        COMPLETE,
        {"model": "g", "prompt": "a", "stream_options": {"include_usage": True}},
        "only allowed when 'stream' is true",
        "stream_options",
    ),
    "log probabilities": (COMPLETE, {"model": "g", "prompt": "a", "logprobs": 2}, "not supported", "logprobs"),
    "a tree": (COMPLETE, {"model": "g", "prompt": "a", "extra": {"a": 1}}, "Unrecognized request", "extra"),
    "no chat": (
        CHAT,
        {"model": "g", **HI},
        "no chats",
        "model",
    ),
    "no messages": (CHAT, {"model": "full", "messages": []}, "expected 1 to", "messages"),
    "a speaker": (
        CHAT,
        {"model": "full", "messages": [{"role": "dog", "content": "a"}]},
        "Supported values are: 'system'",
        "messages[0].role",
    ),
    "silence": (
        CHAT,
        {"model": "full", "messages": [{"role": "user"}]},
        "Missing required parameter: 'messages[0].content'",
        "messages[0].content",
    ),
    "a picture": (
        CHAT,
        {"model": "full", "messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "takes text alone",
        "messages[0].content[0]",
    ),
    "tools": (
        CHAT,
        {"model": "full", "messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function"}]},
        "not supported",
        "tools",
    ),
    "no limit of Anthropic's": (
        "/v1/messages",
        {"model": "full", "messages": [{"role": "user", "content": "a"}]},
        "Missing required parameter: 'max_tokens'",
        "max_tokens",
    ),
    "a stored response": (
        "/v1/responses",
        {"model": "full", "input": "a", "previous_response_id": "r"},
        "nothing is stored",
        "previous_response_id",
    ),
    "documents": (
        "/v1/rerank",
        {"model": "r", "query": "a", "documents": [1]},
        "expected a string, or",
        "documents[0]",
    ),
    "as many as as many": (
        "/v1/score",
        {"model": "r", "text_1": ["a", "b"], "text_2": ["c"] * 3},
        "2 texts cannot",
        "text_1",
    ),
    "no default": ("/predict", {"inputs": "a"}, "no openai.default_models.classifier", "model"),
    "tokens of nobody": ("/v1/detokenize", {"model": "e", "tokens": [1]}, "Invalid URL", None),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said_by_its_name(ask: Callable[..., Any], name: str) -> None:
    path, body, words, param = WRONG[name]
    with pytest.raises(GatewayError) as caught:
        ask(path, body)
    assert words in row_of(caught.value).text(caught.value)
    if isinstance(caught.value, BadField):
        assert caught.value.param == param


def test_deep_and_long_bodies(ask: Callable[..., Any]) -> None:
    deep = b'{"model":"e","input":' + b"[" * 200 + b"]" * 200 + b"}"
    with pytest.raises(MalformedJson) as caught:
        ask("/v1/embeddings", deep)
    assert caught.value.max_depth == 100
    with pytest.raises(MustOffload):
        ask("/v1/embeddings", {"model": "e", "input": "a" * 40_000}, in_thread=False)
    with pytest.raises(GatewayError, match="content encoding 'br' is not supported"):
        ask("/v1/embeddings", b"", headers={"content-encoding": "br"})


SOME = st.none() | st.booleans() | st.floats(allow_nan=False) | st.text()
ANY = st.recursive(SOME, lambda some: st.lists(some) | st.dictionaries(st.text(), some), max_leaves=8)
MEMBERS = ("prompt", "messages", "input", "stop", "n", "stream", "max_tokens", "query", "documents", "inputs", "seed")


@given(ANY)
def test_whatever_the_members_are_they_are_taken_or_refused_by_a_word(given: Any) -> None:
    template = options(kind="completion", chat_template=TEMPLATE)
    view = paper_model("g", {"text": ("BYTES", (1,))}, TOLD, decoupled=True, mappings=template)
    good = {"model": "g", "prompt": "a", "input": "a", "max_tokens": 1, **HI}
    for path, (method, endpoint) in endpoints(OpenAiOptions()).items():
        for member in MEMBERS if method == "POST" else ():
            body = json.dumps(good | {member: given}).encode()
            call = Call(body, "POST", path, {}, "http", in_thread=True)
            try:
                question = endpoint.decode(call, resolver(view))
            except GatewayError as error:
                row_of(error).text(error)
            else:
                assert isinstance(question, (InferRequest, InferTogether, KnownAnswer))


# ---------------------------------------------------------------------------------------------------------- generation


def test_parameters_go_where_the_model_has_them(ask: Callable[..., Any]) -> None:
    body = {"model": "full", "prompt": "In", "max_tokens": 7, "temperature": 0.5, "stop": ["x", "yz"], "seed": 3}
    request = ask("/v1/completions", body | {"top_p": 1, "min_p": 0.25, "user": "me", "logit_bias": {}})
    assert plain(request) == {"prompt": ["In"], "max_new": [7], "temperature": [0.5], "stop": ["x", "yz"]}
    assert request.parameters == {"seed": 3, "top_p": 1.0, "min_p": 0.25, "exclude": True}
    assert request.inputs["max_new"].dtype == np.int32


def test_parameters_as_one_document(ask: Callable[..., Any]) -> None:
    messages = [{"role": "user", "content": "hi"}]
    request = ask("/v1/chat/completions", {"model": "chat", "messages": messages, "max_tokens": 5, "top_k": 2})
    said = plain(request)
    assert json.loads(said["talk"][0]) == messages
    assert json.loads(said["sampling"][0]) == {"max_tokens": 5, "top_k": 2}
    assert said["stream"] == [True]


@pytest.mark.parametrize("value", [2**31, 1 << 62])
def test_a_number_that_the_input_cannot_hold(ask: Callable[..., Any], value: int) -> None:
    with pytest.raises(BadField, match="expected INT32") as caught:
        ask("/v1/completions", {"model": "full", "prompt": "In", "max_tokens": value})
    assert caught.value.param == "max_tokens"


def test_choices_have_seeds_of_their_own(ask: Callable[..., Any]) -> None:
    question = ask("/v1/completions", {"model": "g", "prompt": ["a", "b"], "n": 2, "seed": 5})
    assert [(plain(each)["text"], each.parameters["seed"], each.wire.index) for each in question.requests] == [
        (["a"], 5, 0),
        (["a"], 6, 1),
        (["b"], 5, 2),
        (["b"], 6, 3),
    ]


ASKED = {"role": "user", "content": "U"}
PART = {"type": "input_text", "text": "U"}
CHATS: dict[str, Any] = {
    "/v1/chat/completions": {"messages": [{"role": "system", "content": "S"}, ASKED]},
    "/v1/messages": {"system": [{"type": "text", "text": "S"}], "messages": [ASKED], "max_tokens": 9},
    "/v1/responses": {"instructions": "S", "input": [{"role": "user", "content": [PART]}]},
}


@pytest.mark.parametrize("path", CHATS)
def test_three_ways_to_say_the_same(ask: Callable[..., Any], path: str) -> None:
    request = ask(path, {"model": "full", **CHATS[path]})
    assert plain(request)["prompt"] == ["S\nU"]
    assert request.wire.prompt_tokens == 3


def test_what_callers_say_is_no_template(ask: Callable[..., Any]) -> None:
    said = "{{ 7 * 7 }}{% for x in y %}"
    body = {"model": "full", "messages": [{"role": "user", "content": said}]}
    assert plain(ask("/v1/chat/completions", body))["prompt"] == [said]


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/openai/v1/rerank", "/rerank"])
def test_pairs_of_a_reranker(ask: Callable[..., Any], path: str) -> None:
    body = {"model": "r", "query": "q", "documents": ["a", {"text": "b"}], "texts": ["a", "b"]}
    assert plain(ask(path, body)) == {"q": ["q", "q"], "t": ["a", "b"]}


def test_an_embedding_model_is_asked_for_each_text_once(ask: Callable[..., Any]) -> None:
    request = ask("/v1/rerank", {"model": "e", "query": "a", "documents": ["b", "a", "b"]})
    assert plain(request) == {"text": ["a", "b"]}


# --------------------------------------------------------------------------------------------------------------- paths


@pytest.mark.parametrize(
    ("method", "target", "label"),
    [
        ("GET", "/openai/v1/models", "models"),
        ("GET", "/v1/models/", "models"),
        ("GET", "/openai/v1/models/a%2Fb", "metadata"),
        ("GET", "/v1/models/m", "metadata"),
        ("POST", "/openai/v1/chat/completions?api-version=1", "generate"),
        ("GET", "/v1/chat/completions", "unknown"),
        ("POST", "/openai/v1/nothing", "unknown"),
        ("POST", "/openai/v1/models/", "unknown"),
    ],
)
def test_addresses(method: str, target: str, label: str) -> None:
    assert DIALECT.match(method, target).endpoint.method == label


def test_without_short_paths_there_are_the_long_ones() -> None:
    dialect = KIND.make(OpenAiOptions(short_paths=False))
    long = {"messages", "messages/count_tokens", "models"}
    assert set(dialect.paths) == {f"/anthropic/v1/{name}" for name in long}
    assert dialect.match("POST", "/v1/embeddings").endpoint.method == "unknown"
    assert dialect.match("POST", "/openai/v1/embeddings").endpoint.method == "infer"


def test_one_model_that_is_not_there_is_told_in_the_form_of_its_address() -> None:
    for root, is_anthropic in (("/anthropic/v1", True), ("/openai/v1", False)):
        match = DIALECT.match("GET", f"{root}/models/nobody")
        call = Call(b"", "GET", f"{root}/models/nobody", {}, "http", match.args)
        error = json.loads(bytes(match.endpoint.encode_error(ModelNotFound("nobody"), call).body))
        assert (error.get("type") == "error") is is_anthropic


def test_models_in_anthropics_form(views: list[ModelView]) -> None:
    endpoint = DIALECT.match("GET", "/v1/models").endpoint
    for target, headers in (("/v1/models", {"anthropic-version": "2023-06-01"}), ("/anthropic/v1/models", {})):
        question = endpoint.decode(Call(b"", "GET", target, headers, "http"), resolver(*views))
        told = json.loads(bytes(endpoint.encode(views, question).body))
        assert told["data"][0] == told["data"][0] | {"type": "model", "id": "e", "display_name": "e"}
        assert (told["first_id"], told["last_id"], told["has_more"]) == ("e", "chat", False)
    plain = endpoint.decode(Call(b"", "GET", "/v1/models", {}, "http"), resolver(*views))
    assert json.loads(bytes(endpoint.encode(views, plain).body))["object"] == "list"
    none = json.loads(bytes(endpoint.encode([], question).body))
    assert (none["data"], none["first_id"]) == ([], None)
