"""What the YAML may say of a model that generates text."""

from __future__ import annotations

from pydantic import Field

from tensorgate.gateway.contract.options import Options


class GenaiOptions(Options):
    """What the YAML may say of a folder with genai_config.json."""

    in_flight: int = Field(64, ge=1, le=1024, description="How many texts may grow at once; more wait in the queue.")
    default_max_tokens: int | None = Field(
        None,
        ge=1,
        description="How many tokens an answer has at most, if the caller names no max_tokens; null: as "
        "many as the model's context has room for.",
    )
    logprobs: bool = Field(
        False,
        description="Whether an output `logprobs` tells how likely tokens are, to whoever asks by the input of that "
        "name. Not of a model with PagedAttention, whose engine does not say.",
    )
    intra_op_threads: int = Field(
        0, ge=0, description="Threads that share one operator; 0: a copy's share of cpu.threads."
    )
