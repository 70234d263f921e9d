"""A server for half an hour, with all that happens to it in a week: `make soak-long`, or

    python tests/system/soak_long.py --minutes 30

The clients of `soak.py`, and beside them an operator: models are loaded anew while they are asked, others come, are
asked, and go again, and one fails as models do: by an exception, and for want of memory. At the end all that `soak.py`
asks for must hold, the device's memory must be flat, too, if there is a device, and each load must have been answered
rightly.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper as make
import onnx.numpy_helper
import orjson
import pytest
import uvloop
import yaml

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))  # where pytest finds what tests share

from serving import HOST, Gateway, running
from soak import FLAT_BYTES, FLAT_SHARE, QUEUE, Tally, configuration, read_answer, storm, table, verdicts

RELOADED = ("half_plus_two", "echo", "upper")
"""Models that the clients ask all the time."""
GUEST_WIDTH = 2048
"""Of a matrix of random weights: 16 MB."""
PAUSE_S = 0.2
MIN_SAMPLES = 30
"""Of memory, one a second, to speak of thirds."""

MOODY = '''
class Moody:
    """Fails as its caller wants it to."""

    def __init__(self, context):
        pass

    def infer(self, inputs, request):
        mood = inputs["x"][0, 0]
        if mood == 100:
            raise ValueError("a bad day")
        if mood == 200:
            raise MemoryError
        return {"y": inputs["x"]}
'''
MOODS = {0: 200, 100: 500, 200: 503}


class Operator:
    """Changes the server while others ask it, and asks what it has changed."""

    def __init__(self, gateway: Gateway, tally: Tally, guests: dict[str, list[float]]) -> None:
        self._gateway = gateway
        self._tally = tally
        self._guests = guests
        self.done: Counter[str] = Counter()

    async def reload(self, until: float) -> None:
        """Load models anew that serve."""
        while time.monotonic() < until:
            for name in RELOADED:
                await self._post(f"/v2/repository/models/{name}/load", {}, 200)
                self.done["reloads"] += 1
                await asyncio.sleep(PAUSE_S)

    async def receive(self, until: float) -> None:
        """Load models, ask them, and unload them."""
        while time.monotonic() < until:
            for name, answer in self._guests.items():
                await self._post(f"/v2/repository/models/{name}/load", {}, 200)
                body = await self._post(f"/v2/models/{name}/infer", tensor([[1.0]]), 200)
                outputs = orjson.loads(body).get("outputs", [{"data": []}])
                if outputs[0]["data"] != pytest.approx(answer, rel=1e-4):
                    self._tally.errors.append(f"{name} answered {body[:200]!r}")
                await self._post(f"/v2/repository/models/{name}/unload", {}, 200)
                self.done["loads and unloads"] += 1
                await asyncio.sleep(PAUSE_S)

    async def annoy(self, until: float) -> None:
        """Ask for failures."""
        while time.monotonic() < until:
            for mood, status in MOODS.items():
                self._tally.sent += 1
                await self._post("/v2/models/moody/infer", tensor([[float(mood)]]), status)
                (self._tally.answered if status == 200 else self._tally.refused)["open_inference"] += 1
                self.done[f"moods answered with {status}"] += 1
            await asyncio.sleep(PAUSE_S)

    async def _post(self, target: str, body: Any, status: int) -> bytes:
        reader, writer = await asyncio.open_connection(HOST, self._gateway.port)
        data = orjson.dumps(body)
        head = f"POST {target} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        try:
            async with asyncio.timeout(60):
                got, answer = await read_answer(reader)
        except (OSError, EOFError, TimeoutError) as error:
            self._tally.errors.append(f"{target}: {error!r}")
            return b"{}"
        finally:
            writer.transport.abort()
        if got != status:
            self._tally.errors.append(f"{target}: got {got} {answer[:200]!r}")
        return answer


def tensor(x: list[list[float]]) -> dict[str, Any]:
    shape = [len(x), len(x[0])]
    return {"inputs": [{"name": "x", "shape": shape, "datatype": "FP32", "data": x}]}


# --------------------------------------------------------------------------------------------------------------- models


def write_guest(folder: Path, seed: int) -> list[float]:
    """A model of random weights: y = x [1, 1] times the first rows of a square -> what it answers to 1."""
    weights = np.random.default_rng(seed).random((GUEST_WIDTH, GUEST_WIDTH), np.float32)
    start = np.zeros((1, GUEST_WIDTH), np.float32)
    start[0, 0] = 1
    nodes = [make.make_node("MatMul", ["x", "start"], ["row"]), make.make_node("MatMul", ["row", "weights"], ["y"])]
    graph = make.make_graph(
        nodes,
        "guest",
        [make.make_tensor_value_info("x", 1, [1, 1])],
        [make.make_tensor_value_info("y", 1, [1, GUEST_WIDTH])],
        [onnx.numpy_helper.from_array(start, "start"), onnx.numpy_helper.from_array(weights, "weights")],
    )
    (folder / "1").mkdir(parents=True)
    onnx.save(make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8), folder / "1/model.onnx")
    answer: list[float] = weights[0].tolist()
    return answer


def long_configuration(folder: Path) -> tuple[str, dict[str, list[float]]]:
    """The YAML, and what each model answers that comes and goes."""
    (folder / "moody.py").write_text(MOODY)
    config = yaml.safe_load(configuration(folder))
    guests = {f"guest{number}": write_guest(folder / f"guest{number}", number) for number in range(2)}
    ports = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 1]}]}
    python = {
        "backend": "python",
        "path": str(folder / "moody.py:Moody"),
        **ports,
        "outputs": [ports["inputs"][0] | {"name": "y"}],
        "max_queue_size": QUEUE,
        "max_batch_size": 4,
    }
    config["model_control"] = {"mode": "explicit", "load": [*config["models"], "moody"]}
    config["models"] |= {name: {"backend": "onnx", "path": str(folder / name)} for name in guests}
    config["models"] |= {"moody": python, "python_guest": python}
    return yaml.safe_dump(config, sort_keys=False), guests | {"python_guest": [1.0]}


# --------------------------------------------------------------------------------------------------------------- device


def device_bytes() -> int | None:
    """Memory that is used on the first GPU, whoever uses it; None where there is none."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used)
    except Exception:  # no library, no driver, no device: each means no
        return None


