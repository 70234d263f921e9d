"""Frameworks that speak OpenAI's protocol by packages of their own: LangChain, LlamaIndex, LiteLLM; and Gradio's page
for chats.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any

import checks
import gradio
import litellm
from gradio_client import Client
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from llama_index.embeddings.openai_like import OpenAILikeEmbedding

PROMPT = "In the beginning"
FIRST_SIX = " of the month, even the"
KEY: Any = "any"
CHAT: Any = [{"role": "user", "content": PROMPT}]


def base(address: str) -> str:
    return f"http://{address}/openai/v1"


def chat(address: str, **more: Any) -> ChatOpenAI:
    return ChatOpenAI(model="writer", base_url=base(address), api_key=KEY, temperature=0, max_tokens=6, **more)


def check_langchain_chats(address: str) -> None:
    told = chat(address).invoke([HumanMessage(PROMPT)])
    assert told.content == FIRST_SIX
    assert told.usage_metadata == told.usage_metadata | {"input_tokens": 6, "output_tokens": 6, "total_tokens": 12}
    assert told.response_metadata["finish_reason"] == "length"
    assert chat(address).invoke([SystemMessage("In the"), HumanMessage("beginning")]).content
    assert [each.content for each in chat(address).batch([PROMPT, PROMPT])] == [FIRST_SIX] * 2


def check_langchain_streams(address: str) -> None:
    pieces = [each.content for each in chat(address, stream_usage=True).stream(PROMPT)]
    assert "".join(pieces) == FIRST_SIX
    assert len([piece for piece in pieces if piece]) == 6

    async def later() -> str:
        return "".join([str(each.content) async for each in chat(address).astream(PROMPT)])

    assert asyncio.run(later()) == FIRST_SIX


def check_langchain_completions(address: str) -> None:
    model = OpenAI(model="writer", base_url=base(address), api_key=KEY, temperature=0, max_tokens=6)
    assert model.invoke(PROMPT) == FIRST_SIX
    assert "".join(model.stream(PROMPT)) == FIRST_SIX


def check_langchain_by_responses(address: str) -> None:
    """It asks for responses in place of chats where it is told to."""
    model = ChatOpenAI(
        model="writer", base_url=base(address), api_key=KEY, temperature=0, max_tokens=16, use_responses_api=True
    )
    told: Any = model.invoke(PROMPT).content
    assert told[0]["text"].startswith(FIRST_SIX)


def check_langchain_embeddings(address: str) -> None:
    """Told not to make tokens of its own, which are those of OpenAI's models and no other's."""
    model = OpenAIEmbeddings(model="letters", base_url=base(address), api_key=KEY, check_embedding_ctx_length=False)
    assert model.embed_documents(["abba", "cab"]) == [[2, 2, 0], [1, 1, 1]]
    assert model.embed_query("c") == [0, 0, 1]


def check_llama_index_embeddings(address: str) -> None:
    model = OpenAILikeEmbedding(model_name="letters", api_base=base(address), api_key=KEY, embed_batch_size=10)
    assert model.get_text_embedding("abba") == [2, 2, 0]
    assert model.get_text_embedding_batch(["a"] * 25 + ["c"])[-1] == [0, 0, 1]
    assert asyncio.run(model.aget_query_embedding("b")) == [0, 1, 0]


def check_litellm_chats(address: str) -> None:
    asked: Any = {"messages": CHAT, "api_key": KEY, "temperature": 0, "max_tokens": 6}
    told: Any = litellm.completion("openai/writer", api_base=base(address), **asked)
    assert told.choices[0].message.content == FIRST_SIX
    pieces = [
        each.choices[0].delta.content or ""
        for each in litellm.completion("openai/writer", api_base=base(address), stream=True, **asked)
    ]
    assert "".join(pieces) == FIRST_SIX
    del asked["messages"]
    text: Any = litellm.text_completion(PROMPT, "text-completion-openai/writer", api_base=base(address), **asked)
    assert text.choices[0].text == FIRST_SIX


def check_litellm_as_anthropics(address: str) -> None:
    asked: Any = {"messages": CHAT, "api_key": KEY, "temperature": 0, "max_tokens": 6}
    told: Any = litellm.completion("anthropic/writer", api_base=f"http://{address}/anthropic", **asked)
    assert told.choices[0].message.content == FIRST_SIX
    assert told.choices[0].finish_reason == "length"
    pieces = [
        each.choices[0].delta.content or ""
        for each in litellm.completion("anthropic/writer", api_base=f"http://{address}/anthropic", stream=True, **asked)
    ]
    assert "".join(pieces) == FIRST_SIX


def check_litellm_vectors(address: str) -> None:
    told: Any = litellm.embedding(
        "openai/letters", ["abba", "c"], api_base=base(address), api_key=KEY, encoding_format="float"
    )
    assert [each["embedding"] for each in told.data] == [[2, 2, 0], [0, 0, 1]]
    ranked: Any = litellm.rerank(
        "cohere/overlap", "red sea", ["green", "the sea"], api_base=f"http://{address}/v2/rerank", api_key=KEY
    )
    assert [each["index"] for each in ranked.results] == [1, 0]
    assert math.isclose(ranked.results[0]["relevance_score"], 0.5)


def check_litellm_errors(address: str) -> None:
    error = checks.raised(
        litellm.NotFoundError,
        lambda: litellm.completion("openai/nobody", messages=CHAT, api_base=base(address), api_key=KEY),
    )
    assert "does not exist" in str(error)


def check_a_page_for_chats(address: str) -> None:
    """Pointed at the gateway by its address alone; a person's words go by the page's own server."""
    page = gradio.load_chat(f"{base(address)}/", model="writer", token=KEY, streaming=True)
    _, url, _ = page.launch(prevent_thread_lock=True, quiet=True, server_name="127.0.0.1")
    try:
        said = Client(url, verbose=False).submit({"text": PROMPT, "files": []}, api_name="/open_api_stream")
        told: Any = said.result(timeout=60)
        assert len(told) > len(FIRST_SIX)
        assert len(said.outputs()) > 30, "the page shows it as it comes"
    finally:
        page.close()


if __name__ == "__main__":
    checks.main(globals())
