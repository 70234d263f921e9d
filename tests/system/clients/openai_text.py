"""The packages `openai`, `anthropic` and `cohere`, as their documentation shows them: completions and chats of the
demo's writer, vectors and ranks of models that are as simple.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any

import anthropic
import checks
import cohere
import openai
import requests

PROMPT = "In the beginning"
WRITES = " of the month, even the word of the LORD"
"""What the writer goes on with, piece by piece, at temperature 0."""
FIRST_SIX = " of the month, even the"
STEADY = {"temperature": 0}
CHAT: Any = [{"role": "user", "content": PROMPT}]


def client(address: str, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://{address}/openai/v1", api_key="any", max_retries=0, **options)


def short(address: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://{address}/v1", api_key="any", max_retries=0)


def claude(address: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=f"http://{address}/anthropic", api_key="any", max_retries=0)


def check_models(address: str) -> None:
    names = {model.id for model in client(address).models.list()}
    assert {"writer", "letters", "overlap"} <= names
    assert "digits" not in names
    assert {model.id for model in short(address).models.list()} == names
    assert client(address).models.retrieve("writer").owned_by == "tensorgate"
    error = checks.raised(openai.NotFoundError, lambda: client(address).models.retrieve("nobody"))
    assert error.code == "model_not_found"


def check_completions(address: str) -> None:
    for each in (client(address), short(address)):
        told = each.completions.create(model="writer", prompt=PROMPT, max_tokens=6, temperature=0)
        assert told.choices[0].text == FIRST_SIX
        assert told.choices[0].finish_reason == "length"
        assert told.object == "text_completion"
        assert told.usage is not None
        assert (told.usage.prompt_tokens, told.usage.completion_tokens, told.usage.total_tokens) == (6, 6, 12)


def check_completions_stream(address: str) -> None:
    chunks = list(
        client(address).completions.create(
            model="writer",
            prompt=PROMPT,
            max_tokens=6,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert [chunk.choices[0].text for chunk in chunks if chunk.choices][:2] == [" of", " the"]
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == FIRST_SIX
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-2:] == [None, "length"]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 12
    assert len({chunk.id for chunk in chunks}) == 1


def check_stop_words_that_come_in_pieces(address: str) -> None:
    told = client(address).completions.create(
        model="writer", prompt=PROMPT, max_tokens=60, temperature=0, stop=["th, even", "of the LORD"]
    )
    assert told.choices[0].text == " of the mon"
    assert told.choices[0].finish_reason == "stop"
    chunks = list(
        client(address).completions.create(
            model="writer", prompt=PROMPT, max_tokens=60, temperature=0, stop="the LORD", stream=True
        )
    )
    assert "".join(chunk.choices[0].text for chunk in chunks) == " of the month, even the word of "
    assert chunks[-1].choices[0].finish_reason == "stop"


def check_choices_and_several_prompts(address: str) -> None:
    told = client(address).completions.create(
        model="writer", prompt=[PROMPT, "And God said"], n=2, max_tokens=8, seed=5, echo=True
    )
    assert [choice.index for choice in told.choices] == [0, 1, 2, 3]
    assert all(choice.text.startswith(PROMPT) for choice in told.choices[:2])
    assert all(choice.text.startswith("And God said") for choice in told.choices[2:])
    assert told.choices[0].text != told.choices[1].text
    again = client(address).completions.create(
        model="writer", prompt=[PROMPT, "And God said"], n=2, max_tokens=8, seed=5, echo=True, stream=True
    )
    texts = {0: "", 1: "", 2: "", 3: ""}
    for chunk in again:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert [*texts.values()] == [choice.text for choice in told.choices]


def check_chat(address: str) -> None:
    told = client(address).chat.completions.create(model="writer", messages=CHAT, max_tokens=6, temperature=0)
    assert told.choices[0].message.content == FIRST_SIX
    assert told.choices[0].message.role == "assistant"
    parts: Any = [{"role": "user", "content": [{"type": "text", "text": PROMPT}]}]
    newer = client(address).chat.completions.create(
        model="writer", messages=parts, max_completion_tokens=6, temperature=0
    )
    assert newer.choices[0].message.content == FIRST_SIX
    several = client(address).chat.completions.create(model="writer", messages=CHAT, max_tokens=6, n=3, seed=1)
    assert len({choice.message.content for choice in several.choices}) > 1


def check_chat_stream(address: str) -> None:
    with client(address).chat.completions.create(
        model="writer", messages=CHAT, max_tokens=6, temperature=0, stream=True
    ) as stream:
        chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == FIRST_SIX
    assert chunks[-1].choices[0].finish_reason == "length"
    with client(address).chat.completions.stream(
        model="writer", messages=CHAT, max_completion_tokens=60, temperature=0, stop="of the LORD"
    ) as events:
        whole = "".join(event.delta for event in events if event.type == "content.delta")
        message = events.get_final_completion().choices[0].message
    assert whole == message.content == " of the month, even the word "


def check_chat_from_asyncio(address: str) -> None:
    async def talk() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"http://{address}/openai/v1", api_key="any", max_retries=0) as each:

            async def one() -> str:
                stream = await each.chat.completions.create(
                    model="writer", messages=CHAT, max_tokens=6, temperature=0, stream=True
                )
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            return await asyncio.gather(*[one() for _ in range(8)])

    assert set(asyncio.run(talk())) == {FIRST_SIX}


def check_leaving_a_stream(address: str) -> None:
    """Whoever leaves has his place free again at once."""
    for _ in range(6):
        stream = client(address).completions.create(
            model="writer", prompt=PROMPT, max_tokens=1000, temperature=0, stream=True
        )
        next(iter(stream))
        stream.close()
    told = client(address, timeout=20).completions.create(model="writer", prompt=PROMPT, max_tokens=6, temperature=0)
    assert told.choices[0].text == FIRST_SIX


def check_responses(address: str) -> None:
    told = client(address).responses.create(model="writer", input=PROMPT, max_output_tokens=16, temperature=0)
    assert told.output_text.startswith(WRITES)
    assert told.status == "incomplete"
    assert told.usage is not None
    assert told.usage.output_tokens == 16
    with client(address).responses.stream(model="writer", input=CHAT, max_output_tokens=16, temperature=0) as stream:
        events = list(stream)
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    last: Any = events[-1]
    assert last.type == "response.incomplete"  # the writer writes until it is stopped
    assert len(deltas) == 16
    assert "".join(deltas) == last.response.output_text == told.output_text
    assert next(event.sequence_number for event in events if hasattr(event, "sequence_number")) == 0


def check_embeddings(address: str) -> None:
    """The package asks for base64 by itself."""
    told = client(address).embeddings.create(model="letters", input=["abba", "cab"])
    assert [each.embedding for each in told.data] == [[2, 2, 0], [1, 1, 1]]
    plain = client(address).embeddings.create(model="letters", input="abc", encoding_format="float")
    assert plain.data[0].embedding == [1, 1, 1]
    many = client(address).embeddings.create(model="letters", input=["a" * (1 + index % 7) for index in range(100)])
    assert [each.embedding[0] for each in many.data] == [1 + index % 7 for index in range(100)]
    cut = client(address).embeddings.create(model="letters", input="abbbb", dimensions=2)
    assert math.isclose(sum(number * number for number in cut.data[0].embedding), 1, rel_tol=1e-6)
    assert math.isclose(cut.data[0].embedding[1], 4 / math.sqrt(17), rel_tol=1e-6)


def check_texts_run_together_by_their_tokens(address: str) -> None:
    """The model takes 40 tokens of a text, and 64 at once."""
    texts = ["ab" * (1 + index * 7 % 19) + "c" for index in range(50)]
    told = client(address).embeddings.create(model="packed", input=texts)
    assert [each.embedding for each in told.data] == [[text.count("a"), text.count("b"), 1] for text in texts]
    assert told.usage.prompt_tokens > 50 * 10
    texts = ["a b c d e f g h i j k l"] * 6  # of 13 tokens each
    for some, status in ((texts, 400), (texts[:4], 200)):
        tensor = {"name": "text", "datatype": "BYTES", "shape": [len(some)], "data": some}
        reply = requests.post(f"http://{address}/v2/models/packed/infer", json={"inputs": [tensor]}, timeout=10)
        assert reply.status_code == status
        assert ("at once: send fewer in a request" in reply.text) == (status == 400)
    metrics = requests.get(f"http://{address}/metrics", timeout=10).text
    assert 'tensorgate_queued_tokens{model="packed",version="1"} 0' in metrics


def check_a_search_over_verses(address: str) -> None:
    """As README and docs/text.md show it."""
    verses = (checks.IMAGES.parent / "verses.txt").read_text().splitlines()
    rows = [each.embedding for each in client(address).embeddings.create(model="embedder", input=verses).data]
    for asked, wanted in {
        "love your enemies": "Love your enemies, bless them that curse you",
        "the shepherd and his sheep": "The LORD is my shepherd",
        "light in the darkness": "divided the light from the darkness",
    }.items():
        (told,) = client(address).embeddings.create(model="embedder", input=asked).data
        scores = [sum(one * other for one, other in zip(row, told.embedding, strict=True)) for row in rows]
        assert wanted in verses[scores.index(max(scores))]


def check_embeddings_of_tokens(address: str) -> None:
    """Tokens are the model's own; usage is counted by its tokenizer."""
    tokens = requests.post(
        f"http://{address}/openai/v1/tokenize", json={"model": "tokens", "prompt": "In the beginning"}, timeout=10
    ).json()
    assert tokens["count"] == len(tokens["tokens"]) == 6
    told = client(address).embeddings.create(model="tokens", input=tokens["tokens"])
    same = client(address).embeddings.create(model="tokens", input="In the beginning")
    assert told.data == same.data
    assert (told.usage.prompt_tokens, same.usage.total_tokens) == (6, 6)
    both = client(address).embeddings.create(model="tokens", input=[tokens["tokens"], tokens["tokens"][:2]])
    assert len(both.data) == 2
    long = checks.raised(
        openai.BadRequestError, lambda: client(address).embeddings.create(model="tokens", input="the " * 100)
    )
    assert long.code == "context_length_exceeded"


