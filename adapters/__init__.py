"""The dialects that the gateway speaks, each imported only when a configuration wants it.

A new dialect is one module here, one line in DIALECTS, and its cases below tests/adapters.
"""

DIALECTS = {
    "open_inference": "tensorgate.adapters.open_inference:KIND",
    "tf_serving": "tensorgate.adapters.tf_serving:KIND",
    "grps": "tensorgate.adapters.grps:KIND",
}

CLIENTS = {
    ("open_inference", "grpc"): "tensorgate.adapters.open_inference.proto_client:V2GrpcClient",
    ("open_inference", "http"): "tensorgate.adapters.open_inference.client:V2HttpClient",
    ("tf_serving", "grpc"): "tensorgate.adapters.tf_serving.proto_client:TfsGrpcClient",
    ("tf_serving", "http"): "tensorgate.adapters.tf_serving.client:TfsHttpClient",
    ("grps", "grpc"): "tensorgate.adapters.grps.proto_client:GrpsGrpcClient",
    ("grps", "http"): "tensorgate.adapters.grps.client:GrpsHttpClient",
}
"""The other side of the dialects, by dialect and transport: for models that other servers compute."""
