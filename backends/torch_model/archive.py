"""What a model file holds, looked at before torch reads it.

torch reads some files by unpickling them or by evaluating what stands in them, and who wrote such a file runs code
here. So pickles are never read. TorchScript is none: torch's own reader in C++ makes tensors of it, and no more. An
exported program is JSON and raw weights, but torch would unpickle what lies beside them, call whatever a node names,
and evaluate what stands for a size: `check_exported` refuses all that, and machine code is refused, too, unless the
operator says that the file is `trusted`. What is left calls torch's operators alone; some of those read and write
files, so programs come from the operator, as all does that runs here.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Literal

Form = Literal["script", "exported", "compiled"]
READ_BY: Final[dict[Form, str]] = {
    "script": "torch.jit.load",
    "exported": "torch.export.load",
    "compiled": "torch._inductor.aoti_load_package",
}
_EXPORT: Final = (
    "save the model with torch.export.save(torch.export.export(model.eval(), example_inputs), 'model.pt2') "
    "or torch.jit.script(model.eval()).save('model.pt')"
)
_OPERATOR: Final = re.compile(
    r"torch\.ops\.(?!higher_order\.)[a-zA-Z]\w*\.\w+\.(?!_)\w+"
    r"|torch\.ops\.higher_order\.(?:cond|while_loop|scan|associative_scan|map_impl|wrap_with_set_grad_enabled|"
    r"wrap_with_autocast)"
    r"|(?:_operator|math)\.[a-z]\w*"
    r"|torch\.(?:sym_\w+|_sym_\w+)"
)
_FUNCTIONS: Final = frozenset(
    [
        "Add",
        "Mul",
        "Pow",
        "Integer",
        "Rational",
        "Float",
        "Equality",
        "Unequality",
        "LessThan",
        "StrictLessThan",
        "GreaterThan",
        "StrictGreaterThan",
        "And",
        "Or",
        "Not",
        "FloorDiv",
        "ModularIndexing",
        "Where",
        "PythonMod",
        "Mod",
        "CleanDiv",
        "CeilToInt",
        "FloorToInt",
        "CeilDiv",
        "LShift",
        "RShift",
        "PowByNatural",
        "FloatPow",
        "FloatTrueDiv",
        "IntTrueDiv",
        "IsNonOverlappingAndDenseIndicator",
        "TruncToFloat",
        "TruncToInt",
        "RoundToInt",
        "RoundDecimal",
        "ToFloat",
        "Identity",
        "Max",
        "Min",
        "Abs",
        "floor",
        "ceiling",
    ]
)
_QUOTED: Final = re.compile(r"(?:Symbol|Dummy)\('[a-zA-Z]\w*'(?:, \w+=(?:True|False|\d+))*\)|(?<=Float\()'[\d.e+-]+'")
_EXPRESSION: Final = re.compile(r"(?:[\s\d+*/%(),<>=!&|~-]|\d\.\d|[a-zA-Z]\w*)*")
_CALLED: Final = re.compile(r"([a-zA-Z]\w*)\s*\(")
_NAME: Final = re.compile(r"(?:[a-zA-Z_][\w.]*)?")
_WEIGHTS: Final = re.compile(r"data/(weights|constants)/.*_config\.json")


def form_of(path: Path) -> Form:
    """Raises ValueError for what is neither, naming the remedy."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.partition("/")[2] for name in archive.namelist()]
    except zipfile.BadZipFile:
        raise ValueError(f"{path} is no archive of PyTorch's; pickles are never read: {_EXPORT}") from None
    if any(name.startswith("data/aotinductor/") for name in names):
        return "compiled"
    if any(name.startswith("models/") for name in names):
        return "exported"
    if "constants.pkl" in names and any(name.startswith("code/") for name in names):
        return "script"
    if "data.pkl" in names:
        raise ValueError(f"{path} was written by torch.save: it is a pickle, and pickles are never read: {_EXPORT}")
    raise ValueError(f"{path} has neither TorchScript nor an exported program of torch 2.9 or later: {_EXPORT}")


def check_exported(torch: Any, path: Path) -> None:
    """Raises ValueError naming what in an exported program would run code as soon as it is read or called.

    The archive is read with torch's own reader, so that both see the same.
    """
    reader = torch._C.PyTorchFileReader(str(path))
    records = reader.get_all_records()
    if len(set(records)) < len(records):
        raise _refused(path, "two records of one name")
    for record in records:
        if record.endswith(".pt"):
            _check_tensors(torch, path, record, reader.get_record(record))
        elif record.endswith(".json"):
            for found in _objections(record, json.loads(reader.get_record(record))):
                raise _refused(path, found)


def _check_tensors(torch: Any, path: Path, record: str, content: bytes) -> None:
    """Example inputs come as tensors, which the reader for weights reads; for what it refuses, torch would unpickle."""
    try:
        if content:
            torch.load(io.BytesIO(content), weights_only=True)
    except Exception:  # its reader raises UnpicklingError, RuntimeError, EOFError, …
        raise _refused(path, f"a pickle ({record})") from None


def _objections(record: str, content: Any) -> Iterator[str]:
    if _WEIGHTS.fullmatch(record):
        for name, payload in content.get("config", {}).items():
            if payload.get("use_pickle"):
                yield f"'{name[:80]}' as a pickle"
    for key, value in _strings(content):
        check = _CHECKS.get(key)
        if check is not None and not check(value):
            yield f"{key} '{value[:80]}'"
        if "__enum__" in value:
            yield f"the name of a class '{value[:80]}'"


def _strings(content: Any) -> Iterator[tuple[str, str]]:
    """Every text in it, below the key that it stands under."""
    waiting = [("", content)]
    while waiting:
        key, value = waiting.pop()
        if isinstance(value, str):
            yield key, value
        elif isinstance(value, list):
            waiting.extend([(key, each) for each in value])
        elif isinstance(value, dict):
            waiting.extend(value.items())


def _is_plain(expression: str) -> bool:
    """Arithmetic of numbers, sizes and the functions that torch itself writes."""
    expression = _QUOTED.sub("s", expression)
    return (
        _EXPRESSION.fullmatch(expression) is not None
        and "__" not in expression
        and _FUNCTIONS.issuperset(_CALLED.findall(expression))
    )


_CHECKS: Final[dict[str, Callable[[str], object]]] = {
    "target": _OPERATOR.fullmatch,
    "as_operator": _OPERATOR.fullmatch,
    "expr_str": _is_plain,
    "name": _NAME.fullmatch,
}


def _refused(path: Path, found: str) -> ValueError:
    return ValueError(
        f"{path} holds {found}, by which it could run code of its own; say trusted: true if that is what it should"
    )
