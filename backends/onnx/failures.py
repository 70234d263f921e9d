"""What ONNX Runtime says when a run fails: without the places in its own source, and whose fault it is.

Most of its kernels look at shapes only when they run, and what they find there is a FAIL like everything else that can
go wrong: inputs that do not fit each other, or values that do not fit a shape. So the words decide. What names shapes,
ranks, axes, sizes or indices was caused by inputs: a graph that never fits fails while it is loaded or warmed up.
Source: ONNX Runtime, common/common.h (ORT_ENFORCE, ORT_THROW, ORT_RETURN_IF) and exceptions.h.
"""

from __future__ import annotations

import re
from typing import Final

from tensorgate.backends.execution.failures import is_of_a_device

_SIGNATURE: Final = r"(?:[^()]*?[\w>~]\((?:[^()]|\([^()]*\))*\)(?: const)?(?: \[with [^\]]*\])? )?"
"""C++'s: void onnxruntime::BroadcastIterator::Init(ptrdiff_t, ptrdiff_t)"""
_ENFORCED: Final = re.compile(r"/\S+\.(?:h|cc|cpp|hpp|cuh?):\d+ (?:(?!Status Message:).)*? was false\.(?=\s*[^\s.])\s*")
"""A condition that has words for people behind it."""
_PLACE: Final = re.compile(r"/\S+\.(?:h|cc|cpp|hpp|cuh?):\d+ " + _SIGNATURE)
_SHORT_PLACE: Final = re.compile(r"(?<![\w/])\w+\.(?:h|cc|cpp|hpp|cuh?):\d+ (?:\w+ )?")
"""A place without its folder: matmul_helper.h:59 Compute"""
_PATH: Final = re.compile(r"/onnxruntime_src/\S*")
_ABOUT_INPUTS: Final = re.compile(
    r"broadcast|dimension|\bdims?\b|num_dims|\brank\b|\branks\b|shape|\bax[ei]s\b|\bsizes?\b|\blength\b|channels"
    r"|mismatch|out of (?:data )?bounds|out of range|\bind(?:ex|ices)\b|\bk argument\b|should be greater"
    r"|\bsto(?:d|f|i|l|ll|ul|ull)$",
    re.IGNORECASE,
)
_ABOUT_THE_FILE: Final = re.compile("re-use buffer")
"""What it declares of its tensors' shapes is not what they have."""
_MAX_CHARACTERS: Final = 4096
_BEGINNING: Final = re.compile(r"^.*Status Message:")


def plain(text: str) -> str:
    """An exception's text in one line, without files, lines and functions of ONNX Runtime's own."""
    line = " ".join(text[:_MAX_CHARACTERS].split())
    for pattern in (_ENFORCED, _PLACE, _SHORT_PLACE, _PATH):
        line = pattern.sub("", line)
    return line.strip()


def is_about_inputs(text: str) -> bool:
    """Whether a failed run, in `plain` text, was caused by what the inputs are, and by no device."""
    message = _BEGINNING.sub("", text)  # names of nodes are the model's
    if is_of_a_device(text) or _ABOUT_THE_FILE.search(message):
        return False
    return _ABOUT_INPUTS.search(message) is not None
