"""Writes SavedModels of the kinds that people have, by TensorFlow itself: saved_models.py FOLDER.

Runs in the environment .venv-tensorflow.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import tensorflow as tf

v1 = tf.compat.v1
PREDICT, CLASSIFY, REGRESS = (f"tensorflow/serving/{method}" for method in ("predict", "classify", "regress"))
DTYPES = [
    "bool",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "half",
    "bfloat16",
    "float32",
    "float64",
    "string",
]


def signature(inputs: dict[str, Any], outputs: dict[str, Any], method: str, **defaults: Any) -> Any:
    info = v1.saved_model.utils.build_tensor_info
    made = v1.saved_model.signature_def_utils.build_signature_def(
        {name: info(tensor) for name, tensor in inputs.items()},
        {name: info(tensor) for name, tensor in outputs.items()},
        method,
    )
    for name, value in defaults.items():
        made.defaults[name].CopyFrom(tf.make_tensor_proto(value))
    return made


def save_graph(folder: Path, signatures: dict[str, Any], tags: tuple[str, ...] = ("serve",), **more: Any) -> None:
    with v1.Session() as session:
        session.run([v1.global_variables_initializer(), v1.tables_initializer()])
        builder = v1.saved_model.Builder(str(folder))
        builder.add_meta_graph_and_variables(session, list(tags), signature_def_map=signatures, **more)
        builder.save()


def half_plus_two(folder: Path) -> None:
    """y = x / 2 + 2 with variables and Examples, under signatures of every method."""
    with tf.Graph().as_default():
        a, b, c = (v1.get_variable(name, initializer=value) for name, value in (("a", 0.5), ("b", 2.0), ("c", 3.0)))
        examples = v1.placeholder(tf.string, [None], "tf_example")
        parsed = v1.io.parse_example(
            examples,
            {"x": tf.io.FixedLenFeature([1], tf.float32), "x2": tf.io.FixedLenFeature([1], tf.float32, [0.0])},
        )
        x, x2 = tf.identity(parsed["x"], "x"), tf.identity(parsed["x2"], "x2")
        y, y2, y3 = (
            tf.add(tf.multiply(a, of), plus, name) for of, plus, name in ((x, b, "y"), (x, c, "y2"), (x2, c, "y3"))
        )
        labels = tf.tile([["low", "high"]], [tf.size(examples), 1])
        save_graph(
            folder,
            {
                "serving_default": signature({"x": x}, {"y": y}, PREDICT),
                "regress_x_to_y": signature({"inputs": examples}, {"outputs": y}, REGRESS),
                "regress_x_to_y2": signature({"inputs": examples}, {"outputs": y2}, REGRESS),
                "regress_x2_to_y3": signature({"inputs": x2}, {"outputs": y3}, REGRESS),
                "classify_x_to_y": signature({"inputs": examples}, {"scores": y}, CLASSIFY),
                "classify_low_high": signature(
                    {"inputs": examples}, {"classes": labels, "scores": tf.concat([y, y2], 1)}, CLASSIFY
                ),
                "both": signature({"x": x}, {"y": y, "y2": y2}, PREDICT),
                "spectrum": signature({"x": x}, {"y": tf.cast(y, tf.complex64)}, PREDICT),
            },
        )


class Half(tf.Module):
    def __init__(self, plus: float) -> None:
        self.a, self.b = tf.Variable(0.5), tf.Variable(plus)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, "x")])
    def predict(self, x: Any) -> Any:
        return {"y": self.a * x + self.b}


class Examples(tf.Module):
    """A model whose default function takes serialized Examples."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "examples")])
    def predict(self, examples: Any) -> Any:
        return {"y": tf.io.parse_example(examples, {"x": tf.io.FixedLenFeature([], tf.float32)})["x"] * 2}


class Words(tf.Module):
    """A table from a file of words, which is saved along as an asset."""

    def __init__(self, file: Path) -> None:
        file.write_text("zero\none\ntwo\n")
        whole, number = tf.lookup.TextFileIndex.WHOLE_LINE, tf.lookup.TextFileIndex.LINE_NUMBER
        words = tf.lookup.TextFileInitializer(str(file), tf.string, whole, tf.int64, number)
        self.table = tf.lookup.StaticHashTable(words, -1)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "word")])
    def predict(self, word: Any) -> Any:
        return {"id": self.table.lookup(word), "louder": tf.strings.upper(word), "word_bytes": word}


class Several(tf.Module):
    """Inputs of several ranks, a scalar among them; a call of it can be wrong in ways that no signature tells."""

    @tf.function(
        input_signature=[
            tf.TensorSpec(None, tf.float32, "a"), tf.TensorSpec(None, tf.float32, "b"), tf.TensorSpec([], tf.int32, "k")
        ]
    )  # fmt: skip
    def predict(self, a: Any, b: Any, k: Any) -> Any:
        return {"product": tf.matmul(a, b), "times": k * 2, "name": tf.strings.as_string(k)}


