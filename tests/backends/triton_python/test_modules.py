"""Every model's own view of the files beside it, and what it says to the operator: logs and metrics."""

import importlib
import logging
import pickle
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tensorgate.backends.triton_python import datatypes
from tensorgate.backends.triton_python.metrics import collect
from tensorgate.backends.triton_python.modules import ModelPackage
from tensorgate.backends.triton_python.tensor import TritonTensor
from tensorgate.backends.triton_python.thread import ModelThread
from tensorgate.gateway.monitoring.metrics import MetricsCollector

HELPED = """
import helper
def execute(self, requests):
    from helper import word as late
    import helper as again
    assert again is self.helper
    words = pb_utils.Tensor("y", np.array([self.helper.word(), late()]))
    return [pb_utils.InferenceResponse([words]) for request in requests]
"""


async def test_two_models_have_a_helper_of_one_name_each(world: Any) -> None:
    for name in ("one", "two"):
        text = f"""
        import threading
        import triton_python_backend_utils as pb_utils
        def word():
            found = []
            def look():
                import triton_python_backend_utils
                found.append(triton_python_backend_utils is pb_utils)
            thread = threading.Thread(target=look)
            thread.start()
            thread.join()
            return "{name}" if found == [True] else "another"
        """
        world.model(name, HELPED, text, outputs=[{"name": "y", "datatype": "BYTES", "shape": [2]}], instances=2)
    await world.start()
    assert world.errors == {}
    assert [await world.y(name) for name in ("one", "two")] == [[b"one"] * 2, [b"two"] * 2]
    helpers = {
        id(world.executor(name, number)._backend._instance._model.helper)
        for name in ("one", "two")
        for number in (0, 1)
    }
    assert len(helpers) == 4
    assert "helper" not in sys.modules
    before = {name for name in sys.modules if name.startswith("tensorgate_model_")}
    await world.close()
    after = {name for name in sys.modules if name.startswith("tensorgate_model_")}
    assert len(before - after) == 12  # each instance's package, model and helper


@pytest.mark.parametrize("name", ["triton_python_backend_utils", "c_python_backend_utils"])
def test_nobody_else_can_import_what_models_can(name: str) -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(name)


@pytest.fixture
def package(tmp_path: Path) -> Any:
    made: list[ModelPackage] = []

    def make(files: dict[str, str]) -> ModuleType:
        for name, text in files.items():
            file = tmp_path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        made.append(ModelPackage((tmp_path / "1", tmp_path), {"provided": ModuleType("provided")}))
        return made[-1].load(tmp_path / "1/model.py")

    yield make
    for each in made:
        each.forget()


def test_the_statement_in_all_its_forms(package: Any) -> None:
    model = package(
        {
            "1/model.py": "import provided, pack.deep.leaf, above, numpy.linalg\n"
            "from pack import sub, word as w\nfrom pack.sub import *\nfrom . import beside\nfrom .beside import thing\n"
            "import json\nimport os.path as path\n",
            "1/pack/__init__.py": "import provided\nword = 'pack'\n",
            "1/pack/sub.py": "from . import word\nfrom .deep.leaf import green\nimport beside as b\nstarred=b.thing\n",
            "1/pack/deep/__init__.py": "",
            "1/pack/deep/leaf.py": "from ...beside import thing\ngreen = 'leaf'\n",
            "1/beside.py": "thing = object()\n",
            "1/json.py": "raise AssertionError('the standard library comes first')\n",
            "1/numpy/weights.txt": "a folder like a library, with no code in it",
            "above.py": "floor = 2\n",
        }
    )
    assert (model.pack.deep.leaf.green, model.sub.green, model.w, model.above.floor) == ("leaf", "leaf", "pack", 2)
    assert model.starred is model.beside.thing is model.thing is model.pack.deep.leaf.thing
    assert model.numpy is np
    assert [Path(each.__file__).name for each in (model, model.beside)] == ["model.py", "beside.py"]
    assert model.provided is model.pack.provided
    assert model.path.join("a", "b") == "a/b"


