"""model_warmup of Triton's ModelConfig -> samples that a model runs before it is ready."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from tensorgate.adapters.importers.common import Source
from tensorgate.adapters.importers.triton_repository.tensors import datatype, inside

FOLDER: Final = "warmup"
"""Below the model's folder: where the files of samples lie."""


def warmup(source: Source, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The key `warmup`, if there are samples. Triton repeats the inputs, which are of one row, for the whole batch."""
    samples = [_sample(source, index, each, folder) for index, each in enumerate(source.config.model_warmup)]
    return {"warmup": samples} if samples else {}


def _sample(source: Source, index: int, sample: Any, folder: Path) -> dict[str, Any]:
    key = f"model_warmup[{index}]"
    rows = max(sample.batch_size, 1)
    if 0 < source.config.max_batch_size < rows:
        raise source.wrong(f"{key}.batch_size", f"{rows} is more than max_batch_size, {source.config.max_batch_size}")
    entry: dict[str, Any] = {"name": sample.name, "batch_size": rows, "count": max(sample.count, 1)}
    declared = {each.name: each.data_type for each in source.config.input}
    inputs = {}
    for name in sorted(sample.inputs):
        given = sample.inputs[name]
        said = datatype(source, f"{key}.inputs", given.data_type)
        wanted = declared.get(name, given.data_type)
        if given.data_type != wanted:
            expected = datatype(source, f"{key}.inputs", wanted)
            raise source.wrong(f"{key}.inputs", f"'{name}' is {said}, but {expected} is declared")
        if min(given.dims, default=1) < 0:
            raise source.wrong(f"{key}.inputs", f"each of the dims {list(given.dims)} of '{name}' must be known")
        inputs[name] = {"shape": list(given.dims)} | _data(source, f"{key}.inputs", given, folder)
    return entry | {"inputs": inputs}


def _data(source: Source, key: str, given: Any, folder: Path) -> dict[str, str]:
    choice = given.WhichOneof("input_data_type")
    if choice == "input_data_file":
        return {"file": str(folder / FOLDER / inside(source, key, given.input_data_file))}
    return {"data": "random" if choice == "random_data" else "zeros"}