async def watch_device(sizes: list[int]) -> None:
    while (size := await asyncio.to_thread(device_bytes)) is not None:
        sizes.append(size)
        await asyncio.sleep(1)


# -------------------------------------------------------------------------------------------------------------- verdict


async def week(
    gateway: Gateway, options: argparse.Namespace, tally: Tally, sizes: list[int], device: list[int], operator: Operator
) -> None:
    watching = asyncio.create_task(watch_device(device))
    until = time.monotonic() + options.seconds
    work = (operator.reload(until), operator.receive(until), operator.annoy(until))
    await asyncio.gather(storm(gateway, options, tally, sizes), *work)
    watching.cancel()


def floors(sizes: list[int]) -> list[float]:
    """What memory comes down to in each third: models come and go, so that means tell when somebody looked."""
    third = len(sizes) // 3
    thirds = (sizes[:third], sizes[third : 2 * third], sizes[2 * third :])
    return [sorted(each)[len(each) // 10] for each in thirds]


def climbs(what: str, sizes: list[int]) -> Iterator[str]:
    if len(sizes) < MIN_SAMPLES:
        return
    _, second, last = floors(sizes)
    if last > second * FLAT_SHARE and last > second + FLAT_BYTES:
        yield f"memory of the {what} grew from {second / 1e6:.1f} to {last / 1e6:.1f} MB"


def report(operator: Operator, sizes: list[int], device: list[int]) -> Iterator[str]:
    yield ", ".join(f"{count} {what}" for what, count in sorted(operator.done.items()))
    for what, seen in (("host", sizes), ("GPU", device)):
        if len(seen) >= MIN_SAMPLES:
            yield f"floor of the {what}'s memory in each third, MB: {[round(size / 1e6, 1) for size in floors(seen)]}"


def soak(options: argparse.Namespace, folder: Path) -> list[str]:
    file = folder / "soak.yaml"
    text, guests = long_configuration(folder)
    file.write_text(text)
    tally, sizes, device = Tally(), list[int](), list[int]()
    with running(file, "--log-level", "error") as gateway, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        operator = Operator(gateway, tally, guests)
        begun = time.monotonic()
        runner.run(week(gateway, options, tally, sizes, device, operator))
        seconds = time.monotonic() - begun
        time.sleep(2)  # for those who left at the very end, and for what the last models have left
        series = gateway.metrics()
        status = gateway.stop()
        lines = [*table(tally, sizes, series, seconds), *report(operator, sizes, device)]
        sys.stdout.write("\n".join(lines) + "\n")
        wrong = verdicts(tally, [], series, gateway, status)
        return [*wrong, *climbs("host", sizes), *climbs("GPU", device)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--clients", type=int, default=100)
    options = parser.parse_args()
    options.seconds, options.big = 60 * options.minutes, False
    with tempfile.TemporaryDirectory() as folder:
        problems = soak(options, Path(folder))
    sys.stdout.write("\n".join(problems or ["nothing lost, nothing mixed up, memory flat, exit status 0"]) + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
