"""The dialects that the gateway speaks, each imported only when a configuration wants it.

A new dialect is one module here, one line in DIALECTS, and its cases below tests/adapters.
"""

DIALECTS = {
    "open_inference": "adapters.open_inference:KIND",
    "tf_serving": "adapters.tf_serving:KIND",
    "grps": "adapters.grps:KIND",
}

CLIENTS = {
    ("open_inference", "grpc"): "adapters.open_inference.proto_client:GrpcClient",
    ("open_inference", "http"): "adapters.open_inference.client:HttpClient",
    ("tf_serving", "grpc"): "adapters.tf_serving.proto_client:GrpcClient",
    ("tf_serving", "http"): "adapters.tf_serving.client:HttpClient",
    ("grps", "grpc"): "adapters.grps.proto_client:GrpcClient",
    ("grps", "http"): "adapters.grps.client:HttpClient",
}
"""The other side of the dialects, by dialect and transport: for models that other servers compute."""
