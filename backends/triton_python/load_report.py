"""How full the cache of a language model is, for balancers that ask for it: Open Request Cost Aggregation.

The numbers are those that the model counts itself, under the name that TensorRT-LLM gives them. Source: Triton's
orca_http.cc, its ORCA header support for TensorRT-LLM.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import orjson

from tensorgate.backends.triton_python.metrics import numbers_of
from tensorgate.gateway.contract.canonical import LOAD_REPORT, InferRequest
from tensorgate.gateway.contract.tensor import ParameterValue

_FAMILY: Final = "nv_trt_llm_kv_cache_block_metrics"
_LABEL: Final = "kv_cache_block_type"
_TYPES: Final = ("used", "max", "tokens_per")


def without_wish(parameters: Mapping[str, ParameterValue]) -> Mapping[str, ParameterValue]:
    """A request's parameters as its model sees them."""
    if LOAD_REPORT not in parameters:
        return parameters
    return {key: value for key, value in parameters.items() if key != LOAD_REPORT}


def with_report(parameters: Mapping[str, ParameterValue], request: InferRequest) -> Mapping[str, ParameterValue]:
    """An answer's parameters, with a report if its request wants one and the model counts what belongs into it."""
    wish = request.parameters.get(LOAD_REPORT)
    report = None if wish is None else _report(str(wish))
    return parameters if report is None else {**parameters, LOAD_REPORT: report}


def _report(form: str) -> str | None:
    blocks = {labels.get(_LABEL): value for labels, value in numbers_of(_FAMILY)}
    if not blocks.keys() >= {*_TYPES}:
        return None
    used, most, tokens = (blocks[each] for each in _TYPES)
    share, capacity = used / most if most > 0 else 0.0, int(most * tokens)
    if form == "json":
        told = {"named_metrics": {"kv_cache_utilization": share, "max_token_capacity": capacity}}
        return f"JSON {orjson.dumps(told).decode()}"
    return f"TEXT named_metrics.kv_cache_utilization={share:.6f}, named_metrics.max_token_capacity={capacity}"
