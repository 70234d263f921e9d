"""Which runs are recorded, which recordings are kept, and what is refused, by stand-ins of a GPU and its driver."""

import ctypes
import sys
import threading
from typing import Any

import pytest
from fake_cuda import Cupy

from tensorgate.backends.execution import graphs as graphs_module
from tensorgate.backends.execution.device import CudaDevice
from tensorgate.backends.execution.graphs import MAX_GRAPHS, RUNS_BEFORE, Graphs, Memcpy3D, capture, check_replayable
from tensorgate.backends.torch_model.graphs import CudaGraphs
from tensorgate.gateway.contract.backend import Padding
from tensorgate.gateway.contract.tensor import DTYPES, TensorSpec


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> CudaDevice:
    monkeypatch.setitem(sys.modules, "cupy", Cupy())
    monkeypatch.setattr(graphs_module, "check_replayable", lambda graph: None)
    return CudaDevice(0)


def test_what_comes_often_is_recorded_and_what_was_used_last_is_kept(device: CudaDevice) -> None:
    graphs: Graphs[int] = Graphs("m", device)
    made: list[int] = []

    def find(key: int) -> int | None:
        def record() -> int:
            made.append(key)
            return key

        return graphs.find(key, record)

    assert not graphs
    for key in range(100):
        assert find(key) is None
    assert made == []
    for _ in range(RUNS_BEFORE):
        for key in range(MAX_GRAPHS):
            find(key)
    assert made == list(range(MAX_GRAPHS))
    assert find(0) == 0
    for _ in range(RUNS_BEFORE + 1):
        find(MAX_GRAPHS)
    assert made[-1] == MAX_GRAPHS
    assert find(0) == 0
    assert find(1) is None  # it was used longest ago
    assert find(2) == 2
    assert len(made) == MAX_GRAPHS + 1


def test_shapes_that_never_come_again_are_forgotten(device: CudaDevice) -> None:
    graphs: Graphs[str] = Graphs("m", device)
    for key in range(10_000):
        graphs.find(key, lambda: "never")
    assert len(graphs._seen) < 1000


def test_a_failure_is_told_once_and_ends_all_recording(device: CudaDevice, caplog: pytest.LogCaptureFixture) -> None:
    graphs: Graphs[str] = Graphs("m", device)

    def fail() -> str:
        raise RuntimeError("cudaErrorStreamCaptureInvalidated\nat line 5")

    for key in range(3):
        for _ in range(RUNS_BEFORE + 2):
            assert graphs.find(key, fail if not key else lambda: "good") is None
    assert caplog.messages == [
        "model m runs without CUDA graphs, since it cannot be recorded: cudaErrorStreamCaptureInvalidated"
    ]
    assert not device.capturing.locked()


def shapes_at_load(device: CudaDevice, specs: list[TensorSpec], *sizes: int) -> list[list[tuple[int, ...]]]:
    ran: list[list[tuple[int, ...]]] = []
    Graphs("m", device).record_at_load(
        lambda tensors: ran.append([array.shape for array in tensors.values()]), specs, Padding(sizes)
    )
    assert all(ran[index : index + RUNS_BEFORE + 1] == [ran[index]] * 4 for index in range(0, len(ran), 4))
    return ran[:: RUNS_BEFORE + 1]


def spec(name: str, shape: tuple[int, ...] | None, kind: str = "FP32") -> TensorSpec:
    return TensorSpec(name, DTYPES[kind], shape)


def test_what_is_known_of_batches_is_run_at_load(device: CudaDevice) -> None:
    x, scalar = spec("x", (-1, 3)), spec("s", ())
    assert shapes_at_load(device, [x, spec("h", (-1,), "BF16"), scalar], 1, 8) == [
        [(1, 3), (1,), ()],
        [(8, 3), (8,), ()],
    ]
    assert shapes_at_load(device, [spec("x", (1, 3))]) == [[(1, 3)]]
    assert shapes_at_load(device, [x]) == []
    assert shapes_at_load(device, [spec("x", (-1, -1))], 1, 8) == []
    assert shapes_at_load(device, [spec("x", None)], 1, 8) == []
    assert len(shapes_at_load(device, [x], *range(1, 100))) == MAX_GRAPHS


