"""What of SavedModels can be seen without TensorFlow: signatures, the texts of errors, what is missing."""

import logging
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tensorgate.adapters.protobuf.messages import message
from tensorgate.backends.saved_model import KIND, library
from tensorgate.backends.saved_model import backend as backend_module
from tensorgate.backends.saved_model.failures import plain, public_error
from tensorgate.backends.saved_model.ranks import operations_of, takes_any_rank
from tensorgate.backends.saved_model.signatures import read_signatures
from tensorgate.gateway.app import registries
from tensorgate.gateway.contract.backend import ModelSource
from tensorgate.gateway.contract.call import Call
from tensorgate.gateway.contract.canonical import InferRequest
from tensorgate.gateway.contract.errors import (
    Exhausted,
    InvalidArgument,
    ModelFailed,
    NotFound,
    ShapeMismatch,
    Unsupported,
)
from tensorgate.gateway.contract.tensor import DTYPES, TensorSpec

NAME = "tensorflow/serving/"


def info(datatype: str = "DT_FLOAT", shape: tuple[int, ...] | None = (-1,), **encoding: Any) -> Any:
    made = message("tensorflow.TensorInfo")(**(encoding or {"name": "t:0"}), dtype=datatype)
    if shape is None:
        made.tensor_shape.unknown_rank = True
    else:
        made.tensor_shape.SetInParent()
        for size in shape:
            made.tensor_shape.dim.add(size=size)
    return made


def definition(inputs: dict[str, Any], outputs: dict[str, Any], method: str = NAME + "predict") -> Any:
    return message("tensorflow.SignatureDef")(inputs=inputs, outputs=outputs, method_name=method)


def read(**definitions: Any) -> Any:
    return read_signatures(definitions, lambda proto: np.array(proto.float_val, np.float32), "m")


X_Y = definition({"x": info()}, {"y": info()})


def test_a_signature_has_its_keys_as_names_and_its_own_bytes() -> None:
    made = definition({"b": info("DT_STRING", ()), "a": info(shape=None)}, {"y": info("DT_BFLOAT16", (-1, 3))}, "any")
    made.defaults["a"].float_val.append(0.5)
    signature = read(serving_default=made)["serving_default"]
    assert list(signature.inputs.values()) == [
        TensorSpec("a", DTYPES["FP32"], None),
        TensorSpec("b", DTYPES["BYTES"], ()),
    ]
    assert signature.outputs == {"y": TensorSpec("y", DTYPES["BF16"], (-1, 3))}
    assert signature.method == "any"
    assert signature.features is None
    assert {name: array.tolist() for name, array in signature.defaults.items()} == {"a": [0.5]}
    assert message("tensorflow.SignatureDef").FromString(signature.definition) == made


@pytest.mark.parametrize("datatype", DTYPES)
def test_every_datatype_is_known(datatype: str) -> None:
    names = {"BYTES": "STRING", "FP16": "HALF", "BF16": "BFLOAT16", "FP32": "FLOAT", "FP64": "DOUBLE"}
    for reference in (0, 100):
        made = info()
        made.dtype = (
            message("tensorflow.TensorInfo")
            .DESCRIPTOR.fields_by_name["dtype"]
            .enum_type.values_by_name["DT_" + names.get(datatype, datatype)]
            .number
            + reference
        )
        signature = read(serving_default=definition({"x": made}, {}))["serving_default"]
        assert signature.inputs["x"].datatype == datatype


def test_a_tensor_without_any_shape_may_have_any() -> None:
    bare = message("tensorflow.TensorInfo")(name="t:0", dtype="DT_INT64")
    assert read(serving_default=definition({"x": bare}, {}))["serving_default"].inputs["x"].shape is None


@pytest.mark.parametrize(
    ("definitions", "order"),
    [
        (("b", "serving_default", "a"), ["serving_default", "a", "b"]),
        (("b", "a"), ["a", "b"]),
        (("b", "a_classify"), ["b", "a_classify"]),
        (("b_classify", "a_classify"), ["a_classify", "b_classify"]),
        (("a", "__saved_model_init_op", "__saved_model_train_op"), ["a"]),
    ],
)
def test_the_default_comes_first(definitions: tuple[str, ...], order: list[str]) -> None:
    classify = definition({"inputs": info("DT_STRING")}, {"scores": info()}, NAME + "classify")
    assert list(read(**{name: classify if "classify" in name else X_Y for name in definitions})) == order


