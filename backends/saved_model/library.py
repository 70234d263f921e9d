"""TensorFlow, imported when the first SavedModel asks for it: it takes seconds and hundreds of megabytes.

Its messages are in protobuf's default pool, the gateway's in a pool of their own: either may come first.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable
from typing import Any, Final

from tensorgate.backends.execution.cuda_install import cuda_problem
from tensorgate.gateway.contract.extras import install_command

_LOG_LEVEL: Final = "TF_CPP_MIN_LOG_LEVEL"


def gpu_problem() -> str:
    """Why SavedModels cannot run on a GPU here, empty where they can."""
    if problem := cuda_problem():
        return problem
    try:
        seen = import_tensorflow().config.list_physical_devices("GPU")
    except ValueError as error:
        return str(error)
    return "" if seen else "this build of TensorFlow can use no GPU here: pip install 'tensorflow[and-cuda]'"


def import_tensorflow(modules: Iterable[str] = ()) -> Any:
    """The module, after which `modules` are imported, too. Raises ValueError naming what to install.

    It is quiet unless the environment asks for more: errors alone are logged.
    """
    quiet = _LOG_LEVEL not in os.environ
    if quiet:
        os.environ[_LOG_LEVEL] = "2"
    try:
        tensorflow = importlib.import_module("tensorflow")
    except ModuleNotFoundError as error:
        if error.name != "tensorflow":
            raise
        raise ValueError(f"SavedModels need TensorFlow: {install_command('tensorflow')}") from None
    if quiet:
        tensorflow.get_logger().setLevel("ERROR")
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ValueError(f"modules names '{module}', which cannot be imported: {error}") from None
    return tensorflow
