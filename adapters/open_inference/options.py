"""The YAML options of the Open Inference dialect. Source: flags of Triton's command line."""

import re
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field

from tensorgate.gateway.contract.options import Options


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"is no regular expression: {error}") from None
    return text


Pattern = Annotated[str, AfterValidator(_pattern), Field(max_length=1000)]


class OpenInferenceOptions(Options):
    """How Triton's interfaces behave."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    http_header_forward_pattern: Pattern = ""
    """Headers of HTTP in whose names this regular expression is found become parameters of infer and generate requests,
    which the model reads, under their names in lower case; empty: none (http-header-forward-pattern)."""
    grpc_header_forward_pattern: Pattern = ""
    """The same of metadata over gRPC, whose names have lower case alone (grpc-header-forward-pattern)."""