def check_errors(address: str) -> None:
    asked = client(address)
    error: Any = checks.raised(
        openai.NotFoundError, lambda: asked.chat.completions.create(model="nobody", messages=CHAT)
    )
    assert (error.code, error.param, error.type) == ("model_not_found", "model", "invalid_request_error")
    error = checks.raised(openai.BadRequestError, lambda: asked.completions.create(model="letters", prompt="a"))
    assert (error.code, error.param) == ("unsupported_model", "model")
    error = checks.raised(
        openai.BadRequestError, lambda: asked.completions.create(model="writer", prompt=PROMPT, temperature=3)
    )
    assert (error.param, error.code) == ("temperature", "invalid_value")
    error = checks.raised(
        openai.BadRequestError,
        lambda: asked.chat.completions.create(model="writer", messages=CHAT, response_format={"type": "json_object"}),
    )
    assert (error.param, error.code) == ("response_format", "unsupported_parameter")
    picture: Any = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://a/b.png"}}]}]
    error = checks.raised(
        openai.BadRequestError, lambda: asked.chat.completions.create(model="writer", messages=picture)
    )
    assert error.param == "messages[0].content[0]"
    error = checks.raised(openai.BadRequestError, lambda: asked.completions.create(model="writer", prompt="ß∂ƒ"))
    assert "the writer knows white space" in error.message
    error = checks.raised(
        openai.BadRequestError,
        lambda: list(asked.completions.create(model="writer", prompt="ß∂ƒ", stream=True)),
    )
    assert "the writer knows white space" in error.message


