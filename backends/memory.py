"""What to tell of a model for which there was no room, in figures."""

from __future__ import annotations

from backends.device import gpu_memory
from gateway.ports import ModelSource


def no_room(source: ModelSource, device: str, text: str) -> str:
    """A remark on a failed load: the limit, what is free on the GPU where it was tried, and what the runtime said."""
    facts = []
    if source.memory_limit_bytes:
        facts.append(f"memory_limit_bytes is {source.memory_limit_bytes:,}")
    memory = gpu_memory(device)
    if memory is not None:
        _, total, used = memory
        facts.append(f"{total - used:,} of {total:,} bytes are free on {device}")
    said = " ".join(text.split())
    return f"no room for the model on {device}: {'; '.join((*facts, said))}"