def test_a_file_that_was_replaced_is_read_anew_and_leaves_no_cache(package: Any, tmp_path: Path) -> None:
    assert package({"1/model.py": "import helper\nx = helper.x", "1/helper.py": "x = 1"}).x == 1
    assert package({"1/helper.py": "x = 2"}).x == 2
    assert list(tmp_path.rglob("__pycache__")) == []


def test_objects_of_a_model_can_be_pickled(package: Any) -> None:
    model = package({"1/model.py": "from helper import Thing\n", "1/helper.py": "class Thing: pass\n"})
    copy = pickle.loads(pickle.dumps(model.Thing()))  # noqa: S301  our own
    assert isinstance(copy, model.Thing)


def test_what_a_file_raises_comes_through_and_a_missing_one_is_named(package: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        package({"1/model.py": "import helper", "1/helper.py": "1 / 0"})
    with pytest.raises(ModuleNotFoundError, match="nonsense"):
        package({"1/model.py": "import nonsense"})


# ------------------------------------------------------------------------------------------------------- for operators


async def test_a_model_logs_under_its_name(world: Any, caplog: pytest.LogCaptureFixture) -> None:
    world.model(
        "m",
        """
        def execute(self, requests):
            logger = pb_utils.Logger
            logger.log("plain 100%")
            logger.log("stated", logger.WARNING)
            logger.log_info("i")
            logger.log_warn("w")
            logger.log_error("e")
            logger.log_verbose("v")
            return [y(x_of(request)) for request in requests]
        """,
    )
    await world.start()
    with caplog.at_level(logging.DEBUG, "tensorgate.model.m"):
        await world.y("m")
    said = [(r.levelname, r.getMessage()) for r in caplog.records if r.name == "tensorgate.model.m"]
    assert said == [
        *(("INFO", "plain 100%"), ("WARNING", "stated"), ("INFO", "i")),
        *(("WARNING", "w"), ("ERROR", "e"), ("DEBUG", "v")),
    ]


COUNTS = """
def initialize(self, args):
    family = pb_utils.MetricFamily
    counter = family(name="cats_seen", description="Cats.", kind=family.COUNTER)
    self.cats = counter.Metric(labels={"model": "m", "colour": 'a "b"'})
    counter.Metric(labels={"colour": 'a "b"', "model": "m"}).increment(1)  # the same one
    self.dogs = family("dogs_total", "Dogs.", family.COUNTER).Metric()
    self.heat = family("heat", "Heat.", family.GAUGE).Metric(labels={"n": 1})
    self.sizes = family("sizes", "Sizes.", family.HISTOGRAM).Metric(labels={}, buckets=[1, 2.5])
def execute(self, requests):
    self.cats.increment(1)
    self.dogs.increment(0.5)
    self.heat.set(3)
    self.heat.increment(-1)
    for size in (0.5, 1, 2, 3):
        self.sizes.observe(size)
    refused = []
    family = pb_utils.MetricFamily
    for step in (lambda: self.cats.increment(-1), lambda: self.cats.set(1), lambda: self.sizes.value(),
                 lambda: self.heat.observe(1), lambda: family("heat", "", family.COUNTER), lambda: family("a b", "", 0),
                 lambda: family("tensorgate_x", "", 0), lambda: family("h", "", family.HISTOGRAM).Metric(),
                 lambda: family("heat", "", family.GAUGE).Metric({"a-b": 1}), lambda: family("k", "", 7)):
        try:
            step()
        except pb_utils.TritonModelException:
            refused.append(1)
    return [y([self.cats.value(), self.dogs.value(), self.heat.value(), sum(refused)])]
"""


async def test_what_a_model_counts_is_on_the_metrics_page(world: Any) -> None:
    world.model("m", COUNTS)
    await world.start()
    assert world.errors == {}
    assert await world.y("m") == [2, 0.5, 2, 10]
    text = world.app.metrics.render().decode()
    for line in (
        'cats_seen{colour="a \\"b\\"",model="m"} 2.0',
        "# TYPE dogs_total counter",
        "dogs_total 0.5",
        "# TYPE heat gauge",
        'heat{n="1"} 2.0',
        "# TYPE sizes histogram",
        'sizes_bucket{le="1"} 2.0',
        'sizes_bucket{le="2.5"} 3.0',
        'sizes_bucket{le="+Inf"} 4.0',
        "sizes_count 4.0",
        "sizes_sum 6.5",
    ):
        assert f"\n{line}\n" in text
    assert b"cats_seen" not in MetricsCollector().render()
    await world.app.repository.close()
    assert "cats_seen" not in {family.name for family in collect()}


# ------------------------------------------------------------------------------------------------------ datatypes


def test_names_numbers_and_types() -> None:
    table = {"TYPE_BOOL": (1, np.bool_), "TYPE_FP16": (10, np.float16), "TYPE_STRING": (13, np.object_)}
    for name, (number, kind) in table.items():
        assert datatypes.triton_string_to_numpy(name) is kind
        assert datatypes.numpy_to_triton_type(kind) == number
        assert datatypes.triton_to_numpy_type(number) is kind
        assert (datatypes.TRITON_STRING_TO_NUMPY[name], datatypes.NUMPY_TO_TRITON_TYPE[kind]) == (kind, number)
    assert datatypes.numpy_to_triton_type(bool) == 1
    assert datatypes.numpy_to_triton_type(np.dtype("S3")) == 13
    for wrong in ("FP33", "TYPE_BYTES", "TYPE_INVALID"):
        with pytest.raises(ValueError, match=wrong):
            datatypes.triton_string_to_numpy(wrong)


def test_bytes_behind_their_lengths() -> None:
    array = np.array([[b"ab", "é"], [b"", 7]], np.object_)
    encoded = datatypes.serialize_byte_tensor(array)
    assert encoded.item() == b"\2\0\0\0ab\2\0\0\0\xc3\xa9\0\0\0\0\1\0\0\x007"
    decoded = datatypes.deserialize_bytes_tensor(encoded.item())
    assert decoded.tolist() == [b"ab", "é".encode(), b"", b"7"]
    assert datatypes.serialize_byte_tensor(np.empty((0, 2), np.object_)).size == 0
    assert datatypes.deserialize_bytes_tensor(b"").shape == (0,)
    for cut in (b"\2\0\0", b"\2\0\0\0a"):
        with pytest.raises(ValueError, match="the data ends within"):
            datatypes.deserialize_bytes_tensor(cut)


class OnGpu:
    """What CuPy would make of memory on a GPU."""

    dtype, shape = np.dtype(np.float32), (2,)

    def __init__(self, source: Any) -> None:
        self.source = source

    def get(self) -> Any:
        return np.array([1, 2], np.float32)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 1


def test_memory_of_a_gpu_is_taken_to_the_host_only_to_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = ModuleType("cupy")
    cupy.from_dlpack = OnGpu  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy", cupy)

    class Theirs(OnGpu):
        def __dlpack__(self) -> Any:
            raise AssertionError("CuPy asks for it on its own stream")

    tensor = TritonTensor.from_dlpack("y", Theirs(None))
    assert (tensor.is_cpu(), tensor.shape(), tensor.triton_dtype()) == (False, [2], 11)
    assert tensor.__dlpack_device__() == (2, 1)
    with pytest.raises(TypeError, match="is stored in GPU and cannot be converted to NumPy"):
        tensor.as_numpy()
    assert tensor.owned().tolist() == [1, 2]
    assert TritonTensor.input("x", OnGpu(None)).as_numpy().tolist() == [1, 2]


def test_threads_that_a_model_starts_do_not_outlive_the_process() -> None:
    thread = ModelThread("m")
    assert thread.call(lambda: threading.Thread(target=print).daemon)
    with pytest.raises(TimeoutError):
        thread.call(threading.Event().wait, 0.01)
