"""Sample requests to POST /v1/models/{model}:predict, :classify and :regress in JSON, of a model's example inputs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import numpy as np
import pybase64

from tensorgate.adapters.tf_serving.classify_regress import Verb, suits
from tensorgate.adapters.tf_serving.json_text import number_rows
from tensorgate.adapters.tf_serving.tensors import WITHOUT_JSON, Tensor
from tensorgate.gateway.contract.canonical import ModelView
from tensorgate.gateway.contract.dialect import SampleRequest
from tensorgate.gateway.contract.tensor import BYTES, DEFAULT_SIGNATURE, Signature


def sample(view: ModelView) -> SampleRequest | None:
    """`:predict`: by rows, or by columns where the inputs have no common number of rows.

    None without example inputs, for what JSON cannot carry (some dtypes, and the shape of an empty tensor), and for
    models that stream.
    """
    signature = view.signatures.get(DEFAULT_SIGNATURE)
    if signature is None or view.decoupled:
        return None
    if any(spec.name not in view.example_inputs for spec in signature.inputs.values()):
        return None
    inputs = {name: np.asarray(view.example_inputs[spec.name]) for name, spec in signature.inputs.items()}
    if not inputs or any(not tensor.size or tensor.dtype in WITHOUT_JSON for tensor in inputs.values()):
        return None
    return SampleRequest(f"/v1/models/{quote(view.name, safe='')}:predict", json.dumps(_body(inputs)), title="predict")


def samples(view: ModelView) -> Iterator[SampleRequest]:
    """Every way to call the model: predict, and the first signature that classifies and that regresses."""
    if view.configuration.get("sequences"):
        return
    if (request := sample(view)) is not None:
        yield request
    verbs: tuple[Verb, ...] = ("classify", "regress")
    for verb in verbs:
        for signature in view.signatures.values():
            example = None if view.decoupled or not suits(signature, verb) else _example(view, signature)
            if example is not None:
                body = json.dumps({"signature_name": signature.name, "examples": [example]})
                yield SampleRequest(f"/v1/models/{quote(view.name, safe='')}:{verb}", body, title=verb)
                break


def _example(view: ModelView, signature: Signature) -> dict[str, Any] | None:
    """A tf.Example as JSON, flat values by feature, of the first row; None where the model's example has no values that
    one can carry.
    """
    features = signature.features or signature.inputs
    found: dict[str, Any] = {}
    for feature, spec in features.items():
        if spec.name not in view.example_inputs:
            if feature in signature.defaults:
                continue
            return None
        tensor = np.asarray(view.example_inputs[spec.name])
        row = tensor[0] if tensor.ndim else tensor
        if not row.size or row.dtype in WITHOUT_JSON:
            return None
        values = np.asarray(_nested(np.asarray(row).reshape(-1)), np.object_).reshape(-1).tolist()
        found[feature] = values[0] if len(values) == 1 else values
    return found


def _body(inputs: dict[str, Tensor]) -> dict[str, Any]:
    nested = {name: _nested(tensor) for name, tensor in inputs.items()}
    rows = {tensor.shape[:1] for tensor in inputs.values()}
    if len(rows) > 1 or () in rows:
        return {"inputs": nested}
    if len(nested) == 1:
        [values] = nested.values()
        return {"instances": values}
    return {"instances": [dict(zip(nested, row, strict=True)) for row in zip(*nested.values(), strict=True)]}


def _nested(tensor: Tensor) -> Any:
    """Python values that json.dumps writes as this dialect reads them, floats with as few digits as it writes."""
    if tensor.dtype == BYTES:
        leaves: list[Any] = [_string(value) for value in tensor.reshape(-1)]
    elif tensor.dtype.kind == "f":
        leaves = [float(text) for text in number_rows(tensor, 1)]
    else:
        return tensor.tolist()
    flat = np.empty(len(leaves), np.object_)
    flat[:] = leaves
    return flat.reshape(tensor.shape).tolist()


def _string(value: bytes) -> Any:
    """Text as it is, anything else in base64."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"b64": pybase64.b64encode_as_string(value)}
