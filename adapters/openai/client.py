"""OpenAI's protocol from the client's side, over HTTP: a server that speaks it, such as vLLM, SGLang, llama.cpp or
OpenAI itself. Its address ends where the paths begin that all of them have: http://host:8000/v1.

Calls in the same dialect are readdressed: the server's own path, and its name of the model in the body, of which
nothing else changes. Who speaks another dialect asks by tensors, where the model's `signature` says what for:

    embeddings                  text_input BYTES [-1] -> embedding FP32 [-1, -1]
    completions                 text_input BYTES [1], and what it samples by -> text_output BYTES [1], piece by piece
    chat/completions            the same, or messages BYTES [1], a JSON array -> text_output
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import orjson

from tensorgate.adapters.json.texts import array_of
from tensorgate.adapters.openai.events import EventCutter
from tensorgate.adapters.openai.readdress import readdressed
from tensorgate.adapters.openai.told import vector_of
from tensorgate.adapters.upstream import broken, failure, http_failure, json_object, whole
from tensorgate.gateway.contract.call import Buffer, Call, Reply
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse
from tensorgate.gateway.contract.errors import Code, EncodingFailed, InvalidArgument, code_of
from tensorgate.gateway.contract.questions import IndexEntry
from tensorgate.gateway.contract.tensor import BYTES, DTYPES, NOTHING, Array, ParameterValue, Tensors, TensorSpec
from tensorgate.gateway.contract.upstream import Ask, Client, Description, UpstreamModel

EMBEDDINGS: Final = "embeddings"
COMPLETIONS: Final = "completions"
CHAT: Final = "chat/completions"
SIGNATURES: Final = (EMBEDDINGS, COMPLETIONS, CHAT)
_JSON: Final = {"Content-Type": "application/json"}
_TEXT, _MESSAGES, _STREAM = "text_input", "messages", "stream"
_ANSWER: Final = "text_output"


def _optional(name: str, datatype: str, size: int = 1) -> TensorSpec:
    return TensorSpec(name, DTYPES[datatype], (size,), optional=True)


_SAMPLING: Final = (
    _optional("max_tokens", "INT64"),
    _optional("temperature", "FP32"),
    _optional("top_p", "FP32"),
    _optional("seed", "INT64"),
    _optional("stop", "BYTES", -1),
    _optional("frequency_penalty", "FP32"),
    _optional("presence_penalty", "FP32"),
)
_TEXT_OUT: Final = (TensorSpec(_ANSWER, BYTES, (1,)),)
_DESCRIPTIONS: Final[Mapping[str, Description]] = {
    EMBEDDINGS: Description((TensorSpec(_TEXT, BYTES, (-1,)),), (TensorSpec("embedding", DTYPES["FP32"], (-1, -1)),)),
    COMPLETIONS: Description(
        (TensorSpec(_TEXT, BYTES, (1,)), *_SAMPLING, _optional(_STREAM, "BOOL")), _TEXT_OUT, decoupled=True
    ),
    CHAT: Description(
        (
            _optional(_TEXT, "BYTES"),
            _optional(_MESSAGES, "BYTES"),
            *_SAMPLING,
            _optional(_STREAM, "BOOL"),
        ),
        _TEXT_OUT,
        decoupled=True,
    ),
}


class OpenAiClient(Client):
    """The `Client` of servers that speak OpenAI's protocol."""

    transport: Final = "http"
    streams: Final = "server"
    platform: Final = "openai"
    readdresses: Final = True

    def __init__(self, model: UpstreamModel) -> None:
        if model.signature and model.signature not in SIGNATURES:
            raise ValueError(f"upstream.signature: {model.signature!r} is none of {', '.join(SIGNATURES)}")
        self._model = model.name
        self._signature = model.signature

    def probe(self) -> Ask:
        return Ask("/models", method="GET")

    def is_ready(self, reply: Reply) -> bool:
        """A server that lists its models has to list this one; one that has no such list is taken as it is."""
        if reply.http_status in (404, 405, 501):
            return True
        if reply.http_status != 200:
            return False
        names = _names(reply)
        return names is None or self._model in names

    def listings(self, *, ready_only: bool) -> Sequence[Ask]:
        return (self.probe(),)

    def listed(self, reply: Reply) -> tuple[IndexEntry, ...] | None:
        if reply.http_status != 200:
            if code_of(reply.http_status) in (Code.NOT_FOUND, Code.UNIMPLEMENTED):
                return None
            raise http_failure(reply, error_text(reply))
        names = _names(reply)
        if names is None:
            raise broken("list of models")
        return tuple(IndexEntry(name, None, "READY") for name in names)

    def questions(self) -> Sequence[Ask]:
        return (self.probe(),) if self._signature else ()

    def description(self, replies: Sequence[Reply]) -> Description:
        """The signature says it; the server is asked whether it is there."""
        for reply in replies:
            if reply.http_status >= 500:
                raise http_failure(reply, error_text(reply))
        return _DESCRIPTIONS[self._signature]

    def passes_on(self, call: Call) -> bool:
        """What all such servers have; Anthropic's messages where they could not be translated; nothing of
        text-embeddings-inference's.
        """
        path = call.raw_target.partition("?")[0]
        if "/messages" in path:
            return not self._signature
        return "/v1/" in path

    def readdressed(self, call: Call) -> tuple[str, Sequence[Buffer]] | None:
        return readdressed(call, self._model)

    # --------------------------------------------------------------------------------------------------------- tensors

    def encode(
        self, tensors: Tensors, outputs: Sequence[str], request: InferRequest, description: Description, *, stream: bool
    ) -> Ask:
        """Texts, and whatever else has a name of OpenAI's."""
        kind = self._signature or (CHAT if _is_text(description) else EMBEDDINGS)
        if kind == EMBEDDINGS:
            texts = [text for array in tensors.values() for text in _texts(array)]
            body: dict[str, Any] = {"model": self._model, "input": texts, "encoding_format": "base64"}
            return Ask(f"/{kind}", (orjson.dumps(body),), headers=_JSON)
        body = {"model": self._model, **_sampled(request.parameters, tensors)}
        if kind == CHAT:
            body[_MESSAGES] = _messages(tensors)
        elif _TEXT in tensors:
            (body["prompt"],) = _texts(tensors[_TEXT])
        if not stream or body.pop(_STREAM, True) is False:
            return Ask(f"/{kind}", (orjson.dumps(body),), headers=_JSON)
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        return Ask(f"/{kind}", (orjson.dumps(body),), headers=_JSON, cut=EventCutter)

    def decode(self, reply: Reply, description: Description) -> InferResponse:
        answer = _answer(reply)
        name = description.outputs[0].name
        try:
            if "choices" in answer:
                return _generated(name, answer, is_final=True)
            data = sorted(answer["data"], key=lambda each: int(each.get("index", 0)))
            return InferResponse({name: np.stack([vector_of(each["embedding"]) for each in data])})
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            raise broken("list of embeddings or choices") from None

    def decode_part(self, reply: Reply, description: Description) -> InferResponse:
        """A chunk; one without a choice ends, or tells of usage."""
        name = description.outputs[0].name
        body = bytes(whole(reply))
        if reply.http_status != 200 or not body.startswith(b"data:"):
            return self.decode(reply, description)
        data = body.removeprefix(b"data:").strip()
        if data == b"[DONE]":
            return InferResponse({}, final=True)
        answer = json_object(data, "chunk")
        if "error" in answer:
            raise failure(Code.INTERNAL, _text_of_error(answer["error"]))
        try:
            return _generated(name, answer, is_final=False)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            raise broken("chunk") from None


