"""Classes in files of the user's, which the YAML names as file.py:Class."""

from __future__ import annotations

import importlib.util
import inspect
import itertools
import sys
from pathlib import Path
from typing import Any, Final

_loaded: Final = itertools.count()


def load_class(file: Path, name: str) -> tuple[str, Any]:
    """Import the file under a name of its own, so that two may have the same. -> that name, and the class. Raises
    ValueError if the class is not there, and whatever the file raises.
    """
    specification = importlib.util.spec_from_file_location(f"tensorgate_model_{next(_loaded)}_{file.stem}", file)
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
