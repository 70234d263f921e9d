"""A customized model of grps -> its entry here, and the class that is still to be written for it."""

from __future__ import annotations

import keyword
import re
from typing import Any, Final

_WORD: Final = re.compile(r"[A-Za-z0-9]+")

ENTRY: Final[dict[str, Any]] = {
    "inputs": [
        {"name": "text", "datatype": "BYTES", "shape": [1], "optional": True},
        {"name": "tensor", "datatype": "FP32", "optional": True},
    ],
    "outputs": [
        {"name": "said", "datatype": "BYTES", "shape": [1]},
        {"name": "numbers", "datatype": "FP32"},
    ],
}
"""What a grps message can carry, as tensors: str_data and bin_data fill `text`, gtensors and ndarray `tensor`."""
MAPPING: Final[dict[str, Any]] = {
    "str_data": "text",
    "bin_data": "text",
    "reply": {"str_data": "said", "gtensors": ["numbers"]},
}
"""The section `grps` of such a model: text is answered in text, tensors in tensors."""

_CLASS: Final = '''\
"""The model {model}: what the inferer {inferer} and the converter {converter} did in grps.

Write preprocess, infer and postprocess into `infer`, one after the other. What callers send as str_data or bin_data is
`text`, what they send as gtensors or ndarray is `tensor`; the YAML declares both, and the outputs. Names, datatypes and
shapes there are to be changed as the model needs them.
"""

import numpy as np
from tensorgate import InvalidArgument, ModelContext, ModelRequest


class {name}:
    """`text` BYTES [1] or `tensor` FP32 -> `said` BYTES [1] and `numbers` FP32, of which the caller gets one."""

    def __init__(self, context: ModelContext):
        """What init and load did; context.parameters has the arguments of inference.yml."""
        self.parameters = context.parameters

    def infer(self, inputs, request: ModelRequest):
        """One request. A generator in its place, with `decoupled: true` beside the model, streams: yield such answers
        where stream_respond was called.
        """
        if "text" in inputs:
            return self.answer(text=bytes(inputs["text"].reshape(-1)[0]).decode())
        if "tensor" in inputs:
            return self.answer(tensor=inputs["tensor"])
        raise InvalidArgument("expected str_data, bin_data, gtensors or ndarray")

    def answer(self, text: str = "", tensor: np.ndarray | None = None):
        """Both outputs, always: what is not asked for may be empty."""
        raise InvalidArgument("{model} is not written yet")
        # said = "…"
        # return {{"said": np.array([said.encode()], object), "numbers": np.zeros(0, np.float32)}}
'''


def class_name(inferer: str) -> str:
    """your_inferer -> YourInferer"""
    name = "".join(word[0].upper() + word[1:] for word in _WORD.findall(inferer))
    return name if name.isidentifier() and not keyword.iskeyword(name) else f"Model{name}"


def module_name(model: str) -> str:
    """A file's name without its ending, of letters, digits and _ alone."""
    return re.sub(r"[^A-Za-z0-9_]", "_", model)


def class_text(model: str, inferer: str, converter: str) -> str:
    """The file, with the class that is to be written."""
    shown = [re.sub(r"[^A-Za-z0-9_.-]", "_", each) for each in (model, inferer, converter or "none")]
    return _CLASS.format(model=shown[0], inferer=shown[1], converter=shown[2], name=class_name(inferer))
