"""What `forward` of a TorchScript file takes and gives, read from the source text in it: nothing is unpickled or run.

A file is a zip: data.pkl names the class of the module, and code/ has that class as text, in a form that torch's own
printer writes. It says names and kinds, and no datatypes or shapes. Source: PyTorch, torch/csrc/jit/serialization.
"""

from __future__ import annotations

import pickletools
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_FORWARD: Final = re.compile(r"\n  def forward\((.*?)\)\s*->\s*(.+?):\n", re.DOTALL)
_OPTIONAL: Final = re.compile(r"Optional\[(.+)\]")
_TUPLE: Final = re.compile(r"Tuple\[(.+)\]")
_DATATYPES: Final = {"Tensor": "FP32", "int": "INT64", "float": "FP32", "bool": "BOOL"}
"""What `forward` names -> what is declared; of a Tensor it is a guess."""
_MAX_TEXT_BYTES: Final = 16 << 20
_MAX_OPCODES: Final = 16


@dataclass(frozen=True, slots=True)
class ForwardSignature:
    """Inputs and outputs as they would stand in the YAML, of any rank where they are tensors."""

    inputs: tuple[dict[str, Any], ...]
    outputs: tuple[dict[str, Any], ...]


def forward_signature(file: Path) -> ForwardSignature | None:
    """None where the file is no TorchScript, or `forward` takes or gives what is no list of tensors. Raises OSError."""
    try:
        with zipfile.ZipFile(file) as archive:
            found = _FORWARD.search(_class_text(archive))
    except (zipfile.BadZipFile, KeyError, ValueError, NotImplementedError):
        return None
    if found is None:
        return None
    inputs = [_input(each) for each in list(_apart(found[1]))[1:]]
    results = _TUPLE.fullmatch(found[2].strip())
    outputs = [each.strip() for each in _apart(results[1])] if results else [found[2].strip()]
    if not inputs or None in inputs or set(outputs) != {"Tensor"}:
        return None
    names = [f"output__{index}" for index in range(len(outputs))] if results else ["output"]
    given = tuple([{"name": name, "datatype": "FP32"} for name in names])
    return ForwardSignature(tuple([each for each in inputs if each is not None]), given)


def _class_text(archive: zipfile.ZipFile) -> str:
    """The text of the module's class. Raises KeyError, ValueError."""
    data = next(name for name in [*archive.namelist(), ""] if name.endswith("/data.pkl") or not name)
    with archive.open(data) as opened:
        head = opened.read(1 << 10)
    opcodes = pickletools.genops(head)
    for (opcode, argument, _), _ in zip(opcodes, range(_MAX_OPCODES), strict=False):
        if opcode.name == "GLOBAL":
            module, _, name = str(argument).partition(" ")
            place = f"{data.removesuffix('data.pkl')}code/{module.replace('.', '/')}.py"
            with archive.open(place) as opened:
                text = opened.read(_MAX_TEXT_BYTES).decode(errors="replace")
            return "\n" + text[text.index(f"class {name}(Module):") :]
    raise ValueError("no class")


def _apart(text: str) -> Iterator[str]:
    """The parts between commas that stand in no brackets."""
    depth = start = 0
    for index, letter in enumerate(text):
        depth += (letter in "[(") - (letter in "])")
        if letter == "," and not depth:
            yield text[start:index]
            start = index + 1
    if text[start:].strip():
        yield text[start:]


def _input(argument: str) -> dict[str, Any] | None:
    """`x: Optional[Tensor]=None` -> an input."""
    head, equals, _ = argument.partition("=")
    name, _, kind = (each.strip() for each in head.partition(":"))
    optional = _OPTIONAL.fullmatch(kind)
    datatype = _DATATYPES.get(optional[1] if optional else kind)
    if datatype is None:
        return None
    shape = {} if "Tensor" in kind else {"shape": [1]}
    left_out = {"optional": True} if optional or equals else {}
    return {"name": name, "datatype": datatype} | shape | left_out
