"""The grps dialect: HTTP under /grps/v1, and gRPC. Its two servers disagree; this speaks as the Python one does, since
its HTTP codes tell something, and `http_status: always_200` gives the C++ one's habit of answering 200 to everything.

options.py   what the YAML may say: of the dialect, and of a model
routes.py    request line -> endpoint; the table of all of them
message.py   the schema of grps messages, and JSON objects as such messages
fields.py    which JSON values a field accepts
flat.py      the number arrays of tensors, without a loop; long ones are cut out of a body before it is read
tensors.py   grps tensors <-> arrays: dtypes, data checks
request.py   predict: body -> InferRequest; whether a caller wants a stream
customized.py a model that sees the raw request and shapes the raw response
printing.py  JSON as the Python server lays it out
number_text.py  the numbers of an array as its text has them, without a loop
response.py  answers -> replies: envelope, gtensors, ndarray, str_data, bin_data
monitor.py   the numbers of grps' own page
errors.py    kind of failure -> status code, gRPC code and words
proto_routes.py   the methods of the gRPC service
proto_message.py  its one message <-> fields and replies
metadata.py  the configuration as the YAML texts that grps servers show
sample.py    a request that calls a model
api.py       its addresses for OpenAPI
client.py    the other side, over HTTP, and the ends of a stream's answers
proto_client.py   the other side, over gRPC
"""

from tensorgate.adapters.grps.client import GrpsHttpClient
from tensorgate.adapters.grps.options import GrpsMapping, GrpsOptions
from tensorgate.adapters.grps.proto_client import GrpsGrpcClient
from tensorgate.adapters.grps.routes import make
from tensorgate.gateway.contract.dialect import DialectKind

KIND = DialectKind(
    options=GrpsOptions,
    make=make,
    model_options=GrpsMapping,
    http_client=GrpsHttpClient,
    grpc_client=GrpsGrpcClient,
    finds_models=False,
)

__all__ = ["KIND"]