def check_an_error_in_the_middle_of_a_stream(address: str) -> None:
    """What was told before stays told, and the package raises what comes then."""
    stream = client(address).completions.create(model="breaks", prompt="abc", stream=True)
    told: list[str] = []

    def listen() -> None:
        told.extend(chunk.choices[0].text for chunk in stream)

    error = checks.raised(openai.APIError, listen)
    assert "".join(told) == "abc"
    assert "the pen broke" in error.message


def check_anthropic(address: str) -> None:
    told = claude(address).messages.create(model="writer", max_tokens=6, messages=CHAT, extra_body=STEADY)
    assert told.content[0].type == "text"
    assert told.content[0].text == FIRST_SIX
    assert (told.stop_reason, told.usage.input_tokens, told.usage.output_tokens) == ("max_tokens", 6, 6)
    stopped = claude(address).messages.create(
        model="writer", max_tokens=60, messages=CHAT, extra_body=STEADY, stop_sequences=["month"]
    )
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "month")
    counted = claude(address).messages.count_tokens(model="writer", messages=CHAT)
    assert counted.input_tokens == 6


def check_anthropic_stream(address: str) -> None:
    with claude(address).messages.stream(model="writer", max_tokens=6, messages=CHAT, extra_body=STEADY) as stream:
        assert "".join(stream.text_stream) == FIRST_SIX
        message = stream.get_final_message()
    assert message.stop_reason == "max_tokens"
    assert message.usage.output_tokens == 6
    short_path = anthropic.Anthropic(base_url=f"http://{address}", api_key="any", max_retries=0)
    assert short_path.messages.create(model="writer", max_tokens=6, messages=CHAT).content


