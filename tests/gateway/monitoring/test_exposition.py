"""The text that Prometheus reads, in both formats, as the client library's own parsers read it."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_plain

from tensorgate.gateway.contract.metrics import Distribution
from tensorgate.gateway.monitoring.exposition import exposition, wants_openmetrics
from tensorgate.gateway.monitoring.families import AnyFamily, Exemplar, counter, gauge, histogram

EVIL = 'a"b\\c\nd, e="f"'
FOREIGN = CounterMetricFamily("users_own", "Counts.", labels=["who"])
FOREIGN.add_metric([EVIL], 5)
FAMILIES: list[AnyFamily] = [
    counter(
        "calls", "How many.\nReally \\.", "model code reason", [((EVIL, "OK"), 3), (("m", "INTERNAL", "x"), 12345678)]
    ),
    gauge("ready", "Whether.", "", [((), True)]),
    FOREIGN,
    gauge("far", "Large and small.", "b a", [(("1", "2"), 1e300), (("3", "4"), -1.5e-9), (("5", "6"), float("inf"))]),
    histogram(
        "seconds",
        "Times.",
        "model",
        [(("m",), Distribution((0.1, 1.0), (2, 0, 1), 3.25)), (("n",), Distribution((0.1, 1.0), (0, 1, 0), 0.5))],
        {("m",): {2: Exemplar("0af7651916cd43dd8448eb211c80319c", 3.125, 1790000000.5)}},
    ),
    histogram("bare", "Without labels.", "", [((), Distribution((0.5,), (1, 0), 0.25))]),
]
EXPECTED = {
    ("calls_total", ("code", "OK"), ("model", EVIL)): 3,
    ("calls_total", ("code", "INTERNAL"), ("model", "m"), ("reason", "x")): 12345678,
    ("ready",): 1,
    ("users_own_total", ("who", EVIL)): 5,
    ("far", ("a", "2"), ("b", "1")): 1e300,
    ("far", ("a", "4"), ("b", "3")): -1.5e-9,
    ("far", ("a", "6"), ("b", "5")): float("inf"),
    ("seconds_bucket", ("le", "0.1"), ("model", "m")): 2,
    ("seconds_bucket", ("le", "1.0"), ("model", "m")): 2,
    ("seconds_bucket", ("le", "+Inf"), ("model", "m")): 3,
    ("seconds_count", ("model", "m")): 3,
    ("seconds_sum", ("model", "m")): 3.25,
    ("seconds_bucket", ("le", "0.1"), ("model", "n")): 0,
    ("seconds_bucket", ("le", "1.0"), ("model", "n")): 1,
    ("seconds_bucket", ("le", "+Inf"), ("model", "n")): 1,
    ("seconds_count", ("model", "n")): 1,
    ("seconds_sum", ("model", "n")): 0.5,
    ("bare_bucket", ("le", "0.5")): 1,
    ("bare_bucket", ("le", "+Inf")): 1,
    ("bare_count",): 1,
    ("bare_sum",): 0.25,
}
MORE = "# HELP nv_count Of Triton's.\n# TYPE nv_count counter\nnv_count 7\n"


def samples(families: Any) -> dict[Any, float]:
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value for family in families for sample in family.samples
    }


def test_plain_text() -> None:
    text = exposition(FAMILIES, MORE).decode()
    assert samples(read_plain(text)) == EXPECTED | {("nv_count_total",): 7}  # the parser says so
    assert "\nnv_count 7\n" in text
    kinds = {family.name: (family.type, family.documentation) for family in read_plain(text)}
    assert kinds["calls"] == ("counter", "How many.\nReally \\.")
    assert kinds["seconds"] == ("histogram", "Times.")
    assert "trace_id" not in text


def test_openmetrics_with_exemplars() -> None:
    text = exposition(FAMILIES, MORE, openmetrics=True).decode()
    assert text.endswith("# EOF\n")
    assert text.count("# EOF") == 1
    families: list[Any] = [*read_openmetrics(text)]  # type: ignore[no-untyped-call]
    assert samples(families) == EXPECTED | {("nv_count",): 7}
    assert {family.name: family.type for family in families}["nv_count"] == "unknown"
    exemplars = [(each.labels, each.exemplar) for family in families for each in family.samples if each.exemplar]
    [(labels, exemplar)] = exemplars
    assert labels == {"model": "m", "le": "+Inf"}
    assert (exemplar.labels, exemplar.value) == ({"trace_id": "0af7651916cd43dd8448eb211c80319c"}, 3.125)
    assert float(exemplar.timestamp) == 1790000000.5


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1", True),
        ("Application/OpenMetrics-Text; Version=1.0.0 ; Q=0.5 , text/plain; q=0.75", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=what", False),
        ("application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;q=0.6,text/plain;q=0.5", False),
    ],
)
def test_what_a_scraper_accepts(accept: str, expected: bool) -> None:
    assert wants_openmetrics(accept) is expected
