"""Programs of torch.export, which tell all of what they take and give, and packages that AOTInductor compiled, which do
not.

A size that varies is -1 here; an exported program itself holds callers to its bounds. Arguments may be nested: each
tensor in them is an input, and what was a constant when the program was exported stays one.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tensorgate.backends.torch_model.archive import check_exported
from tensorgate.backends.torch_model.names import leaves, places
from tensorgate.backends.torch_model.tensor_bridge import TensorBridge
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.tensor import DTYPES, TensorSpec

_INT64: Final = DTYPES["INT64"]
Specs = tuple[TensorSpec, ...]


class _Program:
    """A callable behind a tree of arguments. `writes` are the inputs whose memory it may change, `numbers` those that
    it takes as numbers, `max_rows` is how long axis 0 may be.
    """

    inputs: Specs
    outputs: Specs
    module: Any
    max_rows: int | None = None

    def __init__(self, torch: Any, tree: Any) -> None:
        self._unflatten = torch.utils._pytree.tree_unflatten
        self._tree = tree
        self._slots: list[tuple[str | None, Any]] = []
        self.numbers: dict[str, Any] = {}
        self.writes: frozenset[str] = frozenset()

    def call(self, tensors: Mapping[str, Any]) -> Any:
        """Whatever it gives. Raises InvalidArgument for a number that is none, and what torch raises."""
        flat = [constant if name is None else self._argument(name, tensors[name]) for name, constant in self._slots]
        args, kwargs = self._unflatten(flat, self._tree)
        return self.module(*args, **kwargs)

    def _argument(self, name: str, tensor: Any) -> Any:
        if name not in self.numbers:
            return tensor
        if tensor.numel() != 1:
            raise InvalidArgument(f"input '{name}' must have one element: the model takes a number")
        return tensor.item()


class ExportedProgram(_Program):
    """Specifications are the program's, under the declared names where some are. Raises ValueError for what does not
    fit, and for what could run code of its own unless it is `trusted`.
    """

    def __init__(
        self, torch: Any, path: Path, bridge: TensorBridge, inputs: Specs, outputs: Specs, *, trusted: bool
    ) -> None:
        if not trusted:
            check_exported(torch, path)
        program = torch.export.load(path)
        super().__init__(torch, program.call_spec.in_spec)
        mover = importlib.import_module("torch.export.passes")
        program = mover.move_to_device_pass(program, str(bridge.place))
        nodes = {node.name: node.meta.get("val") for node in program.graph.nodes}
        kinds = torch.export.graph_signature
        signature = program.graph_signature
        self._read_inputs(torch, program, kinds, nodes, bridge, inputs)
        self._read_rows(program, signature, kinds, nodes)
        self._read_outputs(program, signature, kinds, nodes, bridge, outputs)
        self.module = program.module(check_guards=False)  # what it would check beyond sizes is code from the file

    def _read_inputs(
        self, torch: Any, program: Any, kinds: Any, nodes: Any, bridge: TensorBridge, declared: Specs
    ) -> None:
        specs = program.graph_signature.input_specs
        given = [each.arg for each in specs if each.kind is kinds.InputKind.USER_INPUT]
        own = []
        for argument, name in zip(given, self._argument_names(program, len(given)), strict=True):
            if isinstance(argument, kinds.TensorArgument):
                own.append(_spec(f"input '{name}'", name, nodes[argument.name], bridge))
            elif isinstance(argument, kinds.SymIntArgument):
                own.append(TensorSpec(name, _INT64, ()))
            elif not isinstance(argument, kinds.ConstantArgument):
                raise ValueError(f"input '{name}' is no tensor")
        self.inputs = _renamed("inputs", own, declared)
        theirs = [each.name for each in given if not isinstance(each, kinds.ConstantArgument)]
        names = dict(zip(theirs, [spec.name for spec in self.inputs], strict=True))
        self._slots = [(names.get(each.name), getattr(each, "value", None)) for each in given]
        self.numbers = {names[each.name]: int for each in given if isinstance(each, kinds.SymIntArgument)}
        written = _written(torch, program.graph, {argument.name for argument in given})
        self.writes = frozenset(names[name] for name in written)

    def _argument_names(self, program: Any, count: int) -> list[str]:
        """The name of every leaf of the arguments: forward's own, with the path to it where it is nested."""
        args, kwargs = self._unflatten(list(range(count)), self._tree)
        known = program.module_call_graph[0].signature.forward_arg_names or []
        named = dict(
            zip([*known[: len(args)], *[f"input__{n}" for n in range(len(known), len(args))]], args, strict=True)
        )
        found = {place: name for name, place in leaves({**named, **kwargs})}
        return [found[place] for place in range(count)]

    def _read_rows(self, program: Any, signature: Any, kinds: Any, nodes: Any) -> None:
        """How far the first axis of its inputs may reach."""
        for each in signature.input_specs:
            if each.kind is kinds.InputKind.USER_INPUT and isinstance(each.arg, kinds.TensorArgument):
                shape = nodes[each.arg.name].shape
                bounds = program.range_constraints.get(shape[0].node.expr) if _varies(shape[:1]) else None
                if bounds is not None and bounds.upper.is_Integer:
                    self.max_rows = min(int(bounds.upper), self.max_rows or int(bounds.upper))

    def _read_outputs(
        self, program: Any, signature: Any, kinds: Any, nodes: Any, bridge: TensorBridge, declared: Specs
    ) -> None:
        given = [each.arg for each in signature.output_specs if each.kind is kinds.OutputKind.USER_OUTPUT]
        tree = self._unflatten(given, program.call_spec.out_spec)
        own = [
            _spec(f"output '{name}'", name, nodes[argument.name], bridge)
            for name, argument in leaves(tree)
            if isinstance(argument, kinds.TensorArgument)
        ]
        self.outputs = _renamed("outputs", own, declared)


