"""Classes in files of the user's, which the YAML names as file.py:Class."""

from __future__ import annotations

import importlib.util
import inspect
import itertools
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any, Final

_loaded: Final = itertools.count()


class SourceOnly(SourceFileLoader):
    """Reads the source in any case: whoever has checked that has not checked a cache of it."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


def load_class(file: Path, name: str, *, cached: bool = True) -> tuple[str, Any]:
    """Import the file under a name of its own, so that two may have the same. -> that name, and the class. `cached`:
    Python's cache of it may stand for it, and be written. Raises ValueError if the class is not there, and whatever the
    file raises.
    """
    module_name = f"tensorgate_model_{next(_loaded)}_{file.stem}"
    loader = None if cached else SourceOnly(module_name, str(file))
    specification = importlib.util.spec_from_file_location(module_name, file, loader=loader)
    if specification is None or specification.loader is None:
        raise ValueError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(specification)
    sys.modules[module.__name__] = module
    try:
        specification.loader.exec_module(module)
        return module.__name__, getattr(module, name)
    except BaseException as error:
        del sys.modules[module.__name__]
        if isinstance(error, AttributeError) and not hasattr(module, name):
            own = [
                each for each in vars(module).values() if inspect.isclass(each) and each.__module__ == module.__name__
            ]
            known = [each.__name__ for each in own if hasattr(each, "infer")]
            raise ValueError(f"{file} has no class {name}; found {', '.join(known) or 'none with infer'}") from None
        raise
