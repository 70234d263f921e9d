"""Answers of `tensorgate call` for people."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tensorgate.gateway.cli.model_call import call


class Answering:
    """Plays a Gateway that gives these outputs."""

    def __init__(self, outputs: list[dict[str, Any]]) -> None:
        self._outputs = outputs

    def ask(self, path: str) -> Any:
        return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1]}]}

    def send(self, path: str, body: bytes, headers: Mapping[str, str]) -> Any:
        return {"model_name": "m", "model_version": "1", "outputs": self._outputs}


def output(name: str, datatype: str, shape: list[int], data: list[Any]) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}


LONG = "a text of which a line has no room for " * 4
TABLES: list[tuple[str, list[dict[str, Any]], list[str]]] = [
    (
        "scalars of two outputs",
        [
            output("score", "FP64", [3], [0.25, 1e-9, 12345678.0]),
            output("label", "BYTES", [3], ["cat", "dog", "köt"]),
        ],
        [
            "row  score: FP64  label: BYTES",
            "0    0.25         cat",
            "1    1e-09        dog",
            "2    1.23457e+07  köt",
        ],
    ),
    ("short vectors", [output("y", "INT32", [2, 2], [1, 2, 3, 4])], ["row  y: INT32", "0    1 2", "1    3 4"]),
    ("truths", [output("y", "BOOL", [2], [True, False])], ["row  y: BOOL", "0    true", "1    false"]),
    ("no terminal obeys", [output("y", "BYTES", [1], ["\x1b[31m\n"])], ["row  y: BYTES", "0    \\x1b[31m\\n"]),
    (
        "many rows",
        [output("y", "INT32", [53], list(range(53)))],
        ["row  y: INT32", *(f"{row:<3}  {row}" for row in range(50)), "3 more rows (--json has all)"],
    ),
    ("three dimensions", [output("y", "INT32", [1, 1, 2], [1, 2])], ["  y: INT32 [1, 1, 2] [1, 2]"]),
    ("a scalar", [output("y", "INT32", [], [1])], ["  y: INT32 [] [1]"]),
    (
        "other rows",
        [output("a", "INT32", [1], [1]), output("b", "INT32", [2], [1, 2])],
        ["  a: INT32 [1] [1]", "  b: INT32 [2] [1, 2]"],
    ),
    ("too wide", [output("y", "BYTES", [1], [LONG])], [f"  y: BYTES [1] {json.dumps([LONG])}"]),
    ("no rows", [output("y", "FP32", [0, 2], [])], ["  y: FP32 [0, 2] []"]),
    ("no outputs", [], []),
]


@pytest.mark.parametrize(("outputs", "lines"), [row[1:] for row in TABLES], ids=[row[0] for row in TABLES])
def test_answers_are_tables_where_rows_fit_on_lines(outputs: list[dict[str, Any]], lines: list[str]) -> None:
    printed: list[str] = []
    call(Answering(outputs), "m", None, ["1"], printed.append, as_json=False)
    assert printed == ["m version 1", *lines]
