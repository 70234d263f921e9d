"""Inputs and outputs do not fit the model's specifications."""

from __future__ import annotations

from tensorgate.gateway.contract.errors.message import InvalidArgument
from tensorgate.gateway.contract.errors.reasons import ErrorReason


class UnknownOutput(InvalidArgument):
    """The request names an output that the model does not have."""

    error_reason = ErrorReason.UNKNOWN_OUTPUT

    def __init__(self, output: str, model: str) -> None:
        super().__init__(f"model '{model}' has no output '{output}'")
        self.output = output
        self.model = model


class InputCount(InvalidArgument):
    """Too few or too many inputs: the model takes `min_inputs` to `max_inputs`; `got` and `missing` list names."""

    error_reason = ErrorReason.MISSING_INPUT

    def __init__(
        self, model: str, got: tuple[str, ...], missing: tuple[str, ...], min_inputs: int, max_inputs: int
    ) -> None:
        takes = f"{min_inputs} to {max_inputs}"
        super().__init__(f"model '{model}' takes {takes} inputs, got {list(got)}, missing {list(missing)}")
        self.model = model
        self.got = got
        self.missing = missing
        self.min_inputs = min_inputs
        self.max_inputs = max_inputs
        if not missing:
            self.error_reason = ErrorReason.UNKNOWN_INPUT


class UnknownInput(InvalidArgument):
    """The request has an input that the model does not have."""

    error_reason = ErrorReason.UNKNOWN_INPUT

    def __init__(self, input: str, model: str) -> None:
        super().__init__(f"model '{model}' has no input '{input}'")
        self.input = input
        self.model = model


class BatchMissing(InvalidArgument):
    """An input has no dimension, but the model needs a batch dimension."""

    error_reason = ErrorReason.SHAPE

    def __init__(self, input: str, model: str) -> None:
        super().__init__(f"input '{input}' of model '{model}' has no batch dimension")
        self.input = input
        self.model = model


class BatchMismatch(InvalidArgument):
    """The inputs of a request differ in their batch dimension."""

    error_reason = ErrorReason.SHAPE

    def __init__(self, input: str, model: str) -> None:
        super().__init__(f"input '{input}' of model '{model}' has another batch size than its neighbours")
        self.input = input
        self.model = model


class BatchTooLarge(InvalidArgument):
    """The request has more rows than the model's max_batch_size, `limit`."""

    error_reason = ErrorReason.TOO_LARGE

    def __init__(self, rows: int, limit: int, model: str) -> None:
        super().__init__(f"{rows} rows, but model '{model}' takes at most {limit}")
        self.rows = rows
        self.limit = limit
        self.model = model


class DtypeMismatch(InvalidArgument):
    """An input has the wrong datatype; `got` and `want` are datatype names, FP32 for example."""

    error_reason = ErrorReason.DTYPE

    def __init__(self, input: str, got: str, want: str, model: str) -> None:
        super().__init__(f"input '{input}' of model '{model}' is {got}, expected {want}")
        self.input = input
        self.got = got
        self.want = want
        self.model = model


class ShapeMismatch(InvalidArgument):
    """An input has the wrong shape. `want` has -1 where any size fits; if `batched`, it begins with the batch size."""

    error_reason = ErrorReason.SHAPE

    def __init__(self, input: str, got: tuple[int, ...], want: tuple[int, ...], model: str, *, batched: bool) -> None:
        super().__init__(f"input '{input}' of model '{model}' has shape {list(got)}, expected {list(want)}")
        self.input = input
        self.got = got
        self.want = want
        self.model = model
        self.batched = batched


class ClassesUnsupported(InvalidArgument):
    """The request asks to classify an output whose datatype has no classes: BOOL, FP16, BF16, BYTES."""

    error_reason = ErrorReason.UNSUPPORTED

    def __init__(self, output: str, datatype: str) -> None:
        super().__init__(f"output '{output}' is {datatype}, which cannot be classified")
        self.output = output
        self.datatype = datatype


class ClassesTooMany(InvalidArgument):
    """The request asks to classify an output that is too large."""

    error_reason = ErrorReason.TOO_LARGE

    def __init__(self, output: str) -> None:
        super().__init__(f"output '{output}' is too large to be classified")
        self.output = output
