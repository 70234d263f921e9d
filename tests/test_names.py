"""One meaning a name: no public class name stands twice in the product."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_no_public_class_name_stands_twice() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for room in ("gateway", "adapters", "backends"):
        for file in sorted((ROOT / room).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(f"{file.relative_to(ROOT)}:{node.lineno}")
    double = {name: found for name, found in places.items() if len(found) > 1}
    assert double == {}
