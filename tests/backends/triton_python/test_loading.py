"""From the folder to a loaded model and back: threads, arguments, completion, what is refused."""

from dataclasses import replace
from pathlib import Path
from textwrap import indent
from typing import Any

import yaml

from tensorgate.backends.triton_python.backend import TritonPythonBackend, TritonPythonOptions
from tensorgate.gateway.contract.backend import ModelSource
from tensorgate.gateway.contract.tensor import DTYPES, TensorSpec

X = {"name": "x", "datatype": "FP32", "shape": [-1]}
Y = {"name": "y", "datatype": "FP32", "shape": [-1]}
BATCHED: dict[str, Any] = {
    "max_batch_size": 8,
    "inputs": [X | {"shape": [-1, 2]}],
    "outputs": [Y | {"shape": [-1, 2]}],
}
DOUBLE = """
def execute(self, requests):
    return [y(2 * x_of(request)) for request in requests]
"""

# --------------------------------------------------------------------------------------------------- life of a model


async def test_initialize_execute_and_finalize_share_a_thread_and_are_told_the_same(world: Any) -> None:
    world.model(
        "m",
        """
        threads, args = [], {}
        def initialize(self, args):
            self.threads.append(threading.get_ident())
            self.args.update(args)
        def execute(self, requests):
            self.threads.append(threading.get_ident())
            return [y(x_of(request)) for request in requests]
        def finalize(self):
            self.threads.append(threading.get_ident())
            raise ValueError("too tired")
        """,
        parameters={"text": "free", "number": 3},
        instances=2,
        **BATCHED,
    )
    await world.start()
    model = world.python("m")
    await world.y("m", [[1, 2]])
    config = yaml.safe_load(model.args.pop("model_config"))
    assert model.args == {
        "model_instance_kind": "CPU",
        "model_instance_name": "m_0",
        "model_instance_device_id": "0",
        "model_repository": str(world.folder / "m"),
        "model_version": "1",
        "model_name": "m",
    }
    assert (config["name"], config["max_batch_size"], config["backend"]) == ("m", 8, "python")
    assert config["parameters"] == {"text": {"string_value": "free"}, "number": {"string_value": "3"}}
    assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [2], "optional": False}]
    other = world.executor("m", 1)._backend._instance
    assert other.name == "m_1"
    threads = model.threads, other._model.threads
    await world.close()
    assert [len(set(each)) for each in threads] == [1, 1]
    assert sorted(len(each) for each in threads) == [2, 3]
    assert threads[0][0] != threads[1][0]


LOADS = [
    (
        "def initialize(self, args):\n    raise ValueError('no weights')\ndef execute(self, r): ...",
        "ValueError: no weights",
    ),
    ("def initialize(self, args):\n    raise SystemExit\ndef execute(self, r): ...", "SystemExit"),
    ("x = 1 / 0", "ZeroDivisionError: division by zero"),
    ("pass", "it has no class TritonPythonModel with a method execute(self, requests)"),
    (
        "class TritonPythonModel: pass\nimport nonsense_that_is_not_there",
        "No module named 'nonsense_that_is_not_there'",
    ),
    (
        "@staticmethod\ndef auto_complete_config(config): return 5\ndef execute(self, r): ...",
        "auto_complete_config must return the ModelConfig that it was given",
    ),
    (
        "def initialize(self, args):\n    pb_utils.InferenceRequest(model_name='m').exec()\ndef execute(self, r): ...",
        "other models can be asked only once requests come in, not from initialize",
    ),
]


async def test_what_cannot_be_loaded_is_explained(world: Any) -> None:
    for number, (text, _) in enumerate(LOADS):
        world.model(f"m{number}", text)
    world.model("nowhere", DOUBLE, file="other.py")
    world.model("untold", DOUBLE, inputs=None, outputs=None)
    world.model("ops", DOUBLE, preprocess=[{"op": "cast", "input": "x", "to": "FP32"}])
    await world.start()
    for number, (_, words) in enumerate(LOADS):
        assert words in world.errors[f"m{number}"]
        assert "Traceback" not in world.errors[f"m{number}"]
    assert "there is no other.py in" in world.errors["nowhere"]
    assert "nothing says what the model gives" in world.errors["untold"]
    assert "preprocess and postprocess have no place here" in world.errors["ops"]


