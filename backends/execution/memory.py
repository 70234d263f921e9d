"""What to tell of a model for which there was no room, in figures."""

from __future__ import annotations

from tensorgate.backends.execution.gpu import read_gpu
from tensorgate.gateway.contract.backend import ModelSource


def no_room(source: ModelSource, device: str, text: str) -> str:
    """A remark on a failed load: the limit, what is free on the GPU where it was tried, and what the runtime said."""
    facts = []
    if source.memory_limit_bytes:
        facts.append(f"memory_limit_bytes is {source.memory_limit_bytes:,}")
    gpu = read_gpu(device)
    if gpu is not None:
        facts.append(f"{gpu.total - gpu.used:,} of {gpu.total:,} bytes are free on {device}")
    said = " ".join(text.split())
    return f"no room for the model on {device}: {'; '.join((*facts, said))}"
