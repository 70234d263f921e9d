"""TensorFlow Serving: predict, classify, regress, status and metadata, in JSON and over gRPC.

    options.py           what the YAML may say
    routes.py            which endpoint a request line names, by the grammar of the original's own patterns
    request_body.py      gunzipped, parsed body -> its top-level object
    json_document.py     bytes -> values, where the original's parser has its own mind, however deep they nest
    predict_request.py   instances or inputs -> InferRequest
    tensors.py           JSON values -> arrays of the signature's dtypes, each objection in the contract's words
    predict_response.py  InferResponse -> predictions or outputs, laid out as the original lays them out
    json_text.py         text of strings and numbers, and of a request's values in errors
    metadata.py          status of versions, description of signatures
    signature_def.py     a signature as TensorFlow describes it, for both transports
    errors.py            every kind of failure: HTTP status, gRPC code, text
    proto_routes.py      which gRPC method is which question
    model_spec.py        the model and the signature that an address or a message names
    proto_request.py     PredictRequest -> InferRequest
    proto_tensors.py     TensorProto <-> arrays
    proto_wire.py        the data of large messages, as views of them
    data_types.py        dtypes by number, name and field
    proto_response.py    InferResponse -> PredictResponse
    classify_regress.py  which signatures classify and regress, and what their outputs mean
    classify_json.py     :classify and :regress             classify_proto.py    Classify, Regress, MultiInference
    example_tensors.py   tf.Examples -> the model's inputs, by TensorFlow's rules
    example_json.py      Examples in JSON                   example_proto.py     Examples as messages
    proto_control.py     questions about models over gRPC, and another list of models to serve
    metrics.py           its names for what the gateway counts of its calls
    api.py               its addresses for OpenAPI
    sample.py            a request that calls a model         warmup_requests.py   those that lie beside a version
    client.py            the other side, over HTTP          proto_client.py     over gRPC

The contract has quirks (text after the document is ignored, an INT8 of 300 is 44, a query string belongs to the model's
name); they are kept where a client can meet them, and each is told beside its line.

Where it deviates on purpose: tensors have 64 dimensions at most (NumPy's limit, the original's is 254), and bodies
larger than 8 MiB nest 1000 levels deep at most. Over gRPC, bytes that are no message are INVALID_ARGUMENT (the
original's INTERNAL has no text), and what a request may become by repeated values is bounded. A request has 2^20
Examples at most; where a model takes features, an integer fits a narrower input if it lies in its range.
"""

from tensorgate.adapters.tf_serving.api import DESCRIPTION
from tensorgate.adapters.tf_serving.client import TfsHttpClient
from tensorgate.adapters.tf_serving.errors import html_page
from tensorgate.adapters.tf_serving.metrics import TfServingMetricsOptions, make_metrics
from tensorgate.adapters.tf_serving.options import TfServingOptions
from tensorgate.adapters.tf_serving.proto_client import TfsGrpcClient
from tensorgate.adapters.tf_serving.proto_routes import grpc_endpoints
from tensorgate.adapters.tf_serving.routes import match, match_cross_origin
from tensorgate.adapters.tf_serving.sample import sample, samples
from tensorgate.adapters.tf_serving.warmup_requests import warmup_requests
from tensorgate.gateway.contract.dialect import Dialect, DialectKind


def _make(options: TfServingOptions) -> Dialect:
    return Dialect(
        "tf_serving",
        "TensorFlow Serving",
        "/v1",
        match_cross_origin if options.cors else match,
        sample,
        grpc_endpoints(tensor_content=options.tensor_content),
        max_json_depth=1000,
        http_timeout_ms=options.timeout_ms,
        unreadable=lambda status, text: html_page(status),
        samples=samples,
        api=DESCRIPTION,
    )


KIND = DialectKind(
    options=TfServingOptions,
    make=_make,
    http_client=TfsHttpClient,
    grpc_client=TfsGrpcClient,
    metrics=make_metrics,
    metrics_options=TfServingMetricsOptions,
    warmup_requests=warmup_requests,
)
