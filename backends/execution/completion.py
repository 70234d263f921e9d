"""What a model's file says of batching where its configuration leaves that open.

A model can batch if the first dimension of every input and output varies. A tensor of unknown rank shows nothing: it
does not forbid a batch size that is asked for, and does not suggest one. Source: Triton's completion of ONNX and
TensorFlow models.
"""

from __future__ import annotations

from typing import Final

from tensorgate.gateway.contract.backend import ModelSource
from tensorgate.gateway.contract.tensor import TensorSpec

DEFAULT_MAX_BATCH_SIZE: Final = 4


def max_batch_size(source: ModelSource, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]) -> int:
    """The wanted size, or what "auto" is for this file. Raises ValueError where the file cannot have the wanted one."""
    specs = (*inputs, *outputs)
    if source.max_batch_size == "auto":
        return DEFAULT_MAX_BATCH_SIZE if all(spec.shape and spec.shape[0] < 0 for spec in specs) else 0
    fixed = [spec for spec in specs if spec.shape is not None and spec.shape[:1] != (-1,)]
    if source.max_batch_size and fixed:
        if not (source.inputs and source.outputs):
            raise ValueError(
                f"autofill failed for model '{source.name}': model does not support batching while non-zero "
                f"max_batch_size is specified (tensor '{fixed[0].name}' has shape {_text(fixed[0])} in its file)"
            )
        raise ValueError(
            f"model '{source.name}', tensor '{fixed[0].name}': for the model to support batching the shape should have "
            f"at least 1 dimension and the first dimension must be -1; but shape expected by the model is "
            f"{_text(fixed[0])}"
        )
    return source.max_batch_size


def _text(spec: TensorSpec) -> str:
    return str(list(spec.shape or ())).replace(" ", "")
