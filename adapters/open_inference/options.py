"""The YAML options of the Open Inference dialect. Source: flags of Triton's command line."""

import re
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from tensorgate.gateway.contract.options import Options

_WITH_CASE: Final = "(?-i)"


def compile_pattern(text: str) -> re.Pattern[str]:
    """A regular expression without case, unless it begins with (?-i), as RE2 writes it. Raises re.error.

    Source: Triton's L0_parameters, test_header_forward_pattern_case_insensitive and the one after it.
    """
    case = re.NOFLAG if text.startswith(_WITH_CASE) else re.IGNORECASE
    return re.compile(text.removeprefix(_WITH_CASE), case)


def _pattern(text: str) -> str:
    try:
        compile_pattern(text)
    except re.error as error:
        raise ValueError(f"is no regular expression: {error}") from None
    return text


Pattern = Annotated[str, AfterValidator(_pattern), Field(max_length=1000)]


class OpenInferenceOptions(Options):
    """How Triton's interfaces behave."""

    http_header_forward_pattern: Pattern = ""
    """Headers of HTTP in whose names this regular expression is found become parameters of infer and generate requests,
    which the model reads, under their names in lower case; its case counts only after (?-i); empty: none
    (http-header-forward-pattern)."""
    grpc_header_forward_pattern: Pattern = ""
    """Metadata of gRPC calls that become parameters of infer requests in that way (grpc-header-forward-pattern)."""
