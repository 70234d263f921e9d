"""The YAML options of the TensorFlow Serving dialect. Source: flags of its command line."""

from pydantic import Field

from tensorgate.gateway.contract.options import Options


class TfServingOptions(Options):
    """How TensorFlow Serving's interfaces behave."""

    cors: bool = False
    """Whether web pages of any site may read the answers (rest_api_enable_cors_support)."""
    timeout_ms: int = Field(default=30_000, ge=0)
    """How long a call over HTTP may take once its body is here, before it is answered with 504; 0 is as long as it
    likes (rest_api_timeout_in_ms)."""
    tensor_content: bool = False
    """Answers over gRPC have their elements as bytes, as the original's have with
    --enable_serialization_as_tensor_content, and not in typed fields, which more clients read."""
    warmup_requests: int = Field(default=1, ge=0, le=100_000)
    """How often each request that lies beside a version, in assets.extra/tf_serving_warmup_requests, runs before that
    version is ready; one that fails keeps it from being loaded. 0: they do not run (enable_model_warmup,
    num_request_iterations_for_warmup)."""
