"""The python models of the worlds, copied into each: formulas of truth.py as somebody would write them in a class."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np

from tensorgate.gateway.contract.errors import InvalidArgument

TYPES = {"FP16": "float16", "FP32": "float32", "FP64": "float64"}


def made_of(p: Any, inputs: Any, request: Any, step: Any) -> Any:
    given = [inputs.get(name) for name in p["inputs"]]
    bonus = step
    if request is not None:
        bonus += p["signatures"].get(request.signature, 0)
        if p["adds"]:
            bonus += request.parameters.get("add", 0)
    return {each["name"]: one(each, given, bonus, request) for each in p["outputs"]}


def one(o: Any, given: Any, bonus: Any, request: Any) -> Any:
    x = given[0]
    if o["form"] == "id":
        return np.array([request.id.encode()], object)
    if o["form"] == "echo":
        return given[o["of"]]
    if o["form"] == "sum":
        return x.sum(axis=1, keepdims=True, dtype=x.dtype) * x.dtype.type(o["scale"]) + x.dtype.type(o["bias"] + bonus)
    if o["form"] == "fan":
        return x[:, :1].astype(np.float32) * np.array([[1, 2, -1]], np.float32) + np.float32(o["bias"] + bonus)
    y = same(o, given, bonus)
    if o["form"] == "first":
        return y[:, 0] if o["batched"] else y.reshape(-1)[:1]
    return y[x > 2] if o["form"] == "picked" else y


def same(o: Any, given: Any, bonus: Any) -> Any:
    x, others = given[0], given[1:]
    if x.dtype == bool:
        y = x ^ bool((o["bias"] + bonus) & 1)
        for other in others:
            if other is not None:
                y = y ^ other
        return y
    if x.dtype == object:
        y = np.empty(x.shape, object)
        for place in np.ndindex(x.shape):
            # Of another shape an array would come, whose memory join takes for text: addresses.
            parts = [array.reshape(x.shape)[place] for array in given if array is not None]
            y[place] = b"%d:" % (o["bias"] + bonus) + b",".join(parts)
        return y
    y = x * x.dtype.type(o["scale"])
    for weight, other in zip(o["weights"], others, strict=False):
        if other is not None:
            y = y + other * other.dtype.type(weight)
    return y + x.dtype.type(o["bias"] + bonus)


def spoil(p: Any, inputs: Any, answer: Any) -> Any:
    """What a model with a fault does where 99 stands in its first input."""
    x = inputs[p["inputs"][0]]
    if not p["fault"] or not (x == (b"99" if x.dtype == object else 99)).any():
        return answer
    name = p["outputs"][0]["name"]
    y = answer[name]
    if p["fault"] == "raise":
        raise KeyError("no such thing")
    if p["fault"] == "refuse":
        raise InvalidArgument("this is not for me")
    if p["fault"] == "dtype":
        return {**answer, name: np.zeros(y.shape, "uint8" if y.dtype == np.uint16 else "uint16")}
    if p["fault"] == "shape":  # as many rows as it should have, of one element more each
        return {**answer, name: np.concatenate([y, y[..., :1]], axis=-1)}
    if p["fault"] == "rank":
        return {**answer, name: y[..., None]}
    if p["fault"] == "rows":
        return {**answer, name: np.concatenate([y, y[:1]])}
    if p["fault"] == "none":
        return None
    return {key: array for key, array in answer.items() if key != name}  # missing


class Model:
    def __init__(self, context: Any) -> None:
        self.p = context.parameters


class Once(Model):
    def infer(self, inputs: Any, request: Any) -> Any:
        time.sleep(self.p["takes_s"])  # real time: others come meanwhile, and share the next batch
        return spoil(self.p, inputs, made_of(self.p, inputs, request, 0))


class Stream(Model):
    def infer(self, inputs: Any, request: Any) -> Any:
        for step in range(self.p["answers"]):
            answer = made_of(self.p, inputs, request, step)
            yield spoil(self.p, inputs, answer) if step or self.p["answers"] == 1 else answer


class AsyncOnce(Model):
    async def infer(self, inputs: Any, request: Any) -> Any:
        await asyncio.sleep(self.p["takes_s"])  # real time: others come meanwhile, and share the next batch
        return spoil(self.p, inputs, made_of(self.p, inputs, request, 0))


class AsyncStream(Model):
    async def infer(self, inputs: Any, request: Any) -> Any:
        for step in range(self.p["answers"]):
            await asyncio.sleep(0)
            answer = made_of(self.p, inputs, request, step)
            yield spoil(self.p, inputs, answer) if step or self.p["answers"] == 1 else answer
