"""What the configuration says of a signature, fitted to the loaded model. Source: TensorFlow's SignatureDef."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gateway.canonical import Signature, TensorSpec
from gateway.config import SignatureConfig
from gateway.ports import Computation


def signature(
    name: str, config: SignatureConfig, computation: Computation, labels: Mapping[str, tuple[str, ...]]
) -> Signature:
    """What the configuration leaves empty is everything, by the model's own names; `labels` name the classes of
    outputs. Raises ValueError naming what the model does not have.
    """
    takes = {spec.name: spec for spec in computation.inputs}
    gives = {spec.name: replace(spec, labels=labels.get(spec.name, ())) for spec in computation.outputs}
    inputs = config.inputs or {name: name for name in takes}
    outputs = config.outputs or {name: name for name in gives}
    return Signature(
        name,
        _chosen(name, "input", inputs, takes),
        _chosen(name, "output", outputs, gives),
        f"tensorflow/serving/{config.method}",
    )


def _chosen(
    signature: str, what: str, names: Mapping[str, str], specs: Mapping[str, TensorSpec]
) -> dict[str, TensorSpec]:
    unknown = sorted(set(names.values()) - specs.keys())
    if unknown:
        raise ValueError(f"signature {signature} names an {what} that the model does not have: {unknown[0]}")
    return {outer: specs[inner] for outer, inner in names.items()}