# ------------------------------------------------------------------------------------------------------------- answers


def _generated(name: str, answer: Mapping[str, Any], *, is_final: bool) -> InferResponse:
    """What the first choice says, and what is known of it: an answer of tensors has one."""
    said: dict[str, ParameterValue] = {}
    used = answer.get("usage")
    if isinstance(used, dict):
        said = {key: used[key] for key in ("prompt_tokens", "completion_tokens") if type(used.get(key)) is int}
    choices = answer.get("choices") or []
    if not choices:
        outputs: Tensors = {name: array_of([b""])} if said else NOTHING
        return InferResponse(outputs, said, final=is_final)
    choice = choices[0]
    reason = choice.get("finish_reason")
    if isinstance(reason, str):
        said["finish_reason"] = reason
    told = choice.get("delta") or choice.get("message")
    text = choice.get("text") if told is None else told.get("content")
    if not text and not said:
        return InferResponse(NOTHING, final=is_final)
    return InferResponse({name: array_of([(text or "").encode()])}, said, final=is_final)


def _answer(reply: Reply) -> dict[str, Any]:
    if reply.grpc_code:
        raise failure(reply.grpc_code, reply.message)
    if reply.http_status != 200:
        raise http_failure(reply, error_text(reply))
    return json_object(whole(reply), "object of OpenAI's")


def error_text(reply: Reply) -> str:
    """What an error says: `error.message`, as OpenAI has it, or `error`, `message` or `detail`, as others do."""
    try:
        said = orjson.loads(whole(reply))
    except ValueError:
        return ""
    if not isinstance(said, dict):
        return ""
    return _text_of_error(said.get("error") or said.get("message") or said.get("detail"))


def _text_of_error(said: Any) -> str:
    text = said.get("message") if isinstance(said, dict) else said
    return text[:4096] if isinstance(text, str) else ""


def _names(reply: Reply) -> list[str] | None:
    try:
        data = orjson.loads(whole(reply))["data"]
        return [each["id"] for each in data if isinstance(each["id"], str)]
    except (ValueError, KeyError, TypeError):
        return None


# ----------------------------------------------------------------------------------------------------------- questions


def _is_text(description: Description) -> bool:
    return bool(description.outputs) and description.outputs[0].dtype == BYTES


def _texts(array: Array) -> list[str]:
    try:
        return [text.decode() for text in array.reshape(-1).tolist()]
    except (UnicodeDecodeError, AttributeError):
        raise EncodingFailed("OpenAI's protocol carries texts in UTF-8") from None


def _messages(tensors: Tensors) -> list[Any]:
    """The messages, or a prompt as the only one of them. Raises InvalidArgument."""
    if _MESSAGES in tensors:
        try:
            messages = orjson.loads(_texts(tensors[_MESSAGES])[0])
        except (ValueError, IndexError):
            raise InvalidArgument(f"input '{_MESSAGES}' is no JSON") from None
        if not isinstance(messages, list):
            raise InvalidArgument(f"input '{_MESSAGES}' is no JSON array")
        return messages
    if _TEXT not in tensors:
        raise InvalidArgument(f"one of the inputs '{_TEXT}' and '{_MESSAGES}' is needed")
    return [{"role": "user", "content": text} for text in _texts(tensors[_TEXT])]


def _sampled(parameters: Mapping[str, ParameterValue], tensors: Tensors) -> dict[str, Any]:
    """Parameters by their names, and inputs that stand for some."""
    found: dict[str, Any] = dict(parameters)
    for name, array in tensors.items():
        if name in (_TEXT, _MESSAGES):
            continue
        values = _texts(array) if array.dtype == BYTES else array.reshape(-1).tolist()
        if array.dtype.kind == "f":  # 0.7, and not the digits of the nearest FP64
            values = [float(str(value)) for value in array.reshape(-1)]
        found[name] = values if array.dtype == BYTES else values[0]
    return found
