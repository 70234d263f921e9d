"""The raw data of large messages, cut out by hand: protobuf would copy it.

A large tensor on its way in: grpc joins what it received to one `bytes`, and that is the last copy before the batch's,
or the device's. `split` cuts the tensor out as a view of it, and the array is a view of that view; only BOOL, BYTES and
typed contents are copied once more. On its way out: the parts of a reply are views of the answer's arrays, the
transport joins them, and grpc copies the whole into its own buffer.
"""

from __future__ import annotations

from typing import Final

from tensorgate.adapters.protobuf.wire_format import MAX_ELEMENTS, MAX_HEAD_BYTES, fields, too_large
from tensorgate.gateway.contract.call import Buffer

RAW_INPUTS: Final = 7 << 3 | 2
RAW_OUTPUTS: Final = 6 << 3 | 2
"""The tags of ModelInferRequest.raw_input_contents and ModelInferResponse.raw_output_contents."""
_INPUTS: Final = 5 << 3 | 2
_CONTENTS: Final = 5 << 3 | 2
"""The tags of ModelInferRequest.raw_input_contents and .inputs, and of InferInputTensor.contents."""


def split(body: Buffer, kind: str) -> tuple[bytes, list[memoryview]]:
    """A ModelInferRequest -> the same without raw_input_contents, and these, as views of it.

    Raises InvalidArgument for what upb refuses, as far as it can be seen from outside (the fields are left to it), and
    for a message that has much of what no tensor is made of.
    """
    message, raw = cut_out(body, kind, RAW_INPUTS)
    if len(message) > MAX_HEAD_BYTES:
        _check_head(message, kind)
    return message, raw


def cut_out(body: Buffer, kind: str, wanted: int) -> tuple[bytes, list[memoryview]]:
    """A message -> the same without the fields of that tag, and these, as views of it. Raises InvalidArgument."""
    view = memoryview(body)
    head: list[memoryview] = []
    raw: list[memoryview] = []
    kept = 0
    for tag, begin, data, end in fields(body, 0, len(body), kind):
        if tag == wanted:
            head.append(view[kept:begin])
            raw.append(view[data:end])
            kept = end
    head.append(view[kept:])
    return b"".join(head), raw


def _check_head(body: bytes, kind: str) -> None:
    """Refuse a message in which something other than packed numbers is large: parameters, dimensions and single
    elements cost upb so much time, in which nobody else is served, and more memory than they have bytes.
    """
    contents = 0
    room = MAX_ELEMENTS
    for tag, _, data, end in fields(body, 0, len(body), kind):
        if tag != _INPUTS:
            continue
        for inside, _, first, last in fields(body, data, end, kind):
            if inside == _CONTENTS:
                contents += last - first
                room -= sum([1 for _ in fields(body, first, last, kind, room)])
    if len(body) - contents > MAX_HEAD_BYTES:
        raise too_large()
