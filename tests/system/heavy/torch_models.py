"""Writes PyTorch's programs of the kinds that people have, by torch itself: torch_models.py FOLDER.

Runs in the environment .venv-torch.
"""

from __future__ import annotations

import io
import json
import sys
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

warnings.simplefilter("ignore")  # TorchScript is deprecated
Dim = torch.export.Dim


class Identity(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class AddSub(torch.nn.Module):
    def forward(self, INPUT0: torch.Tensor, INPUT1: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: N803
        return INPUT0 + INPUT1, INPUT0 - INPUT1


class Rows(torch.nn.Module):
    """What every row says, and how many rows the run had."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        if bool((x < 0).any()):
            raise ValueError("x must not be negative")
        return {"sum": x.sum(1), "rows": torch.full([x.shape[0]], x.shape[0])}


class Pair(NamedTuple):
    low: torch.Tensor
    high: torch.Tensor


class Bounds(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> Pair:
        return Pair(x.min(1)[0], x.max(1)[0])


class Scale(torch.nn.Module):
    """Numbers among its arguments, and one that may be left out."""

    def forward(self, x: torch.Tensor, by: float, times: int = 1, plus: torch.Tensor | None = None) -> torch.Tensor:
        y = x * by * times
        return y if plus is None else y + plus


class Several(torch.nn.Module):
    def forward(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        return [tensors[0] - tensors[1], tensors[1] * 2]


class ByName(torch.nn.Module):
    def forward(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"difference": tensors["a"] - tensors["b"], "none": torch.zeros(0, 3)}


class Careless(torch.nn.Module):
    """Writes to what it is given."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(-1).add_(1).view(x.shape)


class Counter(torch.nn.Module):
    """Gives its own state away."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += x.sum()
        return self.count


class Product(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b


class Ballast(torch.nn.Module):
    """64 MiB of weights."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4096, 4096, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


class Classifier(torch.nn.Module):
    """A small convolution, whose results a dictionary names."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.convolution = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.head = torch.nn.Linear(8, 4)

    def forward(self, image: torch.Tensor, *, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        pooled = torch.relu(self.convolution(image * scale[:, None, None, None])).mean((2, 3))
        return {"logits": self.head(pooled), "pooled": pooled}


class Nested(torch.nn.Module):
    """Arguments in dictionaries and tuples, and a constant among them."""

    def forward(self, both: dict[str, torch.Tensor], rest: tuple[torch.Tensor, int]) -> tuple[torch.Tensor, Any]:
        return both["a"] + both["b"] * rest[1], {"rest": rest[0]}


class Lengths(torch.nn.Module):
    """A number that is an input, sizes that depend on others, BF16."""

    def forward(self, x: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.cat([x, x], 1) * k, x.to(torch.bfloat16)


def script(folder: Path, module: torch.nn.Module) -> None:
    folder.mkdir(parents=True)
    torch.jit.script(module.eval()).save(str(folder / "model.pt"))


def export(folder: Path, module: torch.nn.Module, *args: Any, **more: Any) -> Any:
    folder.mkdir(parents=True)
    program = torch.export.export(module.eval(), args, **more)
    torch.export.save(program, folder / "model.pt2")
    return program


def save_scripts(folder: Path) -> None:
    for name, module in {
        "identity": Identity(),
        "add_sub": AddSub(),
        "rows": Rows(),
        "bounds": Bounds(),
        "scale": Scale(),
        "several": Several(),
        "by_name": ByName(),
        "careless": Careless(),
        "counter": Counter(),
        "product": Product(),
        "ballast": Ballast(),
    }.items():
        script(folder / name / "1", module)


def save_exports(folder: Path) -> None:
    rows = Dim("rows", max=16)
    images = torch.ones(2, 3, 8, 8)
    export(
        folder / "classifier/1",
        Classifier(),
        images,
        kwargs={"scale": torch.ones(2)},
        dynamic_shapes={"image": {0: rows}, "scale": {0: rows}},
    )
    x, y, z = (torch.full((2, 3), number) for number in (1.0, 2.0, 3.0))  # what is the same here is one for ever
    export(folder / "nested/1", Nested(), {"a": x, "b": y}, (z, 5))
    wide = Dim("wide", min=2, max=64)
    export(folder / "lengths/1", Lengths(), x, 7, dynamic_shapes={"x": {0: rows, 1: wide}, "k": Dim.DYNAMIC})
    export(folder / "careless_export/1", Careless(), x)
    export(folder / "counter_export/1", Counter(), x)
    export(folder / "add_sub_export/1", AddSub(), x, y, dynamic_shapes=({0: rows}, {0: rows}))


def save_compiled(folder: Path) -> None:
    """Machine code, by the compiler that is here."""
    rows = Dim("rows", min=1, max=16)
    x, y = torch.zeros(2, 3), torch.ones(2, 3)
    program = torch.export.export(AddSub(), (x, y), dynamic_shapes=({0: rows}, {0: rows}))
    (folder / "compiled/1").mkdir(parents=True)
    torch._inductor.aoti_compile_and_package(program, package_path=str(folder / "compiled/1/model.pt2"))


class Touch:
    """Unpickled, it leaves a mark."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return (eval, (self.command,))


def rewritten(folder: Path, name: str, change: Callable[[str, bytes], bytes]) -> None:
    """A sound program, its records changed."""
    path = folder / name / "1"
    path.mkdir(parents=True)
    sound = folder / "add_sub_export/1/model.pt2"
    with zipfile.ZipFile(sound) as old, zipfile.ZipFile(path / "model.pt2", "w", zipfile.ZIP_STORED) as new:
        for record in old.namelist():
            new.writestr(record, change(record.partition("/")[2], old.read(record)))


def in_graph(change: Callable[[Any], None]) -> Callable[[str, bytes], bytes]:
    def changed(record: str, content: bytes) -> bytes:
        if record != "models/model.json":
            return content
        model = json.loads(content)
        change(model["graph_module"]["graph"])
        return json.dumps(model).encode()

    return changed


def save_bad_programs(folder: Path) -> None:
    """Files that leave a mark when torch reads them as they are, each made of one that does not."""
    command = f"__import__('pathlib').Path({str(folder / 'EXECUTED')!r}).touch()"

    def pickled(record: str, content: bytes) -> bytes:
        if record != "data/sample_inputs/model.pt":
            return content
        buffer = io.BytesIO()
        torch.save(Touch(command), buffer)
        return buffer.getvalue()

    def calls(graph: Any) -> None:
        graph["nodes"][0]["target"] = "torch.os.system"

    def evaluates(graph: Any) -> None:
        size = next(iter(graph["tensor_values"].values()))["sizes"][0]
        size["as_expr"]["expr_str"] = command

    def names(graph: Any) -> None:
        graph["inputs"][0]["as_tensor"]["name"] = f"x={command}"

    rewritten(folder, "bad_sample", pickled)
    rewritten(folder, "bad_target", in_graph(calls))
    rewritten(folder, "bad_size", in_graph(evaluates))
    rewritten(folder, "bad_name", in_graph(names))


def save_other_files(folder: Path) -> None:
    """What people take for a model: pickles, and half a file."""
    places = {name: folder / name / "1" for name in ("bad_pickle", "bad_module", "bad_old", "bad_cut")}
    for place in places.values():
        place.mkdir(parents=True)
    torch.save(AddSub().state_dict(), places["bad_pickle"] / "model.pt")
    torch.save(AddSub(), places["bad_module"] / "model.pt")
    torch.save({"a": torch.ones(1)}, places["bad_old"] / "model.pt", _use_new_zipfile_serialization=False)
    whole = (folder / "add_sub/1/model.pt").read_bytes()
    (places["bad_cut"] / "model.pt").write_bytes(whole[: len(whole) // 2])


if __name__ == "__main__":
    models = Path(sys.argv[1])
    save_scripts(models)
    save_exports(models)
    save_compiled(models)
    save_bad_programs(models)
    save_other_files(models)