AUTO = """
@staticmethod
def auto_complete_config(auto_complete_model_config):
    inputs = [{"name": "x", "data_type": "TYPE_FP32", "dims": [2]},
              {"name": "bias", "data_type": "TYPE_FP32", "dims": [2], "optional": True}]
    outputs = [{"name": "y", "data_type": "TYPE_FP32", "dims": [2]}]
    config = auto_complete_model_config.as_dict()
    input_names = [each["name"] for each in config["input"]]
    for each in inputs:
        if each["name"] not in input_names:
            auto_complete_model_config.add_input(each)
    for each in outputs:
        auto_complete_model_config.add_output(each)
    auto_complete_model_config.set_max_batch_size(4)
    auto_complete_model_config.set_dynamic_batching()
    return auto_complete_model_config
def initialize(self, args):
    self.config = json.loads(args["model_config"])
def execute(self, requests):
    return [y(2 * x_of(request)) for request in requests]
"""


async def test_a_model_may_complete_its_configuration(world: Any) -> None:
    world.model("m", AUTO, inputs=None, outputs=None)
    world.model(
        "stream",
        """
        @staticmethod
        def auto_complete_config(config):
            config.add_input({"name": "x", "data_type": "TYPE_STRING", "dims": [1]})
            config.add_output({"name": "y", "data_type": "TYPE_FP32", "dims": [1]})
            config.set_model_transaction_policy(dict(decoupled=True))
            return config
        def initialize(self, args):
            assert pb_utils.using_decoupled_model_transaction_policy(json.loads(args["model_config"]))
        def execute(self, requests):
            requests[0].get_response_sender().send(y([1]), 1)
        """,
        inputs=None,
        outputs=None,
    )
    await world.start()
    view = world.view("m")
    shape = (-1, 2)
    assert list(view.inputs.values()) == [
        TensorSpec("x", DTYPES["FP32"], shape),
        TensorSpec("bias", DTYPES["FP32"], shape, optional=True),
    ]
    assert list(view.outputs.values()) == [TensorSpec("y", DTYPES["FP32"], shape)]
    backend = world.executor("m")._backend
    assert (backend.max_batch_size, backend.merges) == (4, True)
    assert world.python("m").config["max_batch_size"] == 4
    assert await world.y("m", [[1, 2]]) == [[2, 4]]
    assert (world.view("stream").decoupled, world.view("stream").inputs["x"].datatype) == (True, "BYTES")


def test_whether_it_batches_may_be_left_to_the_model(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    body = "import json\nclass TritonPythonModel:\n" + indent(AUTO, "    ")
    (tmp_path / "1/model.py").write_text(body)
    tensors = [(TensorSpec(name, DTYPES["FP32"], (2,)),) for name in ("x", "y")]
    source: Any = ModelSource("m", 1, tmp_path / "1", "cpu", *tensors, 0, TritonPythonOptions())
    for wanted, shape, size in (("auto", (-1, 2), 4), (0, (2,), 0)):
        backend = TritonPythonBackend(replace(source, max_batch_size=wanted))
        assert (backend.inputs[0].shape, backend.outputs[0].shape, backend.max_batch_size) == (shape, shape, size)
        backend.close()


CONTRADICTIONS = [
    ("config.set_max_batch_size(2)", "configuration specified max_batch_size 8, but"),
    (
        "config.add_input({'name': 'x', 'data_type': 'TYPE_INT32', 'dims': [2]})",
        "is TYPE_FP32 [2] in the config",
    ),
    ("config.add_input({'name': 'x', 'dims': [2]})", "lacks ['data_type']"),
    ("config.add_output({'name': 'q', 'data_type': 'TYPE_FP32', 'dims': [2], 'labels': 1})", "unknown keys ['labels']"),
    ("config.set_model_transaction_policy({'coupled': 1})", "only has the property 'decoupled'"),
]


async def test_completions_that_contradict_are_refused(world: Any) -> None:
    for number, (line, _) in enumerate(CONTRADICTIONS):
        body = f"@staticmethod\ndef auto_complete_config(config):\n    {line}\n    return config\n"
        world.model(f"m{number}", body + DOUBLE, **BATCHED)
    await world.start()
    for number, (_, words) in enumerate(CONTRADICTIONS):
        assert words in world.errors[f"m{number}"]
