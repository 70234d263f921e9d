"""Operators of the user's own: a class in a file, and a line of YAML that gives it a name.

    ops: {clip: my_ops.py:Clip}                                  # at the top of the YAML, the path relative to it
    …
    preprocess: [{op: clip, input: image, low: 0.0, high: 1.0}]  # in any model, those of repositories included

    class Clip:
        \"""Values kept within bounds.\"""

        def __init__(self, input: str, low: float = 0.0, high: float = 1.0):
            self.input, self.low, self.high = input, low, high

        def specs(self, specs):             # name -> tensorgate.TensorSpec, before -> after
            if self.input not in specs:
                raise ValueError(f"there is no tensor '{self.input}'")
            return specs

        def __call__(self, tensors, xp):    # arrays of NumPy or CuPy; xp is the module of either
            return {**tensors, self.input: xp.clip(tensors[self.input], self.low, self.high)}

What the YAML gives is checked by the annotations of `__init__`, as strictly as everything else in it. A class that
needs more than that has a class `Options` (of tensorgate.Options) inside, and gets one object of it. The file is
imported when the YAML is read, and trusted like the rest of the configuration.
"""

from __future__ import annotations

import inspect
import typing
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import create_model
from pydantic.errors import PydanticUserError

from tensorgate.backends.python.user_class import load_class
from tensorgate.gateway.contract.errors import GatewayError, ModelFailed, source_location, text_of
from tensorgate.gateway.contract.operator import Op, OpKind
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.tensor import Tensors, TensorSpec


def load(name: str, file: Path, member: str) -> OpKind:
    """The operator of that name. Raises ValueError saying what the file lacks."""
    if not member:
        raise ValueError(f"{file} must name a class in the file, too: {file.name}:Clip")
    try:
        _, made = load_class(file, member)
    except Exception as error:
        raise ValueError(_import_error(error, file) if str(file) not in str(error) else str(error)) from error
    if not isinstance(made, type):
        raise ValueError(f"{member} in {file} is no class")
    for method, form in (("specs", "specs(self, specs)"), ("__call__", "__call__(self, tensors, xp)")):
        if not any(method in base.__dict__ for base in made.__mro__):
            raise ValueError(f"{member} in {file} has no method {form}")
    own = getattr(made, "Options", None)
    if own is not None:
        if not (isinstance(own, type) and issubclass(own, Options)):
            raise ValueError(f"{member}.Options in {file} must be a tensorgate.Options")
        return OpKind(own, lambda step: UserOp(name, _made(file, lambda: made(step))))
    try:
        options = _options(name, made)
    except (ValueError, TypeError, NameError, UserWarning, PydanticUserError) as error:
        raise ValueError(f"{member} in {file}: {_message(error)}") from error
    keys = tuple(options.model_fields)

    def make(step: Any) -> Op:
        return UserOp(name, _made(file, lambda: made(**{key: getattr(step, key) for key in keys})))

    return OpKind(options, make)


def _made(file: Path, make: Callable[[], Op]) -> Op:
    """What the user's __init__ refuses is told as it is, anything else with its place. Raises ValueError."""
    try:
        return make()
    except (ValueError, ImportError, OSError):
        raise
    except Exception as error:
        raise ValueError(_import_error(error, file)) from error


def _import_error(error: Exception, file: Path) -> str:
    """What an exception says for itself, and where in the user's files that was."""
    location = "" if isinstance(error, SyntaxError) else source_location(error, file.parent)
    return f"{location or file}: {_message(error)}"


def _options(name: str, made: type[Any]) -> type[Options]:
    """The parameters of __init__ as what the YAML may say."""
    initialize: Any = made.__init__
    fields: dict[str, Any] = {}
    if initialize is not object.__init__:
        hints = typing.get_type_hints(initialize, include_extras=True)
        for parameter in [*inspect.signature(initialize).parameters.values()][1:]:
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise ValueError(f"the parameter {parameter.name} has no name that the YAML could give")
            if parameter.name == "op":
                raise ValueError("the parameter op has the name of the step's own key")
            default = ... if parameter.default is parameter.empty else parameter.default
            fields[parameter.name] = (hints.get(parameter.name, Any), default)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a field that hides one of pydantic's own attributes
        return create_model(f"{name}_options", __base__=Options, __doc__=made.__doc__, **fields)


class UserOp(Op):
    """One of them at work. What it raises is told in its name: ValueError of its specs, ModelFailed of its results;
    errors that it raises in our terms keep their meaning.
    """

    def __init__(self, name: str, op: Op) -> None:
        self._name = name
        self._op = op

    def specs(self, specs: Mapping[str, TensorSpec]) -> Mapping[str, TensorSpec]:
        try:
            after = self._op.specs(specs)
        except ValueError as error:
            raise ValueError(f"{self._name}: {error}") from error
        except Exception as error:
            raise ValueError(f"{self._name}: {_message(error)}") from error
        if not isinstance(after, Mapping) or any(
            not isinstance(spec, TensorSpec) or spec.name != name for name, spec in after.items()
        ):
            raise ValueError(f"{self._name}: specs must return a mapping of names to TensorSpecs of these names")
        return after

    def along(self, specs: Mapping[str, TensorSpec]) -> tuple[str, int] | None:
        along = getattr(self._op, "along", None)  # the user's class need not be derived from Op
        return along(specs) if along is not None else None

    def __call__(self, tensors: Tensors, xp: Any) -> Tensors:
        try:
            after = self._op(tensors, xp)
        except GatewayError:
            raise
        except Exception as error:
            raise ModelFailed(f"{self._name}: {_message(error)}") from error
        if not isinstance(after, Mapping):
            raise ModelFailed(f"{self._name} must return a mapping of tensors, not {type(after).__name__}")
        return after


def _message(error: BaseException) -> str:
    return text_of(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {text_of(error)}"