def test_another_default_may_be_wanted() -> None:
    definitions = {"serving_default": X_Y, "a": X_Y, "b": X_Y}
    assert list(read_signatures(definitions, np.asarray, "m", "b")) == ["b", "a", "serving_default"]
    with pytest.raises(ValueError, match="it has no signature c, but a, b, serving_default"):
        read_signatures(definitions, np.asarray, "m", "c")


COMPLEX = definition({"x": info("DT_COMPLEX64")}, {"y": info()})
SPARSE = definition({"x": info()}, {"y": info(coo_sparse={})})


def test_a_signature_that_cannot_be_carried_is_left_out_and_the_log_says_why(caplog: Any) -> None:
    with caplog.at_level(logging.WARNING):
        assert list(read(serving_default=X_Y, spectrum=COMPLEX, sparse=SPARSE)) == ["serving_default"]
    assert [record.getMessage() for record in caplog.records] == [
        "model m: signature sparse is left out: output 'y' is no plain tensor (coo_sparse)",
        "model m: signature spectrum is left out: input 'x' is DT_COMPLEX64, which no dialect can carry",
    ]


@pytest.mark.parametrize(
    ("definitions", "text"),
    [
        ({"serving_default": COMPLEX, "other": X_Y}, "signature serving_default: input 'x' is DT_COMPLEX64"),
        ({"only": SPARSE}, "signature only: output 'y' is no plain tensor"),
        ({"__saved_model_init_op": X_Y}, "it has no signature that could be served"),
        ({}, "it has no signature that could be served"),
    ],
)
def test_a_model_without_a_default_is_refused(definitions: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        read(**definitions)


class Raised(Exception):
    """As TensorFlow's errors are."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.error_code = code
        self.message = text


MATMUL = "Matrix size-incompatible: In[0]: [2,3], In[1]: [2,3] 0 0"


@pytest.mark.parametrize(
    ("said", "plainly"),
    [
        (MATMUL, MATMUL),
        (MATMUL + "\n\t [[{{node PartitionedCall/MatMul}}]]", MATMUL),
        (MATMUL + "\n\t [[{{function_node __inference_f_28}}{{node MatMul}}]]\n\t [[PartitionedCall/_3]]", MATMUL),
        ("{{function_node __wrapped__MatMul_device_/job:localhost/device:CPU:0}} " + MATMUL + " [Op:MatMul]", MATMUL),
        (
            "Graph execution error:\n\nDetected at node PartitionedCall/MatMul defined at (most recent call last):\n"
            f"<stack traces unavailable>\n{MATMUL}\n\t [[{{{{node MatMul}}}}]] [Op:__inference_wrapper_283]",
            MATMUL,
        ),
        (
            "Graph execution error:\n\nDetected at node 'MatMul' defined at (most recent call last):\n"
            '    File "/home/somebody/train.py", line 3, in <module>\n      secret = train()\n'
            '    File "/home/somebody/train.py", line 9, in train\n      return tf.matmul(a, b)\n'
            f"Node: 'MatMul'\n{MATMUL}\n\t [[{{{{node MatMul}}}}]]",
            MATMUL,
        ),
        (
            f"2 root error(s) found.\n  (0) INVALID_ARGUMENT: {MATMUL}\n\t [[{{{{node MatMul}}}}]]\n"
            "  (1) INVALID_ARGUMENT: another\n\t [[{{node b}}]]\n0 successful operations.\n0 derived errors ignored.",
            MATMUL,
        ),
        ("one\ntwo\n\t [[{{node a}}]]", "one two"),
        ("x" * 5000, "x" * 1024 + "..."),
    ],
)
def test_callers_are_told_what_happened_and_not_where_in_the_graph(said: str, plainly: str) -> None:
    assert plain(said) == plainly


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (3, InvalidArgument),
        (11, InvalidArgument),
        (5, NotFound),
        (12, Unsupported),
        (8, Exhausted),
        (13, ModelFailed),
    ],
)
def test_codes_keep_their_meaning(code: int, kind: type[Exception]) -> None:
    error = public_error(Raised(code, "so it is\n\t [[{{node a}}]]"))
    assert type(error) is kind
    assert error.text == "so it is"  # type: ignore[attr-defined]


def test_a_text_that_python_cannot_read_is_about_what_was_sent() -> None:
    with pytest.raises(UnicodeDecodeError) as caught:
        b"Could not parse example input, value: '\xff'\n\t [[{{node a}}]]".decode()
    error = public_error(caught.value)
    assert isinstance(error, InvalidArgument)
    assert error.text == "Could not parse example input, value: '\ufffd'"


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """TensorFlow has not been imported, and its environment is empty; both are put back afterwards."""
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    del sys.modules["tensorflow"]
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "")
    del os.environ["TF_CPP_MIN_LOG_LEVEL"]
    return monkeypatch


def source(path: Path, **options: Any) -> ModelSource:
    return ModelSource("m", 1, path, "cpu", (), (), 0, KIND.options(**options))


class Functions:
    """The functions of a model, and what they were called with."""

    def __init__(self, definitions: dict[str, Any]) -> None:
        self.definitions = definitions
        self.operations = frozenset({"Placeholder", "Mul", "DepthwiseConv2dNative"})
        self.shapes: list[dict[str, Any]] = []

    def run(self, name: str, tensors: Any, outputs: Any) -> Any:
        self.shapes.append({key: array.shape for key, array in tensors.items()})
        return {key: np.zeros(1, np.float32) for key in outputs}

    def close(self) -> None:
        pass


@pytest.fixture
def functions(monkeypatch: pytest.MonkeyPatch) -> Functions:
    """Of a model that is loaded without TensorFlow."""
    made = Functions(
        {
            "serving_default": definition({"image": info(shape=(-1, 28, 28, 1)), "k": info(shape=())}, {"y": info()}),
            "open": definition({"image": info(shape=None)}, {"y": info()}),
        }
    )
    monkeypatch.setattr(backend_module, "import_tensorflow", lambda modules: SimpleNamespace(make_ndarray=np.asarray))
    monkeypatch.setattr(backend_module, "_load", lambda *_: made)
    return made


def load(folder: Path, **options: Any) -> Any:
    (folder / "saved_model.pb").touch()
    return KIND.load(source(folder, **options))


def ask(model: Any, signature: str = "", **shapes: tuple[int, ...]) -> None:
    tensors = {key: np.zeros(shape, np.float32) for key, shape in shapes.items()}
    request = InferRequest(None, tensors, signature=signature)  # type: ignore[arg-type]
    list(model.infer(tensors, ["y"], [request]))


@pytest.mark.parametrize("got", [(), (1,), (1, 28), (28, 28, 1), (1, 1, 28, 28, 1)])
def test_a_rank_that_the_file_does_not_declare_never_reaches_tensorflow(
    got: tuple[int, ...], functions: Functions, tmp_path: Path
) -> None:
    model = load(tmp_path)
    for signature in ("", "serving_default", "no such signature"):
        with pytest.raises(ShapeMismatch) as caught:
            ask(model, signature, image=got, k=())
        assert (caught.value.input, caught.value.got, caught.value.want) == ("image", got, (-1, 28, 28, 1))
    with pytest.raises(ShapeMismatch, match=r"input 'k' of model 'm' has shape \[1\], expected \[\]"):
        ask(model, image=(2, 28, 28, 1), k=(1,))
    assert functions.shapes == []


def test_other_shapes_are_tensorflows_to_judge(functions: Functions, tmp_path: Path) -> None:
    model = load(tmp_path)
    ask(model, image=(2, 5, 28, 3), k=())
    for shape in ((), (3,), (1, 2, 3, 4, 5, 6)):
        ask(model, "open", image=shape)
    ask(load(tmp_path, any_rank=True), image=(1,), k=(2, 2))
    functions.operations = frozenset({"Placeholder", "Mul", "AddV2", "StatefulPartitionedCall"})
    ask(load(tmp_path), image=(7, 7), k=(2, 2))
    with pytest.raises(ShapeMismatch):
        ask(load(tmp_path, any_rank=False), image=(7, 7), k=(2, 2))
    assert [shapes["image"] for shapes in functions.shapes] == [
        (2, 5, 28, 3),
        (),
        (3,),
        (1, 2, 3, 4, 5, 6),
        (1,),
        (7, 7),
    ]


def test_the_operations_of_a_graph_are_those_of_its_functions_too() -> None:
    def node(op: str) -> Any:
        return SimpleNamespace(op=op)

    def function(name: str, *ops: str) -> Any:
        return SimpleNamespace(signature=SimpleNamespace(name=name), node_def=[*map(node, ops)])

    library = SimpleNamespace(function=[function("inner", "Mul"), function("outer", "inner", "Conv2D")])
    graph = SimpleNamespace(graph_def=SimpleNamespace(node=[node("Placeholder"), node("outer")], library=library))
    assert operations_of(graph) == {"Placeholder", "Mul", "Conv2D"}
    assert not takes_any_rank(operations_of(graph))
    assert takes_any_rank(operations_of(graph) - {"Conv2D"})


SAID = {
    "tf_serving": ("POST", "/v1/models/m:predict"),
    "open_inference": ("POST", "/v2/models/m/infer"),
    "grps": ("POST", "/grps/v1/infer/predict"),
}


@pytest.mark.parametrize("dialect", SAID)
def test_callers_are_told_the_input_and_both_shapes(dialect: str) -> None:
    error = ShapeMismatch("image", (1,), (-1, 28, 28, 1), "m", batched=False)
    kinds = registries().dialects[dialect]
    method, target = SAID[dialect]
    found = kinds.make(kinds.options()).match(method, target)
    reply = found.endpoint.encode_error(error, Call(b"", method, target, {}, "http", found.args))
    text = reply.message or bytes(reply.body).decode()  # type: ignore[arg-type]
    assert reply.http_status == (500 if dialect == "grps" else 400), text  # grps has 500 for all that is in a body
    assert "image" in text
    assert "[1]" in text
    assert re.search(r"-1, ?28, ?28, ?1", text), text


@pytest.mark.parametrize(("folder", "options"), [("", {}), ("model.savedmodel", {}), ("my", {"folder": "my"})])
def test_without_tensorflow_the_error_names_the_remedy(
    tmp_path: Path, unloaded: pytest.MonkeyPatch, folder: str, options: dict[str, Any]
) -> None:
    unloaded.setitem(sys.modules, "tensorflow", None)
    (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / folder / "saved_model.pb").write_bytes(b"")
    with pytest.raises(ValueError, match=r"SavedModels need TensorFlow: pip install 'tensorflow>=2.21'"):
        KIND.load(source(tmp_path, **options))


def test_a_folder_without_a_saved_model_is_refused_before_that(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"no such file: {tmp_path}/saved_model.pb"):
        KIND.load(source(tmp_path))


@pytest.mark.parametrize("set_before", [None, "0"])
def test_the_environment_decides_how_much_tensorflow_says(
    unloaded: pytest.MonkeyPatch, tmp_path: Path, set_before: str | None
) -> None:
    (tmp_path / "tensorflow.py").write_text(
        "import os\nLEVEL = os.environ['TF_CPP_MIN_LOG_LEVEL']\nimport logging\n"
        "get_logger = lambda: logging.getLogger('tensorflow-on-paper')\n"
    )
    unloaded.syspath_prepend(tmp_path)
    if set_before is not None:
        unloaded.setenv("TF_CPP_MIN_LOG_LEVEL", set_before)
    logger = logging.getLogger("tensorflow-on-paper")
    logger.setLevel(logging.NOTSET)
    found = library.import_tensorflow()
    assert (set_before or "2") == found.LEVEL
    assert logger.level == (logging.NOTSET if set_before else logging.ERROR)
    with pytest.raises(ValueError, match="modules names 'tensorflow_text_on_paper', which cannot be imported"):
        library.import_tensorflow(["tensorflow_text_on_paper"])