class Rows(tf.Module):
    """What every row says, and how many rows the run had."""

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int64, "x"), tf.TensorSpec([None], tf.string, "who")])
    def predict(self, x: Any, who: Any) -> Any:
        checked = tf.debugging.assert_non_negative(x, "x must not be negative")
        with tf.control_dependencies([checked]):
            return {
                "sum": tf.reduce_sum(x, 1),
                "who": tf.identity(who),
                "rows": tf.fill([tf.shape(x)[0]], tf.shape(x)[0]),
            }


class Ballast(tf.Module):
    """64 MiB of variables."""

    def __init__(self) -> None:
        self.weights = tf.Variable(tf.random.uniform([4096, 4096]))

    @tf.function(input_signature=[tf.TensorSpec([None, 4096], tf.float32, "x")])
    def predict(self, x: Any) -> Any:
        return {"y": tf.matmul(x, self.weights)}


CONVOLUTIONS = {
    "conv1d": ([None, 8, 1], [3, 1, 2], lambda x, kernel: tf.nn.conv1d(x, kernel, 1, "SAME")),
    "conv2d": ([None, 8, 8, 1], [3, 3, 1, 2], lambda x, kernel: tf.nn.conv2d(x, kernel, 1, "SAME")),
    "conv3d": ([None, 4, 4, 4, 1], [3, 3, 3, 1, 2], lambda x, kernel: tf.nn.conv3d(x, kernel, [1] * 5, "SAME")),
    "depthwise": (
        [None, 8, 8, 1],
        [3, 3, 1, 2],
        lambda x, kernel: tf.nn.depthwise_conv2d(x, kernel, [1] * 4, "SAME"),
    ),
}
"""Shape of x, of the kernel; kernels of TensorFlow's that CHECK the rank of x."""


def convolution(shape: list[int | None], size: list[int], convolve: Any) -> Any:
    module = tf.Module()
    module.kernel = tf.Variable(tf.ones(size))
    of = tf.TensorSpec(shape, tf.float32, "x")
    module.predict = tf.function(lambda x: {"y": convolve(x, module.kernel)}, input_signature=[of])
    return module


def save_convolutions(folder: Path) -> None:
    for name, made in CONVOLUTIONS.items():
        module = convolution(*made)
        tf.saved_model.save(module, str(folder / name / "1"), signatures={"serving_default": module.predict})


def save_modules(folder: Path) -> None:
    modules = {
        "half_plus_three/123": Half(3.0),
        "examples/1": Examples(),
        "words/1": Words(folder / "words.txt"),
        "several/1": Several(),
        "rows/1": Rows(),
        "ballast/1": Ballast(),
        "triton/1/model.savedmodel": Half(4.0),
    }
    module: Any
    for path, module in modules.items():
        tf.saved_model.save(module, str(folder / path), signatures={"serving_default": module.predict})


def save_datatypes(folder: Path) -> None:
    """A function of any shape for each datatype, which gives what it takes, and no default."""
    module = tf.Module()
    for name in DTYPES:
        of = tf.TensorSpec(None, tf.as_dtype(name), "x")
        setattr(module, name, tf.function(lambda x: {"y": tf.identity(x)}, input_signature=[of]))
    tf.saved_model.save(module, str(folder / "1"), signatures={name: getattr(module, name) for name in DTYPES})


def save_old_words(folder: Path) -> None:
    """A graph with a table, by simple_save; another with a default, under tags of its own."""
    with tf.Graph().as_default():
        word = v1.placeholder(tf.string, [None], "word")
        words = tf.lookup.KeyValueTensorInitializer(["zero", "one"], tf.constant([0, 1], tf.int64))
        number = tf.lookup.StaticHashTable(words, -1).lookup(word)
        with v1.Session() as session:
            session.run(v1.tables_initializer())
            v1.saved_model.simple_save(
                session, str(folder / "1"), {"word": word}, {"id": number}, legacy_init_op=v1.tables_initializer()
            )


def save_tagged(folder: Path) -> None:
    with tf.Graph().as_default():
        x, plus = v1.placeholder(tf.float32, [None], "x"), v1.placeholder(tf.float32, [], "plus")
        signatures = {"add": signature({"x": x, "plus": plus}, {"y": x + plus}, PREDICT, plus=0.5)}
        save_graph(folder / "1", signatures, ("serve", "tpu"))


if __name__ == "__main__":
    models = Path(sys.argv[1])
    half_plus_two(models / "half_plus_two/1")
    save_modules(models)
    save_convolutions(models)
    save_datatypes(models / "datatypes")
    save_old_words(models / "old_words")
    save_tagged(models / "tagged")
