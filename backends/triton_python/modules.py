"""A model's files as modules of their own.

Triton runs each model in a process of its own, with the model's folders on sys.path. Here they share one process, and
two models may well have a helper.py each. So every instance is a package with a name of its own, and its files see
their own `import`: a function that stands in the builtins of exactly these modules. It looks for

    triton_python_backend_utils, c_python_backend_utils    this instance's own module
    a file or package beside model.py, or in the folder above it    as a module of this instance's package
    anything else    as everybody imports it

Functions keep the builtins of the module that they were defined in, so this holds in threads, in callbacks, and for
imports that happen late. What goes past the statement does not find siblings: importlib.import_module("helper"), and a
library outside of the model's folders that wants to import triton_python_backend_utils. A name of the standard library
is never a sibling; a folder without __init__.py is one only if nothing else has its name.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import itertools
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import module_from_spec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

_numbers: Final = itertools.count()
_packages: Final[dict[str, ModelPackage]] = {}


class ModelPackage:
    """The modules of one instance. `provided` are modules that its files may import by these names."""

    def __init__(self, folders: Sequence[Path], provided: Mapping[str, ModuleType]) -> None:
        self.name = f"tensorgate_model_{next(_numbers)}"
        self._provided = provided
        self._is_sibling = functools.cache(self._look_for)
        self.builtins = {**vars(builtins), "__import__": self._import}
        package = ModuleType(self.name)
        package.__path__ = [str(folder) for folder in folders]
        sys.modules[self.name] = package
        _packages[self.name] = self
        if _finder not in sys.meta_path:
            sys.meta_path.insert(0, _finder)
        importlib.invalidate_caches()  # files may be younger than what the import system remembers

    def load(self, file: Path) -> ModuleType:
        """Run a file as a module of this package. Raises whatever it raises."""
        name = f"{self.name}.{file.stem}"
        spec = ModuleSpec(name, _Loader(name, str(file)), origin=str(file))
        spec.has_location = True
        module = module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)  # type: ignore[union-attr]
        return module

    def forget(self) -> None:
        """Take every module of the package out of the process's table."""
        _packages.pop(self.name, None)
        for name in [name for name in [*sys.modules] if name == self.name or name.startswith(f"{self.name}.")]:
            del sys.modules[name]

    def _import(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] = (),
        level: int = 0,
    ) -> ModuleType:
        """What the statement `import` calls in this package."""
        head = name.partition(".")[0]
        if level == 0 and head in self._provided:
            return self._provided[head]
        if level == 0 and self._is_sibling(head):
            module = builtins.__import__(f"{self.name}.{name}", globals, locals, fromlist, 0)
            return module if fromlist else sys.modules[f"{self.name}.{head}"]
        return builtins.__import__(name, globals, locals, fromlist, level)

    def _look_for(self, head: str) -> bool:
        if head in sys.stdlib_module_names:
            return False
        package = sys.modules[self.name]
        spec = PathFinder.find_spec(f"{self.name}.{head}", package.__path__)
        if spec is None:
            return False
        return spec.loader is not None or (head not in sys.modules and PathFinder.find_spec(head) is None)


class _Loader(SourceFileLoader):
    """Reads the source at every load, for a model may have been replaced within a second; leaves no cache behind."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code

    def exec_module(self, module: ModuleType) -> None:
        package = _packages[module.__name__.partition(".")[0]]
        vars(module)["__builtins__"] = package.builtins
        super().exec_module(module)


class _Finder(MetaPathFinder):
    """Finds modules below the packages of models, so that they are loaded as such."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in _packages:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(fullname, spec.loader.path)
            spec.cached = None
        return spec


_finder: Final = _Finder()
