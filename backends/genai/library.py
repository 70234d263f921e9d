"""onnxruntime_genai, imported when the first model asks for it."""

from __future__ import annotations

import importlib
from typing import Any

from tensorgate.backends.execution.cuda_install import cuda_problem
from tensorgate.gateway.contract.extras import install_command


def import_genai() -> Any:
    """The module. Raises ValueError naming what to install."""
    try:
        return importlib.import_module("onnxruntime_genai")
    except ModuleNotFoundError as error:
        if error.name != "onnxruntime_genai":
            raise
        raise ValueError(f"models of genai_config.json need onnxruntime-genai: {install_command('genai')}") from None


def gpu_problem() -> str:
    """Why models cannot generate on a GPU here, empty where they can."""
    if problem := cuda_problem():
        return problem
    try:
        return "" if import_genai().is_cuda_available() else "this build of onnxruntime-genai can use no GPU here"
    except ValueError as error:
        return str(error)
