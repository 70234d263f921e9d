"""TensorFlow Serving, REST v1: `POST /v1/models/m:predict`, status and metadata.

    options.py           what the YAML may say
    routes.py            which endpoint a request line names, by the grammar of the original's own patterns
    request_body.py      gunzipped, parsed body -> its top-level object
    json_depth.py        documents that nest too deep for a parser, cut down to what counts
    json_document.py     bytes -> values, where the original's parser has its own mind
    predict_request.py   instances or inputs -> InferRequest
    tensors.py           JSON values -> arrays of the signature's dtypes, each objection in the contract's words
    predict_response.py  InferResponse -> predictions or outputs, laid out as the original lays them out
    number_text.py       the text of every number in an array
    float_digits.py      the same for many float32 at once
    json_text.py         strings of JSON, and the rendering of a request's values in error texts
    metadata.py          status of versions, description of signatures
    signature_def.py     a signature as TensorFlow describes it, for both transports
    model_ref.py         the model that an address names
    errors.py            every kind of failure: HTTP status, gRPC code, text
    example.py           a shell line that calls a model

The contract has quirks (text after the document is ignored, an INT8 of 300 is 44, a query string belongs to the model's
name); they are kept where a client can meet them, and each is told beside its line.

Where it deviates on purpose: tensors have 64 dimensions at most (NumPy's limit, the original's is 254), and bodies
larger than 8 MiB nest 1000 levels deep at most.
"""

from adapters.tf_serving.example import example
from adapters.tf_serving.options import TfServingOptions
from adapters.tf_serving.routes import match, match_cross_origin
from gateway.ports import Dialect, DialectKind


def _make(options: TfServingOptions) -> Dialect:
    return Dialect(
        "tf_serving",
        "TensorFlow Serving",
        "/v1",
        match_cross_origin if options.cors else match,
        example,
        max_json_depth=1000,
        http_timeout_ms=options.timeout_ms,
    )


KIND = DialectKind(options=TfServingOptions, make=_make)