class CompiledPackage(_Program):
    """Machine code for one device; the YAML declares what it takes and gives. Raises ValueError."""

    def __init__(self, torch: Any, path: Path, bridge: TensorBridge, inputs: Specs, outputs: Specs) -> None:
        if not inputs or not outputs:
            raise ValueError(
                "a compiled package needs its inputs and outputs declared: it does not tell their datatypes"
            )
        self.module = torch._inductor.aoti_load_package(str(path), device_index=bridge.place.index or -1)
        pytree = torch.utils._pytree
        super().__init__(torch, pytree.treespec_loads(self.module.loader.get_call_spec()[0]))
        args, kwargs = self._unflatten(list(range(self._tree.num_leaves)), self._tree)
        own = {place: name for name, place in (*leaves(args, "input"), *leaves(kwargs))}
        self.inputs, self.outputs = inputs, outputs
        names = [spec.name for spec in inputs]
        taken = places("inputs", names, [own[place] for place in sorted(own)])
        if len(taken) < len(own):
            raise ValueError(f"the package takes {len(own)} inputs, but {len(taken)} are declared")
        self._slots = [(names[taken.index(place)], None) for place in range(len(own))]
        self.writes = frozenset(names)  # it does not tell that either, and wants memory that is aligned


def compiled_for(torch: Any, path: Path) -> str:
    """The kind of device that a package was compiled for: cpu or cuda."""
    loader = torch._C._aoti.AOTIModelPackageLoader
    return str(loader.load_metadata_from_package(str(path), "model").get("AOTI_DEVICE_KEY", "cpu"))


def _written(torch: Any, graph: Any, inputs: set[str]) -> set[str]:
    """The inputs whose memory a program may change: itself, or what shares it.

    An operator's schema tells what it writes to and what its result may share. Dropout gives what it got, and does not
    tell; of functions that hold programs of their own, the worst is assumed.
    """
    source = {name: {name} for name in inputs}  # node -> inputs whose memory it may share
    written: set[str] = set()
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        operator = isinstance(node.target, torch._ops.OpOverload)
        schema = node.target._schema.arguments if operator else ()
        taken = {argument.name: argument.alias_info for argument in schema}
        given = {**dict(zip(taken, node.args, strict=False)), **node.kwargs} if operator else {"": node.args}
        shared: set[str] = set()
        for name, value in given.items():
            held: set[str] = set()
            torch.fx.map_arg(value, lambda each, held=held: held.update(source.get(each.name, ())))
            if operator and taken[name] is not None and taken[name].is_write:
                written |= held
            if not operator or taken[name] is not None or "dropout" in str(node.target):
                shared |= held
        if not operator and isinstance(node.target, torch._ops.HigherOrderOperator):
            written |= shared
        source[node.name] = shared
    return written


def _renamed(what: str, own: Sequence[TensorSpec], declared: Specs) -> Specs:
    """The program's own specifications, under the names that are declared for them."""
    names = [spec.name for spec in own]
    for spec, place in zip(declared, places(what, [spec.name for spec in declared], names), strict=True):
        names[place] = spec.name
    return tuple(replace(spec, name=name) for spec, name in zip(own, names, strict=True))


def _spec(what: str, name: str, value: Any, bridge: TensorBridge) -> TensorSpec:
    try:
        dtype = bridge.dtype_of(value)
    except ValueError as error:
        raise ValueError(f"{what} is {error}") from None
    return TensorSpec(name, dtype, tuple(-1 if _varies((size,)) else int(size) for size in value.shape))


def _varies(sizes: Sequence[Any]) -> bool:
    return any(not isinstance(size, int) for size in sizes)
