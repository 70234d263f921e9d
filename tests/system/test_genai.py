"""Language models by ONNX Runtime GenAI behind the gateway: every dialect reaches the same texts, many at once, and
what becomes of one caller or of the model's process is nobody else's affair.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from genai_models import words_after, write_model
from serving import DEMO, HOST, Gateway, below, running
from tokenizers import Tokenizer
from waiting import wait_until

WRITER = DEMO.parent / "demo/models/writer"
PROMPTS = ["In the", "God said let there be light", "a", "and the waters under the heaven", "b c d"]
STEADY = {"temperature": 0}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("genai")
    tokenizer, template = str(WRITER / "tokenizer.json"), str(WRITER / "chat_template.jinja")
    models: dict[str, Any] = {}
    for kind in ("paged", "plain"):
        text = {"kind": "chat", "tokenizer": tokenizer, "chat_template": template, "max_tokens": 256}
        path = str(write_model(folder / kind, kind))  # type: ignore[arg-type]
        models[kind] = {"backend": "genai", "path": path, "text": text}
    models["telling"] = models["plain"] | {"logprobs": True, "text": text | {"logprobs": "logprobs"}}
    models["digits"] = {"backend": "onnx", "path": str(WRITER.parent / "digits")}
    file = folder / "gateway.yaml"
    file.write_text(yaml.safe_dump({"listen": {"http": [{"bind": f"{HOST}:0"}]}, "models": models}))
    with running(file) as gateway:
        yield gateway


def expected(prompt: str, count: int) -> str:
    tokenizer = Tokenizer.from_file(str(WRITER / "tokenizer.json"))
    tokens = tokenizer.encode(prompt).ids
    text: str = tokenizer.decode([*tokens, *words_after(tokens, count)])
    return text.removeprefix(prompt)


def completed(gateway: Gateway, model: str, prompt: str, count: int) -> str:
    body = {"model": model, "prompt": prompt, "max_tokens": count, **STEADY}
    answer = gateway.post("/v1/completions", body)
    assert answer.status == 200, answer
    text: str = answer.json["choices"][0]["text"]
    return text


def running_now(gateway: Gateway, model: str) -> float:
    return gateway.metrics().total("tensorgate_running_requests", model=model)


BOTH = pytest.mark.parametrize("model", ["paged", "plain"])


@BOTH
def test_every_dialect_tells_the_same_words(gateway: Gateway, model: str) -> None:
    wanted = expected("In the", 12)
    assert completed(gateway, model, "In the", 12) == wanted
    answer = gateway.post(f"/v2/models/{model}/generate", {"text_input": "In the", "max_tokens": 12, **STEADY}).json
    assert (answer["text_output"], answer["finish_reason"], answer["completion_tokens"]) == (wanted, "length", 12)
    told = gateway.post(f"/v1/models/{model}:predict", {"inputs": {"text_input": ["In the"], "max_tokens": [12]}}).json
    assert told == {"outputs": [wanted]}
    told = gateway.post(f"/v1/models/{model}:predict", {"inputs": ["In the"]}).json
    assert told["outputs"][0].startswith(wanted)
    chat = [{"role": "user", "content": "In the"}]
    told = gateway.post("/v1/messages", {"model": model, "messages": chat, "max_tokens": 12, **STEADY}).json
    assert told["content"][0]["text"] == wanted
    assert told["usage"]["output_tokens"] == 12
    told = gateway.post("/v1/chat/completions", {"model": model, "messages": chat, "max_tokens": 12, **STEADY}).json
    assert told["choices"][0]["message"]["content"] == wanted
    assert told["usage"] == {"prompt_tokens": 2, "completion_tokens": 12, "total_tokens": 14}


@BOTH
def test_forty_callers_at_once_get_their_own(gateway: Gateway, model: str) -> None:
    asks = [(PROMPTS[number % len(PROMPTS)], 5 + number) for number in range(40)]
    with ThreadPoolExecutor(40) as pool:
        told = [*pool.map(lambda ask: completed(gateway, model, *ask), asks)]
    assert told == [expected(*ask) for ask in asks]


@BOTH
def test_a_stream_comes_piece_by_piece_and_ends_with_whoever_leaves(gateway: Gateway, model: str) -> None:
    connection = http.client.HTTPConnection(HOST, gateway.port, timeout=30)
    body = {"model": model, "prompt": "In the", "max_tokens": 200, "temperature": 2, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body))
    reply = connection.getresponse()
    assert reply.readline().startswith(b"data: ")
    reply.close()
    connection.close()
    wait_until(lambda: not running_now(gateway, model))
    assert completed(gateway, model, "In the", 5) == expected("In the", 5)


def test_what_the_model_refuses_is_told_in_the_callers_dialect(gateway: Gateway) -> None:
    answer = gateway.post("/v1/completions", {"model": "paged", "prompt": "a", "top_k": -7})
    assert answer.status == 400
    assert answer.json["error"]["message"] == ("Invalid value for 'top_k': expected at least -1, but got -7 instead.")
    answer = gateway.post("/v2/models/paged/generate", {"text_input": "a", "max_tokens": 1000})
    assert (answer.status, "context has room for 256" in answer.json["error"]) == (400, True)


def test_a_process_that_ends_takes_its_texts_along_and_stands_again(gateway: Gateway) -> None:
    connection = http.client.HTTPConnection(HOST, gateway.port, timeout=30)
    body = {
        "model": "paged",
        "prompt": "In the",
        "max_tokens": 250,
        "temperature": 2,
        "min_tokens": 250,
        "stream": True,
    }
    connection.request("POST", "/v1/completions", json.dumps(body))
    reply = connection.getresponse()
    reply.readline()
    for pid in below(gateway.process.pid):
        if Path(f"/proc/{pid}/maps").exists() and "genai" in Path(f"/proc/{pid}/maps").read_text():
            os.kill(pid, signal.SIGKILL)
    rest = reply.read()
    connection.close()
    assert b"[DONE]" in rest or b'"error"' in rest
    wait_until(
        lambda: gateway.post("/v1/completions", {"model": "paged", "prompt": "a", "max_tokens": 2}).status == 200
    )
    assert completed(gateway, "paged", "In the", 9) == expected("In the", 9)
    assert "Traceback" not in gateway.said_itself


def test_how_likely_tokens_are(gateway: Gateway) -> None:
    body = {"model": "telling", "prompt": "In the", "max_tokens": 5, **STEADY}
    told = gateway.post("/v1/completions", body | {"logprobs": 2}).json["choices"][0]
    assert told["text"] == expected("In the", 5)
    assert [len(each) for each in told["logprobs"].values()] == [5, 5, 5, 5]
    assert "".join(told["logprobs"]["tokens"]).strip() == told["text"].strip()
    assert gateway.post("/v1/completions", body).json["choices"][0] == told | {"logprobs": None}
    assert gateway.post("/v1/completions", body | {"model": "plain", "logprobs": 2}).status == 400
    predicted = gateway.post("/v1/models/telling:predict", {"inputs": {"text_input": ["In the"], "max_tokens": [5]}})
    assert predicted.json["outputs"]["logprobs"] == [""]
