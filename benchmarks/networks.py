"""ONNX models with random weights, made on the spot: what they compute is of no use, and costs what real ones cost.

Weights are scaled so that activations neither vanish nor overflow, whatever the depth, in FP16 too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

_OPSET = 17
_BLOCKS = (3, 4, 6, 3)


class Graph:
    """A graph while it is built: every method adds nodes and returns the name of what they give."""

    def __init__(self, dtype: Any = np.float32, seed: int = 0) -> None:
        self.dtype = np.dtype(dtype)
        self._random = np.random.default_rng(seed)
        self._nodes: list[Any] = []
        self._weights: list[Any] = []

    def node(self, op: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        output = output or f"t{len(self._nodes)}"
        self._nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def weights(self, *shape: int, fan_in: int = 0) -> str:
        """Normal numbers, scaled for so many terms per sum."""
        array = self._random.standard_normal(shape, np.float32) / math.sqrt(fan_in or shape[0])
        name = f"w{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(array.astype(self.dtype), name))
        return name

    def dense(self, x: str, takes: int, gives: int, output: str = "") -> str:
        return self.node("Gemm", x, self.weights(takes, gives), self.weights(gives), output=output)

    def conv(self, x: str, takes: int, gives: int, kernel: int = 3, stride: int = 1) -> str:
        fan_in = takes * kernel * kernel
        weights, bias = self.weights(gives, takes, kernel, kernel, fan_in=fan_in), self.weights(gives)
        edge = kernel // 2
        return self.node("Conv", x, weights, bias, strides=[stride] * 2, pads=[edge] * 4)

    def save(self, path: Path, shape: Sequence[int], classes: int) -> Path:
        """x [N, *shape] -> y [N, classes], both of the graph's dtype. -> the folder with model.onnx"""
        number = helper.np_dtype_to_tensor_dtype(self.dtype)
        x = helper.make_tensor_value_info("x", number, ["N", *shape])
        y = helper.make_tensor_value_info("y", number, ["N", classes])
        graph = helper.make_graph(self._nodes, "benchmark", [x], [y], self._weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8)
        path.mkdir(parents=True, exist_ok=True)
        onnx.save(model, path / "model.onnx")
        return path


def tiny(path: Path, width: int = 16) -> Path:
    """y = x + w: next to nothing. FP32 x [N, width]."""
    graph = Graph()
    graph.node("Add", "x", graph.weights(width), output="y")
    return graph.save(path, [width], width)


def mlp(path: Path, widths: Sequence[int], dtype: Any = np.float32) -> Path:
    """Dense layers with ReLU between them. x [N, widths[0]] -> y [N, widths[-1]]."""
    graph, x = Graph(dtype), "x"
    for takes, gives in pairwise(widths[:-1]):
        x = graph.node("Relu", graph.dense(x, takes, gives))
    graph.dense(x, widths[-2], widths[-1], "y")
    return graph.save(path, widths[:1], widths[-1])


def small_conv(path: Path, size: int = 32, width: int = 16, classes: int = 10) -> Path:
    """Three convolutions and a dense layer. FP32 x [N, 3, size, size] -> y [N, classes]."""
    graph = Graph()
    x = graph.node("Relu", graph.conv("x", 3, width, stride=2))
    for takes in (width, 2 * width):
        x = graph.node("Relu", graph.conv(x, takes, 2 * takes, stride=2))
    flat = graph.node("Flatten", graph.node("GlobalAveragePool", x))
    graph.dense(flat, 4 * width, classes, "y")
    return graph.save(path, [3, size, size], classes)


def resnet50(path: Path, dtype: Any = np.float32, size: int = 224, width: int = 64, classes: int = 1000) -> Path:
    """The shape of ResNet-50, batch normalisation folded into the convolutions: 25.5 million weights and 4.1 billion
    multiplications per image at the size and width that it has. x [N, 3, size, size] -> y [N, classes].
    """
    graph = Graph(dtype)
    x = graph.node("Relu", graph.conv("x", 3, width, kernel=7, stride=2))
    x = graph.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = width
    for stage, blocks in enumerate(_BLOCKS):
        for block in range(blocks):
            x, channels = _bottleneck(graph, x, channels, width << stage, 2 if stage and not block else 1)
    flat = graph.node("Flatten", graph.node("GlobalAveragePool", x))
    graph.dense(flat, channels, classes, "y")
    return graph.save(path, [3, size, size], classes)


def _bottleneck(graph: Graph, x: str, takes: int, width: int, stride: int) -> tuple[str, int]:
    """1x1, 3x3, 1x1 and a way around them; the sum is halved, so that depth does not make it grow."""
    gives = 4 * width
    inner = graph.node("Relu", graph.conv(x, takes, width, kernel=1))
    inner = graph.node("Relu", graph.conv(inner, width, width, stride=stride))
    inner = graph.conv(inner, width, gives, kernel=1)
    around = x if (takes, stride) == (gives, 1) else graph.conv(x, takes, gives, kernel=1, stride=stride)
    return graph.node("Relu", graph.node("Add", inner, around)), gives
