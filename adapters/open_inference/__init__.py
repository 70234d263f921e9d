"""Open Inference V2 with Triton's extensions: what its clients send, and what they get to read.

`routes` says which address is which question, `request` turns bodies into canonical requests, by templates or by
`document`, `response` answers into bodies, `generate` does both for text generation, `errors` has the one table of
kinds; `classification` writes the best classes of an output, `shared_memory` has the calls that manage regions. For
gRPC, `proto_routes`, `proto_request` with `proto_message`, and `proto_response` do the same, `proto_control` for every
other question. `api` describes the addresses, `api_document` is where that is asked for. `header_forwarding` hands
headers on to models, as `options` say. `client`, `generate_client` and `proto_client` are the other side, `metrics` has
Triton's names for what the gateway counts. Source: the Open Inference Protocol; where it is silent, Triton.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tensorgate.adapters.importers.triton_repository import read_model
from tensorgate.adapters.open_inference.api import DESCRIPTION
from tensorgate.adapters.open_inference.client import V2HttpClient
from tensorgate.adapters.open_inference.header_forwarding import forwarding_endpoints, forwarding_match
from tensorgate.adapters.open_inference.metrics import TritonMetricsOptions, make_metrics
from tensorgate.adapters.open_inference.model_config import OpenInferenceModelOptions
from tensorgate.adapters.open_inference.model_override import translate
from tensorgate.adapters.open_inference.options import OpenInferenceOptions
from tensorgate.adapters.open_inference.proto_client import V2GrpcClient
from tensorgate.adapters.open_inference.proto_routes import GRPC_ENDPOINTS
from tensorgate.adapters.open_inference.raw import HEADER_LENGTH
from tensorgate.adapters.open_inference.request import MAX_JSON_DEPTH
from tensorgate.adapters.open_inference.routes import match
from tensorgate.adapters.open_inference.sample import sample, samples
from tensorgate.gateway.contract.dialect import Dialect, DialectKind, RepositoryFormat


def make(options: OpenInferenceOptions) -> Dialect:
    return Dialect(
        name="open_inference",
        title="Open Inference V2",
        prefix="/v2",
        match=forwarding_match(match, options.http_header_forward_pattern),
        sample=sample,
        grpc=forwarding_endpoints(GRPC_ENDPOINTS, options.grpc_header_forward_pattern),
        max_json_depth=MAX_JSON_DEPTH,
        binary_header=HEADER_LENGTH.lower(),
        samples=samples,
        api=DESCRIPTION,
    )


def _read_folder(folder: Path, configuration: str | None, name: str, say: Callable[[str], None]) -> Mapping[str, Any]:
    """A folder of Triton's."""
    reading = read_model(folder, configuration, name=name)
    for note in reading.notes:
        say(f"  {name}: {note}")
    return reading.entry


KIND = DialectKind(
    options=OpenInferenceOptions,
    make=make,
    model_options=OpenInferenceModelOptions,
    uploads=True,
    http_client=V2HttpClient,
    grpc_client=V2GrpcClient,
    metrics=make_metrics,
    metrics_options=TritonMetricsOptions,
    repository=RepositoryFormat(translate, _read_folder),
)
