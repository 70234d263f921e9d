"""OpenAI's requests for text and vectors, and those of the servers around it that speak no protocol of tensors:
Anthropic's messages, Cohere's and Jina's rerank, text-embeddings-inference's own addresses.

options.py     what the YAML may say of the dialect
routes.py      request line -> endpoint; the table of all of them
fields.py      the members of a JSON body, checked
text_role.py   what a model does with text: its tensors, its tokenizer, its limits
tokens.py      texts <-> tokens
template.py    messages -> prompt, by the model's chat template
generation.py  a text that grows answer by answer: stop words, the reason of its end, tokens
sampling.py    parameters of a generation -> inputs and parameters of a model
events.py      server-sent events
models.py      the list of models
embeddings.py  texts -> vectors
rerank.py      a query and texts -> scores; also score
completions.py prompt -> text, whole or as a stream
chat.py        messages -> message, whole or as a stream
responses.py   the same as OpenAI's responses
anthropic.py   the same as Anthropic's messages
tei.py         text-embeddings-inference's embed, rerank, predict
tokenize.py    tokenize and detokenize, as vLLM has them
errors.py      kind of failure -> status, type, code and words, in each vendor's form
sample.py      a request that calls a model
api.py         its addresses for OpenAPI
client.py      the other side: a server that speaks it
readdress.py   a call for such a server, by its own path and name
told.py        what such a server's whole answer says, as tensors
usage.py       the tokens of such a call, read as its answer passes
logprobs.py    how likely tokens were
packing.py     which texts of a call run together
"""

from tensorgate.adapters.openai.client import OpenAiClient
from tensorgate.adapters.openai.options import OpenAiOptions
from tensorgate.adapters.openai.routes import make
from tensorgate.gateway.contract.dialect import DialectKind

KIND = DialectKind(options=OpenAiOptions, make=make, http_client=OpenAiClient)

__all__ = ["KIND"]
