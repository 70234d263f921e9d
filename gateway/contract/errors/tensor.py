"""Tensors that do not fit their specifications."""

from __future__ import annotations

from tensorgate.gateway.contract.errors.message import InvalidArgument


class UnknownOutput(InvalidArgument):
    """An output was asked for that the model does not have."""

    def __init__(self, output: str, model: str) -> None:
        super().__init__(f"model '{model}' has no output '{output}'")
        self.output = output
        self.model = model


class InputCount(InvalidArgument):
    """Too few or too many inputs. The model takes `least` to `most`; `got` and `missing` list names."""

    def __init__(self, model: str, got: tuple[str, ...], missing: tuple[str, ...], least: int, most: int) -> None:
        takes = f"{least} to {most}"
        super().__init__(f"model '{model}' takes {takes} inputs, got {list(got)}, missing {list(missing)}")
        self.model = model
        self.got = got
        self.missing = missing
        self.least = least
        self.most = most


class UnknownInput(InvalidArgument):
    """An input was sent that the model does not have."""

    def __init__(self, input: str, model: str) -> None:
        super().__init__(f"model '{model}' has no input '{input}'")
        self.input = input
        self.model = model


class BatchMissing(InvalidArgument):
    """An input without any dimension was sent to a model that takes batches."""

    def __init__(self, input: str, model: str) -> None:
        super().__init__(f"input '{input}' of model '{model}' has no batch dimension")
        self.input = input
        self.model = model


class BatchMismatch(InvalidArgument):
    """Inputs of one request differ in the batch dimension."""

    def __init__(self, input: str, model: str) -> None:
        super().__init__(f"input '{input}' of model '{model}' has another batch size than its neighbours")
        self.input = input
        self.model = model


class BatchTooLarge(InvalidArgument):
    """The request has more rows than the model takes at once."""

    def __init__(self, rows: int, limit: int, model: str) -> None:
        super().__init__(f"{rows} rows, but model '{model}' takes at most {limit}")
        self.rows = rows
        self.limit = limit
        self.model = model


class DtypeMismatch(InvalidArgument):
    """An input has the wrong datatype; `got` and `want` are datatype names, FP32 for example."""

    def __init__(self, input: str, got: str, want: str, model: str) -> None:
        super().__init__(f"input '{input}' of model '{model}' is {got}, expected {want}")
        self.input = input
        self.got = got
        self.want = want
        self.model = model


class ShapeMismatch(InvalidArgument):
    """An input has the wrong shape.

    `want` has -1 where any size fits; `batched`: its first entry is the batch dimension.
    """

    def __init__(self, input: str, got: tuple[int, ...], want: tuple[int, ...], model: str, *, batched: bool) -> None:
        super().__init__(f"input '{input}' of model '{model}' has shape {list(got)}, expected {list(want)}")
        self.input = input
        self.got = got
        self.want = want
        self.model = model
        self.batched = batched


class ClassesUnsupported(InvalidArgument):
    """The best classes of an output were asked for, but its datatype has none: BOOL, FP16, BF16, BYTES."""

    def __init__(self, output: str, datatype: str) -> None:
        super().__init__(f"output '{output}' is {datatype}, which cannot be classified")
        self.output = output
        self.datatype = datatype


class ClassesTooMany(InvalidArgument):
    """The best classes of an output were asked for that is too large."""

    def __init__(self, output: str) -> None:
        super().__init__(f"output '{output}' is too large to be classified")
        self.output = output
