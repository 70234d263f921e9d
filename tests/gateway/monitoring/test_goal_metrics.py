"""What /metrics says of models with a goal."""

from types import SimpleNamespace
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tensorgate.gateway.contract.metrics import GoalStatus
from tensorgate.gateway.monitoring.exposition import exposition
from tensorgate.gateway.monitoring.goal_metrics import goal_families

STATUS = GoalStatus(0.02, 0.9, 16, 0.003, 97, 1, {"goal": 2, "deadline": 3}, 10, 0.05, 0.06, 0.07, 0.001)


def model(name: str, goal: GoalStatus | None) -> Any:
    return SimpleNamespace(model=name, version=1, goal=goal)


def test_nothing_is_said_where_no_model_has_a_goal() -> None:
    assert not [*goal_families([model("plain", None)])]


def test_every_number_of_a_goal_has_its_series() -> None:
    text = exposition(goal_families([model("plain", None), model("m", STATUS)]), "", openmetrics=False).decode()
    samples = {
        (sample.name, sample.labels.get("result") or sample.labels.get("why")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert {labels["model"] for family in text_string_to_metric_families(text) for _, labels, *_ in family.samples} == {
        "m"
    }
    assert samples == {
        ("tensorgate_goal_target_seconds", None): 0.02,
        ("tensorgate_goal_share", None): 0.9,
        ("tensorgate_goal_batch_rows", None): 16,
        ("tensorgate_goal_wait_seconds", None): 0.003,
        ("tensorgate_goal_batches_total", None): 10,
        ("tensorgate_goal_predicted_run_seconds_total", None): 0.05,
        ("tensorgate_goal_run_seconds_total", None): 0.06,
        ("tensorgate_goal_oldest_wait_seconds_total", None): 0.07,
        ("tensorgate_goal_requests_total", "held"): 97,
        ("tensorgate_goal_requests_total", "missed"): 1,
        ("tensorgate_shed_requests_total", "goal"): 2,
        ("tensorgate_shed_requests_total", "deadline"): 3,
    }
