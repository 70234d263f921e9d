"""Numbers of classes as their names: integers -> BYTES, UTF-8, on the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from tensorgate.backends.ops.checks import integral, replaced
from tensorgate.backends.ops.tensor_op import RenamingOptions, TensorOp
from tensorgate.gateway.contract.files import Existing, FileRef
from tensorgate.gateway.contract.operator import OpKind
from tensorgate.gateway.contract.tensor import BYTES, Array, TensorSpec


class ClassNamesOptions(RenamingOptions):
    """Numbers of classes as their names.

    Example: {op: class_names, input: classes, output: names, names: [cat, dog]}
    """

    op: Literal["class_names"]
    input: str = Field(description="Name of the numbers, integers of any shape; they stay if output is another name.")
    names: tuple[str, ...] | None = Field(None, description="The names, that of class 0 first.")
    file: Annotated[FileRef, Existing("file")] | None = Field(
        None, description="Instead of `names`: a text file with a name on each line."
    )
    unknown: str = Field("", description="What other numbers are called, those behind the last of nms among them.")

    @model_validator(mode="after")
    def _one_list(self) -> ClassNamesOptions:
        if (self.names is None) == (self.file is None):
            raise ValueError("give names or file")
        return self


class ClassNames(TensorOp):
    """Integers -> BYTES of the same shape."""

    def __init__(self, options: ClassNamesOptions) -> None:
        """Raises ValueError for a file that is no text."""
        super().__init__(options)
        self._keeps = self.tensor != self._input
        names = options.names
        if options.file is not None:
            try:
                names = tuple(options.file.path.read_text(encoding="utf-8").splitlines())
            except (OSError, UnicodeDecodeError) as error:
                raise ValueError(f"class_names: {options.file.path} cannot be read as text: {error}") from None
        self._table = np.empty(len(names or ()) + 1, np.object_)
        self._table[:] = [name.encode() for name in (*(names or ()), options.unknown)]
        if len(self._table) == 1:
            raise ValueError("class_names: there is no name")

    def specs(self, specs: Mapping[str, TensorSpec]) -> Mapping[str, TensorSpec]:
        return replaced(
            self._op, specs, () if self._keeps and self._input in specs else (self._input,), [self._made(specs)]
        )

    def after(self, spec: TensorSpec) -> TensorSpec:
        integral(self._op, spec)
        return TensorSpec(spec.name, BYTES, spec.shape)

    def __call__(self, tensors: Mapping[str, Any], xp: Any) -> Mapping[str, Any]:
        made = super().__call__(tensors, xp)
        return {**tensors, self.tensor: made[self.tensor]} if self._keeps else made

    def compute(self, array: Array, xp: Any) -> Array:
        numbers = array if isinstance(array, np.ndarray) else array.get()
        last = len(self._table) - 1
        return self._table[np.where((numbers < 0) | (numbers >= last), last, numbers).astype(np.int64)]


KIND = OpKind(ClassNamesOptions, ClassNames)
