"""Which copies of a model lie on which device, and that one which cannot be loaded leaves nothing behind."""

import contextlib
from pathlib import Path
from typing import Any

import onnxruntime
import pytest

from tensorgate.backends.execution import gpu, instances
from tensorgate.backends.execution.device import CudaDevice
from tensorgate.backends.execution.instances import load_instances
from tensorgate.backends.onnx import backend as onnx_runtime
from tensorgate.gateway.contract.backend import BackendKind, ModelSource
from tensorgate.gateway.contract.errors import Code
from tensorgate.gateway.contract.metrics import Gpu
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.models.loader import code_of, error_line


class Copy:
    """Remembers where it was loaded; `auto` is the second GPU, so that nobody takes it for the first by chance."""

    def __init__(self, world: "World", source: ModelSource) -> None:
        if source.device == world.broken:
            raise ValueError("no room")
        name = source.device if source.device != "auto" else world.best
        self.device: Any = type("Place", (), {"name": name})
        self._world = world
        world.open.append(name)
        world.threads.add(source.threads)

    def close(self) -> None:
        self._world.open.remove(self.device.name)


class World:
    """A machine with some GPUs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, gpus: int, best: str = "cpu", broken: str = "") -> None:
        self.best, self.broken, self.open = best, broken, list[str]()
        self.threads = set[int]()
        monkeypatch.setattr(instances, "cuda_devices", lambda: gpus)

    def load(self, placement: list[str], copies: int = 1, **changes: Any) -> list[str]:
        source = ModelSource("m", 1, Path(), "", (), (), 0, None, **changes)
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


@pytest.mark.parametrize(
    ("placement", "copies", "gpus", "budget", "each"),
    [
        (["cpu"], 1, 0, 8, 8),
        (["cpu"], 3, 0, 8, 2),
        (["cpu"], 16, 0, 8, 1),
        (["cpu"], 4, 0, 0, 0),
        (["cpu", "cuda:0"], 2, 1, 8, 2),
        (["all"], 2, 0, 8, 4),
        (["cuda:*"], 2, 2, 8, 2),
    ],
)
def test_copies_share_the_threads(
    monkeypatch: pytest.MonkeyPatch, placement: list[str], copies: int, gpus: int, budget: int, each: int
) -> None:
    world = World(monkeypatch, gpus)
    world.load(placement, copies, threads=budget)
    assert world.threads == {each}


def test_a_limit_is_for_backends_that_can_keep_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="memory_limit_bytes: this backend takes memory from one pool"):
        World(monkeypatch, 0).load(["cpu"], memory_limit_bytes=1 << 30)


class Arena:
    """ONNX Runtime where a GPU has no room: it says what was asked for."""

    class SessionOptions(onnxruntime.SessionOptions):  # type: ignore[misc]
        pass

    ExecutionMode = onnxruntime.ExecutionMode
    GraphOptimizationLevel = onnxruntime.GraphOptimizationLevel
    asked: list[Any] = []  # noqa: RUF012

    @classmethod
    def InferenceSession(cls, path: str, settings: Any, providers: list[Any], **_: Any) -> Any:  # noqa: N802
        cls.asked.append((settings, providers))
        raise RuntimeError(
            "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Exception during initialization: bfc_arena.cc: Available "
            "memory of 1024 is smaller than requested bytes of 4194304"
        )


def test_a_model_without_room_is_told_with_figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The provider gets the limit; the failed load is RESOURCE_EXHAUSTED to whoever asked for it."""
    (tmp_path / "model.onnx").write_bytes(b"")
    device = object.__new__(CudaDevice)
    device.name, device.index, device.stream_pointer = "cuda:1", 1, 77  # type: ignore[misc]
    monkeypatch.setattr(onnx_runtime, "import_onnxruntime", lambda: Arena)
    monkeypatch.setattr(onnx_runtime, "open_device", lambda wanted, problem: device)
    monkeypatch.setattr(gpu, "read_gpu", lambda name: Gpu(name, "GPU-x", "H200", 80_000_000_000, 79_000_000_000))
    options = onnx_runtime.KIND.options()
    source = ModelSource("m", 1, tmp_path, "cuda:1", (), (), 0, options, threads=3, memory_limit_bytes=1 << 30)
    with pytest.raises(MemoryError) as caught:
        onnx_runtime.KIND.load(source)
    assert error_line(caught.value) == (
        "no room for the model on cuda:1: memory_limit_bytes is 1,073,741,824; 1,000,000,000 of 80,000,000,000 bytes "
        "are free on cuda:1; [ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Exception during initialization: "
        "bfc_arena.cc: Available memory of 1024 is smaller than requested bytes of 4194304"
    )
    assert code_of(caught.value) is Code.RESOURCE_EXHAUSTED
    ((settings, ((provider, given),)),) = Arena.asked
    assert (settings.intra_op_num_threads, provider) == (3, "CUDAExecutionProvider")
    assert (given["gpu_mem_limit"], given["arena_extend_strategy"]) == ("1073741824", "kSameAsRequested")
    assert given["device_id"] == "1"


@pytest.mark.parametrize(("own", "budget", "gets"), [(0, 2, 2), (3, 2, 3), (0, 0, 0)])
def test_a_session_gets_its_share_unless_it_says_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own: int, budget: int, gets: int
) -> None:
    (tmp_path / "model.onnx").write_bytes(b"")
    Arena.asked.clear()
    monkeypatch.setattr(onnx_runtime, "import_onnxruntime", lambda: Arena)
    options = onnx_runtime.KIND.options(intra_op_threads=own)
    with pytest.raises(MemoryError):
        onnx_runtime.KIND.load(ModelSource("m", 1, tmp_path, "cpu", (), (), 0, options, threads=budget))
    ((settings, providers),) = Arena.asked
    assert settings.intra_op_num_threads == gets
    assert settings.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert providers == ["CPUExecutionProvider"]
