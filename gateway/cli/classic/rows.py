"""Rows to compare two forms of a model on: where trees branch, around it, far from it, and with values missing.

A converted model differs from its library's, if anywhere, where a comparison goes the other way: at a threshold, and at
the numbers next to it. So every threshold of the ONNX trees is met by rows that are it, and that are its neighbours in
the input's precision. All is the same at every run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tensorgate.gateway.cli.classic.conversion import TREES
from tensorgate.gateway.contract.tensor import Array

RANDOM: Final = 2048
MISSING: Final = 512
_MAX_THRESHOLDS: Final = 8192


@dataclass(frozen=True, slots=True)
class ProofRows:
    """Rows [N, features], and how many are there for what; so many features have categories."""

    x: Array
    thresholds: int
    missing: int
    categories: int = 0

    def about(self) -> str:
        """How many rows of which kind, for people."""
        kinds = [f"{self.thresholds} at thresholds and next to them"] if self.thresholds else []
        kinds += [f"{self.missing} with missing values"] if self.missing else []
        kinds += [f"{self.categories} features with the categories that are known"] if self.categories else []
        return f"{len(self.x)} rows" + (f", {', '.join(kinds)}" if kinds else "")


def thresholds_of(made: Any) -> Mapping[int, Array]:
    """The values that the trees of an onnx.ModelProto compare each feature with, FP64."""
    found: dict[int, list[Array]] = {}
    for node in made.graph.node:
        if node.op_type not in TREES:
            continue
        given = {each.name: each for each in node.attribute}
        features, modes = np.array(given["nodes_featureids"].ints), np.array(given["nodes_modes"].strings)
        values = _values(given)
        for feature in np.unique(features[modes != b"LEAF"]).tolist():
            found.setdefault(feature, []).append(values[(features == feature) & (modes != b"LEAF")])
    return {feature: np.unique(np.concatenate(some)) for feature, some in found.items()}


def _values(given: Mapping[str, Any]) -> Array:
    if "nodes_values_as_tensor" in given:
        return np.frombuffer(given["nodes_values_as_tensor"].t.raw_data, np.float64)
    return np.array(given["nodes_values"].floats, np.float64)


def make_rows(
    features: int,
    thresholds: Mapping[int, Array],
    categories: Mapping[int, Sequence[float]],
    dtype: np.dtype[Any],
    *,
    missing: bool,
) -> ProofRows:
    """Rows for a model of so many features; `missing`: some without all of their values. A feature that has categories
    is one of them.
    """
    thresholds = {feature: values for feature, values in thresholds.items() if feature not in categories}
    random = np.random.default_rng(0)
    middle, width = np.zeros(features), np.ones(features)
    for feature, values in thresholds.items():
        middle[feature] = values.mean()
        width[feature] = max(float(values.std()), abs(middle[feature]) * 1e-3, 1e-6)
    base = middle + width * random.normal(size=(RANDOM, features))
    base[RANDOM // 2 :] = middle + width * random.choice([0.0, 1.0, 3.0, 30.0], (RANDOM - RANDOM // 2, features)) * (
        random.choice([-1.0, 1.0], (RANDOM - RANDOM // 2, features))
    )
    whole = random.random(features) < 0.5  # of categories and counts, whole numbers
    base[: RANDOM // 4, whole] = np.rint(base[: RANDOM // 4, whole])
    for feature, values in categories.items():
        base[:, feature] = random.choice(values, RANDOM)
    parts = [base.astype(dtype)]
    pairs = [(feature, value) for feature, values in sorted(thresholds.items()) for value in values.tolist()]
    if len(pairs) > _MAX_THRESHOLDS:
        pairs = [pairs[each] for each in random.choice(len(pairs), _MAX_THRESHOLDS, replace=False).tolist()]
    if pairs:
        parts.append(_at(pairs, parts[0], dtype, random))
    if missing:
        holes = parts[0][random.integers(0, RANDOM, MISSING)].copy()
        holes[random.random(holes.shape) < 0.3] = np.nan
        holes[0] = np.nan
        parts.append(holes)
    return ProofRows(np.concatenate(parts), 3 * len(pairs), MISSING if missing else 0, len(categories))


def _at(pairs: list[tuple[int, float]], base: Array, dtype: np.dtype[Any], random: np.random.Generator) -> Array:
    """For each threshold three rows: the value itself, and the next ones below and above."""
    features = np.array([feature for feature, _ in pairs])
    values = np.array([value for _, value in pairs]).astype(dtype)
    around = [values, np.nextafter(values, dtype.type(-np.inf)), np.nextafter(values, dtype.type(np.inf))]
    rows = base[random.integers(0, len(base), len(pairs) * 3)].copy()
    rows[np.arange(len(rows)), np.tile(features, 3)] = np.concatenate(around)
    return rows
