"""TensorFlow Serving: `POST /v1/models/m:predict`, status and metadata, and the same over gRPC.

    routes.py            which endpoint a request line names, by the grammar of the original's own patterns
    request_body.py      gunzipped, parsed body -> its top-level object
    predict_request.py   instances or inputs -> InferRequest
    tensors.py           JSON values -> arrays of the signature's dtypes, each objection in the contract's words
    predict_response.py  InferResponse -> predictions or outputs, laid out as the original lays them out
    number_text.py       the text of every number in an array
    float_digits.py      the same for many float32 at once
    json_text.py         strings of JSON, and the rendering of a request's values in error texts
    metadata.py          status of versions, description of signatures
    model_ref.py         the model that an address names
    errors.py            every kind of failure: HTTP status, gRPC code, text
    proto_routes.py      which gRPC method is which question
    proto_spec.py        the model that a message names
    proto_control.py     questions about models over gRPC
    proto_reload.py      another list of models in place of those that are served
    proto_errors.py      every kind of failure as a gRPC status
    example.py           a shell line that calls a model

The contract has quirks (text after the document is ignored, an INT8 of 300 is 44, a query string belongs to the model's
name); they are kept where a client can meet them, and each is told beside its line.

Where it deviates on purpose: bodies nest 1000 levels deep at most, tensors have 64 dimensions at most (NumPy's limit,
the original's is 254), and strings that are not UTF-8 are refused.
"""

from typing import Any

from adapters.tf_serving.example import example
from adapters.tf_serving.proto_routes import GRPC_ENDPOINTS
from adapters.tf_serving.routes import match
from gateway.ports import Dialect, DialectKind, Options


def _make(options: Any) -> Dialect:
    return Dialect("tf_serving", "TensorFlow Serving", "/v1", match, example, GRPC_ENDPOINTS, max_json_depth=1000)


KIND = DialectKind(options=Options, make=_make)