def check_anthropic_errors(address: str) -> None:
    error: Any = checks.raised(
        anthropic.NotFoundError,
        lambda: claude(address).messages.create(model="nobody", max_tokens=6, messages=CHAT),
    )
    assert error.body["error"]["type"] == "not_found_error"
    error = checks.raised(
        anthropic.BadRequestError,
        lambda: claude(address).messages.create(model="letters", max_tokens=6, messages=CHAT),
    )
    assert error.body["error"]["type"] == "invalid_request_error"


def check_cohere_rerank(address: str) -> None:
    texts = ["the sea", "a red house", "the red sea parted", "green"]
    for model in ("overlap", "letters"):
        newer = cohere.ClientV2(base_url=f"http://{address}", api_key="any").rerank(
            model=model, query="red sea", documents=texts, top_n=2
        )
        assert len(newer.results) == 2
        assert newer.results[0].relevance_score >= newer.results[1].relevance_score
    found = cohere.ClientV2(base_url=f"http://{address}", api_key="any").rerank(
        model="overlap", query="red sea", documents=texts
    )
    assert [result.index for result in found.results] == [2, 0, 1, 3]
    older = cohere.Client(base_url=f"http://{address}", api_key="any").rerank(
        model="overlap", query="red sea", documents=texts, top_n=1, return_documents=True
    )
    assert older.results[0].document is not None
    assert older.results[0].document.text == "the red sea parted"


def check_scores_and_plain_servers(address: str) -> None:
    """vLLM's score, and what text-embeddings-inference has at paths of its own."""

    def post(path: str, body: Any) -> Any:
        answer = requests.post(f"http://{address}{path}", json=body, timeout=10)
        return answer.status_code, answer.json()

    status, told = post("/score", {"model": "letters", "text_1": "ab", "text_2": ["aabb", "c"]})
    assert status == 200
    assert [round(each["score"], 6) for each in told["data"]] == [1, 0]
    assert post("/embed", {"inputs": ["abb", "c"], "normalize": False}) == (200, [[1, 2, 0], [0, 0, 1]])
    status, told = post("/embed", {"inputs": "ab"})
    assert [round(number, 4) for number in told[0]] == [0.7071, 0.7071, 0]
    assert post("/rerank", {"query": "red sea", "texts": ["green", "the sea"], "return_text": True}) == (
        200,
        [{"index": 1, "score": 0.5, "text": "the sea"}, {"index": 0, "score": 0, "text": "green"}],
    )
    status, told = post("/predict", {"inputs": ["aab", "c"]})
    assert (status, [each[0]["label"] for each in told]) == (200, ["LABEL_0", "LABEL_2"])
    status, told = post("/embed", {"inputs": []})
    assert (status, told["error_type"]) == (422, "Validation")


if __name__ == "__main__":
    checks.main(globals())
