"""What Triton's TensorFlow backend reads from `parameters` -> the options of ours."""

from __future__ import annotations

from typing import Any, Final

from tensorgate.adapters.importers.common import Source
from tensorgate.adapters.importers.triton_repository.threads import threads

_THREADS: Final = {"TF_NUM_INTRA_THREADS": "intra_op_threads", "TF_NUM_INTER_THREADS": "inter_op_threads"}
_IGNORED: Final = {
    "TF_USE_PER_SESSION_THREADS": "is ignored: all models of the process share TensorFlow's threads",
    "TF_INIT_OPS_FILE": "is ignored: a SavedModel says itself what initializes it",
}


def tensorflow_options(source: Source) -> dict[str, Any]:
    """Options that are set. Raises ValueError for a value that Triton would refuse, too."""
    options: dict[str, Any] = {}
    for key in sorted(source.config.parameters):
        value = source.config.parameters[key].string_value
        if key in _THREADS:
            options |= threads(source, key, value, _THREADS[key])
        elif key == "TF_GRAPH_TAG":
            options["tags"] = [value]
        elif key == "TF_SIGNATURE_DEF":
            options["signature"] = value
        elif key in _IGNORED:
            source.note("parameters", _IGNORED[key], at=key)
    return options
