"""What `tensorgate import FILE` says and writes: a folder of a repository, with a version, labels and model.yaml."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from tensorgate.adapters.importers.common import Imported, document, flow
from tensorgate.backends.classic.library import INPUT, LABEL, PROBABILITIES, ClassicModel, read
from tensorgate.gateway.cli.classic.conversion import NotConverted, to_onnx
from tensorgate.gateway.cli.classic.proof import Proof, compare, run_onnx
from tensorgate.gateway.cli.classic.rows import make_rows, thresholds_of
from tensorgate.gateway.contract.tensor import BYTES, DATATYPES, DTYPES, Array
from tensorgate.gateway.models.model_folder import FILE, version_folders

Print: TypeAlias = Callable[[str], None]

MAX_BATCH_SIZE: Final = 256
_LABELS: Final = "labels.txt"


@dataclass(frozen=True, slots=True)
class Wish:
    """What the command line asks for. `datatype`: of the input, None is what proves right; `own`: to be computed by its
    library in any case; `trusted`: whether it may be. `allow_ties`: of two classes equally likely, either will do;
    `missing`: whether rows may lack values.
    """

    file: Path
    output: Path
    name: str = ""
    datatype: str | None = None
    tolerance: float = 1e-5
    own: bool = False
    trusted: bool = False
    allow_ties: bool = False
    missing: bool = True


@dataclass(slots=True)
class _Converted:
    """An ONNX form with what has been said of it."""

    datatype: str
    content: bytes
    answers: Mapping[str, Array]
    proof: Proof
    said: Sequence[str] = field(default_factory=list)


def import_model(wish: Wish, write: Print, warn: Print) -> int:
    """Convert, prove and write a model -> the exit status: 0 if it can be served as it was written, 1 if not, 2 if it
    cannot be read.
    """
    try:
        model = read(wish.file, trusted=wish.trusted)
        write(f"{wish.file}: {model.library}, {model.kind}, {model.features} features{_classes(model)}")
        converted = None if wish.own else _convert(model, wish, write)
        return _write(model, converted, wish, write, warn)
    except (ValueError, OSError) as error:
        warn(str(error))
        return 2


def _classes(model: ClassicModel) -> str:
    if not model.classes:
        return ""
    shown = ", ".join(map(str, model.classes[:5])) + (", …" if len(model.classes) > 5 else "")
    return f", {len(model.classes)} classes: {shown}"


def _convert(model: ClassicModel, wish: Wish, write: Print) -> _Converted | None:
    """The first form whose proof holds; None if there is none. Trees are compared in FP32 by ONNX, whatever comes."""
    first = ("FP64", "FP32") if model.library == "scikit-learn" else ("FP32", "FP64")
    for datatype in (wish.datatype,) if wish.datatype else first:
        try:
            converted = _try(model, datatype, wish)
        except NotConverted as error:
            write(f"{datatype}: not converted: {error}")
            continue
        for line in converted.said:
            write(line)
        if converted.proof.holds:
            return converted
    return None


def _try(model: ClassicModel, datatype: str, wish: Wish) -> _Converted:
    """Raises NotConverted, also for a form that does not run."""
    made = to_onnx(model, datatype)
    thresholds = thresholds_of(made)
    dtype = DTYPES[datatype]
    missing = wish.missing and _takes_missing(model, dtype)
    rows = make_rows(model.features, thresholds, model.categories, dtype, missing=missing)
    content: bytes = made.SerializeToString()
    try:
        answers = run_onnx(content, rows.x)
        wanted = model.predict(rows.x)
        proof = compare(wanted, answers, wish.tolerance, allow_ties=wish.allow_ties)
    except Exception as error:  # ONNX Runtime's own, of a form that it cannot run
        raise NotConverted(f"it does not run: {(str(error).splitlines() or [''])[0][:300]}") from None
    said = [f"{datatype}: compared over {rows.about()}", *(f"  {line}" for line in proof.lines())]
    if rows.missing and not proof.holds:
        whole, other = ({name: each[: -rows.missing] for name, each in some.items()} for some in (wanted, answers))
        if compare(whole, other, wish.tolerance, allow_ties=wish.allow_ties).holds:
            said.append("  it holds for rows that have all their values: --no-missing, if yours do")
    return _Converted(datatype, content, answers, proof, said)


def _takes_missing(model: ClassicModel, dtype: np.dtype[Any]) -> bool:
    """Whether the library predicts where values are missing."""
    try:
        model.predict(np.full((1, model.features), np.nan, dtype))
    except ValueError:
        return False
    return True


# -------------------------------------------------------------------------------------------------------------- writing


def _write(model: ClassicModel, converted: _Converted | None, wish: Wish, write: Print, warn: Print) -> int:
    name = wish.name or wish.file.stem
    place = wish.output / name
    place.mkdir(parents=True, exist_ok=True)
    version = place / str(max(version_folders(place), default=0) + 1)
    version.mkdir()
    if converted is not None:
        (version / "model.onnx").write_bytes(converted.content)
        datatype, answers = converted.datatype, converted.answers
        entry: dict[str, Any] = {"backend": "onnx"}
    else:
        shutil.copyfile(wish.file, version / f"model{wish.file.suffix.lower()}")
        datatype = wish.datatype or ("FP64" if model.is_double else "FP32")
        answers = _narrowed(model.predict(np.zeros((2, model.features), DTYPES[datatype])), datatype)
        entry = {"backend": "classic", "process": "own", "trusted": wish.trusted}
    entry |= {
        "max_batch_size": MAX_BATCH_SIZE,
        "inputs": [{"name": INPUT, "datatype": datatype, "shape": [-1, model.features]}],
        "outputs": [_declared(output, array) for output, array in answers.items()],
    }
    if PROBABILITIES in answers:
        (place / _LABELS).write_text("".join(f"{each}\n" for each in model.classes), encoding="utf-8")
        entry["class_labels"] = {PROBABILITIES: _LABELS}
    said = [f"Made of {wish.file.name}: {model.library}, {model.kind}."]
    said += [line.strip() for line in converted.said] if converted else ["Computed by its library."]
    text = "".join(f"# {line}\n" for line in said) + "".join(f"{key}: {flow(value)}\n" for key, value in entry.items())
    (place / FILE).write_text(text, encoding="utf-8")
    write(f"written: {version}, and {place / FILE}, for repositories: [{wish.output}]; or, in a configuration:")
    whole = entry | {"path": str(place.absolute())}
    if "class_labels" in entry:
        whole["class_labels"] = {PROBABILITIES: str((place / _LABELS).absolute())}
    for line in document([], [], [Imported(name, whole)], Path.cwd()).strip().splitlines():
        write(line)
    if converted is not None:
        return 0
    if not wish.own:
        warn("no ONNX of it answers alike: it is computed by its library, in a process of its own")
    if not wish.trusted:
        warn("and not before its entry says trusted: true, as import --trusted writes it")
        return 1
    return 0


def _narrowed(answers: Mapping[str, Array], datatype: str) -> Mapping[str, Array]:
    """Numbers in the precision of the input; labels as they are."""
    return {name: array if name == LABEL else array.astype(DTYPES[datatype]) for name, array in answers.items()}


def _declared(name: str, array: Array) -> dict[str, Any]:
    """An output as an entry declares it, of any number of rows."""
    datatype = "BYTES" if array.dtype == BYTES or array.dtype.kind in "US" else DATATYPES[array.dtype]
    return {"name": name, "datatype": datatype, "shape": [-1, *array.shape[1:]]}
