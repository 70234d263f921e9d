"""A GPU's memory that another process has made: opened by its handle, and through a gateway by Triton's own client."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from runtimes import CLIENT, CUDA, can_run
from serving import HOST, running

from tensorgate.backends.execution.cuda_memory import open_handle

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[3]
NUMBERS = 1 << 18
OTHER = """
import sys, cupy
count = int(sys.argv[1])
memory = cupy.cuda.runtime.malloc(4 * count)
owned = cupy.cuda.UnownedMemory(memory, 4 * count, None, 0)
array = cupy.ndarray(count, "f4", cupy.cuda.MemoryPointer(owned, 0))
array[...] = cupy.arange(count)
cupy.cuda.Device().synchronize()
print(bytes(cupy.cuda.runtime.ipcGetMemHandle(memory)).hex(), flush=True)
for line in sys.stdin:
    cupy.cuda.Device().synchronize()
    print(array[:4].get().tolist(), flush=True)
"""


class Other:
    """A process with NUMBERS floats on the GPU, 0 and so on."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", OTHER, str(NUMBERS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout
        self.handle = bytes.fromhex(self.process.stdout.readline())

    def first(self) -> Any:
        """What it sees of its own first four."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@pytest.fixture
def other() -> Iterator[Other]:
    made = Other()
    yield made
    assert made.process.stdin
    made.process.stdin.close()
    assert made.process.wait(30) == 0


def test_what_another_process_wrote(other: Other) -> None:
    region = open_handle(other.handle, 0, 4 * NUMBERS)
    got = region.view(0, 4 * NUMBERS, writable=False).array(np.dtype(np.float32), (NUMBERS,))
    np.testing.assert_array_equal(got.get(), np.arange(NUMBERS, dtype=np.float32))
    part = region.view(8, 8, writable=False).array(np.dtype(np.float32), (2, 1))
    assert part.get().tolist() == [[2], [3]]


def test_it_sees_what_is_written(other: Other) -> None:
    region = open_handle(other.handle, 0, 4 * NUMBERS)
    region.view(0, 16, writable=True).write(np.array([4, 3, 2, 1], np.float32))
    assert other.first() == [4, 3, 2, 1]


def test_opened_twice_and_closed_once(other: Other) -> None:
    region, again = open_handle(other.handle, 0, 4 * NUMBERS), open_handle(other.handle, 0, 4 * NUMBERS)
    got = region.view(0, 16, writable=False).array(np.dtype(np.float32), (4,))
    del again
    assert got.get().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("nbytes", [4 * NUMBERS * 16, 1 << 40])
def test_more_than_there_is(nbytes: int, other: Other) -> None:
    with pytest.raises(ValueError, match="larger than the allocation"):
        open_handle(other.handle, 0, nbytes)


def test_no_handle_of_anybody(other: Other) -> None:
    wrong = bytes([other.handle[0] ^ 255]) + other.handle[1:]
    for handle in (wrong, bytes(64), other.handle[:63]):
        with pytest.raises(ValueError, match=r"."):
            open_handle(handle, 0, 4 * NUMBERS)
    region = open_handle(other.handle, 0, 16)
    assert region.view(0, 16, writable=False).tobytes() == np.arange(4, dtype=np.float32).tobytes()


@pytest.mark.skipif(not can_run("tritonclient"), reason="told at the end of the run")
@pytest.mark.timeout(120)
def test_tritons_own_client(tmp_path: Path) -> None:
    """It makes regions, registers them, has a model read one and write the other, and reads that by itself."""
    (tmp_path / "model.py").write_text(
        "class Twice:\n    def __init__(self, context):\n        self.xp = context.xp\n\n"
        "    def infer(self, inputs, request):\n        assert isinstance(inputs['x'], self.xp.ndarray)\n"
        "        return {'y': inputs['x'] * 2}\n"
    )
    tensor = {"datatype": "FP32", "shape": [-1, 16]}
    model = {"backend": "python", "path": "model.py:Twice", "device": CUDA, "max_batch_size": 8}
    model |= {"inputs": [{"name": "x", **tensor}], "outputs": [{"name": "y", **tensor}]}
    bind = {"bind": f"{HOST}:0"}
    file = tmp_path / "gateway.yaml"
    file.write_text(
        yaml.safe_dump({"listen": {"http": [bind]}, "shared_memory": {"cuda": True}, "models": {"twice": model}})
    )
    with running(file, python=Path(sys.executable)) as gateway:
        done = subprocess.run(
            [sys.executable, Path(__file__).with_name("triton_cuda_client.py"), gateway.url],
            env=os.environ | {"PYTHONPATH": str(CLIENT)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{gateway.said}"
        assert gateway.stop() == 0
