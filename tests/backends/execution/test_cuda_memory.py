"""CUDA IPC handles and the arrays on them, with host memory in the place of a GPU's."""

import gc
import importlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tensorgate.backends.execution import cuda_memory
from tensorgate.gateway.contract.tensor import DTYPES

HANDLE = bytes(64)
BASE = 1 << 20


class Card(np.ndarray[Any, Any]):
    """A NumPy array that tells its place as CuPy's do."""

    origin = 0

    @property
    def data(self) -> Any:  # type: ignore[override]
        return SimpleNamespace(ptr=BASE + self.__array_interface__["data"][0] - Card.origin)


class Runtime:
    def __init__(self) -> None:
        self.open: list[int] = []

    def setDevice(self, index: int) -> None:  # noqa: N802
        assert index == 0

    def ipcOpenMemHandle(self, handle: bytes) -> int:  # noqa: N802
        self.open.append(BASE)
        return BASE

    def ipcCloseMemHandle(self, pointer: int) -> None:  # noqa: N802
        self.open.remove(pointer)


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    runtime = Runtime()
    memory = np.arange(256, dtype=np.uint8)
    Card.origin = memory.ctypes.data
    made: dict[str, Any] = {
        "runtime": runtime,
        "UnownedMemory": lambda pointer, size, owner, device: owner,
        "MemoryPointer": lambda owner, offset: owner,
        "get_current_stream": lambda: SimpleNamespace(synchronize=lambda: None),
    }

    def ndarray(size: int, dtype: Any, owner: Any) -> Any:
        array = memory[:size].view(Card)
        holders.append((array, owner))
        return array

    holders: list[Any] = []
    cupy = SimpleNamespace(
        cuda=SimpleNamespace(**made),
        ndarray=ndarray,
        asnumpy=np.array,
        asarray=np.asarray,
        ascontiguousarray=np.ascontiguousarray,
        holders=holders,
    )
    monkeypatch.setattr(importlib, "import_module", lambda name: cupy)
    monkeypatch.setattr(cuda_memory, "cuda_devices", lambda: 1)
    monkeypatch.setattr(cuda_memory, "_bytes_from", lambda pointer: 256)
    runtime.holders = holders  # type: ignore[attr-defined]
    return runtime


def test_a_region_is_read_where_it_is(runtime: Runtime) -> None:
    region = cuda_memory.open_handle(HANDLE, 0, 256)
    view = region.view(8, 8, writable=False)
    numbers = view.array(DTYPES["UINT16"], (2, 2))
    view.write(np.array([1, 2, 3, 4], np.uint16))
    assert numbers.tolist() == [[1, 2], [3, 4]]
    copied = view.array(DTYPES["UINT16"], (4,), copy=True)
    view.write(np.zeros(1, np.float64))
    assert (copied.tolist(), numbers.tolist()) == ([1, 2, 3, 4], [[0, 0], [0, 0]])
    assert view.tobytes() == bytes(8)


@pytest.mark.parametrize("datatype", [name for name in DTYPES if name != "BYTES"])
def test_every_datatype(datatype: str, runtime: Runtime) -> None:
    dtype = DTYPES[datatype]
    values = np.array([1, 0], dtype)
    for offset in (16, 17):
        view = cuda_memory.open_handle(HANDLE, 0, 256).view(offset, values.nbytes, writable=True)
        view.write(values)
        found = view.array(dtype, (1, 2))
        assert (found.dtype, found.shape, np.array(found).tobytes()) == (dtype, (1, 2), values.tobytes())


@pytest.mark.parametrize(
    ("handle", "device", "byte_size"), [(b"", 0, 1), (HANDLE, 1, 1), (HANDLE, -1, 1), (HANDLE, 0, 0)]
)
def test_what_is_no_handle(handle: bytes, device: int, byte_size: int, runtime: Runtime) -> None:
    with pytest.raises(ValueError, match="handle"):
        cuda_memory.open_handle(handle, device, byte_size)
    assert not runtime.open


def test_a_handle_is_closed_with_its_last_array(runtime: Runtime) -> None:
    with pytest.raises(ValueError, match="larger than the allocation"):
        cuda_memory.open_handle(HANDLE, 0, 257)
    gc.collect()
    assert not runtime.open
    region = cuda_memory.open_handle(HANDLE, 0, 256)
    assert runtime.open
    del region
    runtime.holders.clear()  # type: ignore[attr-defined]
    gc.collect()
    assert not runtime.open


def test_without_a_gpu_there_is_no_opener(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_memory, "cuda_devices", lambda: 0)
    assert cuda_memory.opener() is None
