"""Which copies of a model lie on which device, and that one which cannot be loaded leaves nothing behind."""

import contextlib
from pathlib import Path
from typing import Any

import pytest

from backends import instances
from backends.instances import load_instances
from gateway.ports import BackendKind, ModelSource, Options


class Copy:
    """Remembers where it was loaded; `auto` is the second GPU, so that nobody takes it for the first by chance."""

    def __init__(self, world: "World", source: ModelSource) -> None:
        if source.device == world.broken:
            raise ValueError("no room")
        name = source.device if source.device != "auto" else world.best
        self.device: Any = type("Place", (), {"name": name})
        self._world = world
        world.open.append(name)

    def close(self) -> None:
        self._world.open.remove(self.device.name)


class World:
    """A machine with some GPUs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, gpus: int, best: str = "cpu", broken: str = "") -> None:
        self.best, self.broken, self.open = best, broken, list[str]()
        monkeypatch.setattr(instances, "cuda_devices", lambda: gpus)

    def load(self, placement: list[str], copies: int = 1) -> list[str]:
        source = ModelSource("m", 1, Path(), "", (), (), 0, None)
        kind = BackendKind(Options, lambda source: Copy(self, source))  # type: ignore[arg-type,return-value]
        with contextlib.ExitStack() as undo:
            loaded = load_instances(kind, source, placement, copies, undo)
            undo.pop_all()
        return [copy.device.name for copy in loaded]


@pytest.mark.parametrize(
    ("placement", "copies", "gpus", "best", "where"),
    [
        (["cpu"], 2, 0, "cpu", ["cpu", "cpu"]),
        (["auto"], 2, 2, "cuda:1", ["cuda:1", "cuda:1"]),
        (["cuda:*"], 1, 3, "cpu", ["cuda:0", "cuda:1", "cuda:2"]),
        (["cuda:*"], 2, 2, "cpu", ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]),
        (["all"], 2, 0, "cpu", ["cpu", "cpu"]),
        (["all"], 2, 2, "cpu", ["cpu", "cpu"]),
        (["all"], 2, 2, "cuda:1", ["cuda:1", "cuda:0", "cuda:1", "cuda:0"]),
        (["cuda:1", "cuda:1", "cpu"], 1, 2, "cpu", ["cuda:1", "cuda:1", "cpu"]),
    ],
    ids=["host", "auto", "every GPU", "twice", "all without", "all for a backend without", "all", "listed"],
)
def test_where_copies_are(
    monkeypatch: pytest.MonkeyPatch, placement: list[str], copies: int, gpus: int, best: str, where: list[str]
) -> None:
    assert World(monkeypatch, gpus, best).load(placement, copies) == where


def test_every_gpu_of_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"device cuda:\* was asked for, but no CUDA device can be used here"):
        World(monkeypatch, 0).load(["cuda:*"])


def test_what_was_loaded_before_a_failure_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, 2, broken="cuda:1")
    with pytest.raises(ValueError, match="no room"):
        world.load(["cpu", "cuda:0", "cuda:1"])
    assert world.open == []
