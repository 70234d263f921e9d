"""TorchScript: programs that tell names and kinds of what they take, but no datatypes or shapes.

So the YAML declares those. `forward` takes tensors and numbers, a list of tensors, or a dictionary of them. For a
number, callers send a tensor of one element.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tensorgate.backends.torch_model.names import places
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.tensor import TensorSpec

_NUMBERS: Final = {"IntType": int, "FloatType": float, "BoolType": bool}
Specs = tuple[TensorSpec, ...]


class ScriptProgram:
    """A module, called with tensors by callers' names: `inputs` and `outputs` are as they are declared.

    `writes` are the inputs whose memory it may change. Raises ValueError where `forward` takes something else.
    """

    max_rows: int | None = None

    def __init__(self, torch: Any, path: str, place: Any, inputs: Specs, outputs: Specs) -> None:
        if not inputs or not outputs:
            raise ValueError(
                "TorchScript needs its inputs and outputs declared: the file does not tell their datatypes"
            )
        self.module = torch.jit.load(path, map_location=place)
        self.module.eval()
        self.inputs = inputs
        self.outputs = outputs
        self.numbers: dict[str, Any] = {}
        arguments = self.module.forward.schema.arguments[1:]
        kinds = [argument.type.kind() for argument in arguments]
        self._names = [spec.name for spec in inputs]
        self._whole = kinds[0] if kinds in (["ListType"], ["DictType"]) else ""
        self._arguments: dict[str, str] = {}
        self._absent: dict[str, None] = {}
        if not self._whole:
            self._bind(arguments)
        elif self._whole == "ListType":
            order = places("inputs", self._names, [f"__{index}" for index in range(len(inputs))])
            self._names = [self._names[order.index(index)] for index in range(len(inputs))]
        written = _written(self.module)
        self.writes = frozenset(self._names) if self._whole and written else self._callers(written)

    def call(self, tensors: Mapping[str, Any]) -> Any:
        """Whatever forward gives. Raises InvalidArgument for a number that is none, and what torch raises."""
        if self._whole == "DictType":
            return self.module(dict(tensors))
        if self._whole:
            return self.module([tensors[name] for name in self._names if name in tensors])
        given: dict[str, Any] = dict(self._absent)
        for name, tensor in tensors.items():
            number = self.numbers.get(name)
            given[self._arguments[name]] = tensor if number is None else number(_only(name, tensor))
        return self.module(**given)

    def _bind(self, arguments: Any) -> None:
        own = [argument.name for argument in arguments]
        bound = dict(zip(places("inputs", self._names, own), self.inputs, strict=True))
        for index, argument in enumerate(arguments):
            kind, optional = argument.type, argument.has_default_value()
            if kind.kind() == "OptionalType":
                if not optional:
                    self._absent[argument.name] = None
                kind, optional = kind.getElementType(), True
            spec = bound.get(index)
            if not optional and (spec is None or spec.optional):
                raise ValueError(f"forward cannot do without '{argument.name}', which no input gives")
            if spec is None:
                continue
            if kind.kind() in _NUMBERS:
                self.numbers[spec.name] = _NUMBERS[kind.kind()]
            elif kind.kind() != "TensorType":
                raise ValueError(f"forward takes '{argument.name}' as {kind}, but inputs are tensors")
            self._arguments[spec.name] = argument.name

    def _callers(self, written: frozenset[str]) -> frozenset[str]:
        return frozenset(name for name, argument in self._arguments.items() if argument in written)


def _only(name: str, tensor: Any) -> Any:
    if tensor.numel() != 1:
        raise InvalidArgument(f"input '{name}' must have one element: the model takes a number")
    return tensor.item()


def _written(module: Any) -> frozenset[str]:
    """The arguments whose memory the program may change, as torch's own analysis of it says."""
    graph = module.inlined_graph
    analysis = graph.alias_db()
    arguments = zip(module.forward.schema.arguments[1:], list(graph.inputs())[1:], strict=True)
    return frozenset(argument.name for argument, value in arguments if analysis.has_writers(value))
