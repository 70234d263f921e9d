"""Protobuf messages of the dialects, and of gRPC's health and reflection, from `proto/*.proto` in a pool of their own.

Messages in protobuf's default pool refuse to share a process with another definition of the same names, and a user's
python model may import any client library. So the committed descriptor set (`make proto` writes it, a test compares)
goes into a private pool: real names, real classes, no clash.

    from tensorgate.adapters.protobuf.messages import message
    ModelInferRequest = message("inference.ModelInferRequest")
"""

from __future__ import annotations

from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

DESCRIPTORS: Final = "descriptors.binpb"


# None of these is ever stale: the set is a file of this very package.
@lru_cache(maxsize=1)
def file_set() -> descriptor_pb2.FileDescriptorSet:
    """The committed descriptor set, imports before what imports them."""
    return descriptor_pb2.FileDescriptorSet.FromString(files(__name__).joinpath(DESCRIPTORS).read_bytes())


@lru_cache(maxsize=1)
def pool() -> descriptor_pool.DescriptorPool:
    """The private pool with every message of the set. gRPC reflection reads it, too."""
    private = descriptor_pool.DescriptorPool()
    for file in file_set().file:
        private.Add(file)
    return private


@cache
def message(full_name: str) -> Any:
    """The class of a message, by its full name. Raises KeyError."""
    return message_factory.GetMessageClass(pool().FindMessageTypeByName(full_name))


@cache
def enum(full_name: str) -> Any:
    """The descriptor of an enum, by its full name: `.values_by_name`, `.values_by_number`. Raises KeyError."""
    return pool().FindEnumTypeByName(full_name)
