"""torch, imported when the first program asks for it: it takes seconds and hundreds of megabytes.

What it keeps for the whole process is set here, by the first model that says anything of it: threads, and how a GPU
multiplies FP32.
"""

from __future__ import annotations

import importlib
import logging
import threading
import warnings
from typing import Any, Final

from tensorgate.backends.execution.cuda_install import cuda_problem
from tensorgate.gateway.contract.extras import install_command

log = logging.getLogger(__name__)

_lock: Final = threading.Lock()
_set: Final[dict[str, Any]] = {}


def import_torch() -> Any:
    """The module. Raises ValueError naming what to install.

    Its warnings of arrays that may not be written to are none here: what writes to its inputs gets copies. TorchScript
    is deprecated, and is served as long as torch can read it.
    """
    try:
        torch = importlib.import_module("torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ValueError(f"PyTorch's programs need torch: {install_command('torch')}") from None
    for text in ("The given NumPy array is not writ", "`torch.jit.load` is (deprecated|not supported)"):
        warnings.filterwarnings("ignore", text)
    return torch


def gpu_problem() -> str:
    """Why programs cannot run on a GPU here, empty where they can."""
    if problem := cuda_problem():
        return problem
    try:
        return "" if import_torch().cuda.is_available() else "this build of torch can use no GPU here"
    except ValueError as error:
        return str(error)


def set_once(model: str, option: str, value: Any, apply: Any) -> None:
    """Set what all models of the process share. The first word counts; the log tells of another one."""
    with _lock:
        if option not in _set:
            apply(value)
            _set[option] = value
        elif _set[option] != value:
            log.warning(
                "model %s: %s is %s already, as an earlier model of this process wanted it", model, option, _set[option]
            )
