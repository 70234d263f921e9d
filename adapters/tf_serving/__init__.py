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
    signature_def.py     a signature as TensorFlow describes it, for both transports
    model_ref.py         the model that an address names
    signatures.py        which signature a request means, and its outputs
    errors.py            every kind of failure: HTTP status, gRPC code, text
    proto_routes.py      which gRPC method is which question
    proto_spec.py        the model that a message names
    proto_request.py     PredictRequest -> InferRequest
    proto_tensors.py     TensorProto -> arrays
    proto_wire.py        the data of large messages, as views of them
    proto_types.py       dtypes on the wire
    proto_response.py    InferResponse -> PredictResponse
    tensor_message.py    arrays -> TensorProto
    proto_control.py     questions about models over gRPC
    proto_errors.py      every kind of failure as a gRPC status
    example.py           a shell line that calls a model

The contract has quirks (text after the document is ignored, an INT8 of 300 is 44, a query string belongs to the model's
name); they are kept where a client can meet them, and each is told beside its line.

Where it deviates on purpose: bodies nest 1000 levels deep at most, tensors have 64 dimensions at most (NumPy's limit,
the original's is 254), and strings that are not UTF-8 are refused.
"""

from adapters.tf_serving.example import example
from adapters.tf_serving.proto_routes import grpc_endpoints
from adapters.tf_serving.routes import match
from gateway.ports import Dialect, DialectKind, Options


class TensorFlowServingOptions(Options):
    """`tensor_content`: answers over gRPC have their elements as bytes, as the original's have with
    --enable_serialization_as_tensor_content, and not in typed fields, which more clients read.
    """

    tensor_content: bool = False


def _make(options: TensorFlowServingOptions) -> Dialect:
    methods = grpc_endpoints(tensor_content=options.tensor_content)
    return Dialect("tf_serving", "TensorFlow Serving", "/v1", match, example, methods, max_json_depth=1000)


KIND = DialectKind(options=TensorFlowServingOptions, make=_make)