def test_a_model_that_refuses_zeros_is_loaded(device: CudaDevice, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(tensors: Any) -> None:
        raise ValueError("no zeros, please")

    Graphs("m", device).record_at_load(refuse, [spec("x", (1, 3))], Padding())
    assert caplog.messages == ["model m was not recorded at load: no zeros, please"]
    assert not device.lock.locked()


def test_who_waits_for_the_whole_gpu_waits_for_a_capture(device: CudaDevice) -> None:
    """Else the capture would be void."""
    graphs: Graphs[Any] = Graphs("m", device)
    begun, waited = threading.Event(), threading.Event()

    def others() -> None:
        begun.wait(10)
        device.finish_all()
        waited.set()

    def run() -> None:
        begun.set()
        assert not waited.wait(0.05)

    thread = threading.Thread(target=others)
    thread.start()
    with device.active():
        for _ in range(RUNS_BEFORE + 1):
            graphs.find("key", lambda: capture(device, run))
    thread.join(10)
    assert waited.is_set()
    assert graphs


class Driver:
    """libcuda, of graphs: each node is its type, a copy with the types of memory that it goes between."""

    def __init__(self, **graphs: list[Any]) -> None:
        self._graphs = dict(enumerate(graphs.values(), 1))

    def cuGraphGetNodes(self, graph: Any, nodes: Any, count: Any) -> int:  # noqa: N802 - its name
        found = self._graphs[graph.value]
        if nodes is None:
            count._obj.value = len(found)
        else:
            nodes[:] = [graph.value * 100 + number for number in range(len(found))]
        return 0

    def _node(self, node: Any) -> Any:
        return self._graphs[node.value // 100][node.value % 100]

    def cuGraphNodeGetType(self, node: Any, kind: Any) -> int:  # noqa: N802
        found = self._node(node)
        kind._obj.value = 1 if isinstance(found, tuple) else 4 if isinstance(found, str) else found
        return 0

    def cuGraphMemcpyNodeGetParams(self, node: Any, copy: Any) -> int:  # noqa: N802
        copy._obj.source_type, copy._obj.target_type = self._node(node)
        return 0

    def cuGraphChildGraphNodeGetGraph(self, node: Any, child: Any) -> int:  # noqa: N802
        child._obj.value = 2
        return 0


@pytest.mark.parametrize(
    ("nodes", "child", "refused"),
    [
        ([0, 2, 5, 10, 11, (2, 2)], [], ""),
        ([], [], ""),
        ([0, (1, 2)], [], "copies between host and device"),
        ([0, (2, 1)], [], "copies between host and device"),
        ([0, 3], [], "CUgraphNodeType 3"),  # a call of the host
        (["child", 0], [0, (2, 2)], ""),
        (["child", 0], [3], "CUgraphNodeType 3"),
    ],
)
def test_what_may_be_replayed(monkeypatch: pytest.MonkeyPatch, nodes: Any, child: Any, refused: str) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver(graph=nodes, child=child))
    if refused:
        with pytest.raises(ValueError, match=refused):
            check_replayable(1)
    else:
        check_replayable(1)


def test_the_copy_is_laid_out_as_the_driver_has_it() -> None:
    """CUDA_MEMCPY3D of cuda.h."""
    assert ctypes.sizeof(Memcpy3D) == 200
    assert (Memcpy3D.source_type.offset, Memcpy3D.target_type.offset) == (32, 120)


class Tensor:
    """torch.Tensor, of one number."""

    dtype, shape = "float32", (1,)

    def __init__(self, value: float) -> None:
        self.value = value

    def clone(self) -> "Tensor":
        return Tensor(self.value)

    def copy_(self, other: "Tensor") -> None:
        self.value = other.value


class Torch:
    """torch, as far as it records: a replay calls the program again on what it was recorded with."""

    def __init__(self) -> None:
        self.cuda = self
        self.CUDAGraph = Recorded

    def graph_pool_handle(self) -> str:
        return "pool"

    def current_stream(self) -> str:
        return "stream"

    def graph(self, graph: "Recorded", pool: str, stream: str, capture_error_mode: str) -> "Recorded":
        assert (pool, stream, capture_error_mode) == ("pool", "stream", "thread_local")
        return graph


class Recorded:
    now: "Recorded | None" = None

    def __enter__(self) -> None:
        Recorded.now = self

    def __exit__(self, *error: object) -> None:
        Recorded.now = None

    def replay(self) -> None:
        self.work()

    work: Any


def test_a_program_of_torch_is_replayed_with_memory_of_its_own(device: CudaDevice) -> None:
    calls = []

    def call(tensors: Any) -> Any:
        calls.append(tensors)
        result = Tensor(tensors["x"].value * 2)
        if Recorded.now is not None:
            assert device.capturing.locked()
            Recorded.now.work = lambda: result.copy_(Tensor(tensors["x"].value * 2))
        return {"y": result}

    graphs = CudaGraphs(Torch(), call, "m", device)
    results = [graphs.call({"x": Tensor(turn)})["y"] for turn in range(8)]
    assert [each.value for each in results] == [turn * 2 for turn in range(8)]
    assert len(calls) == RUNS_BEFORE + 1
