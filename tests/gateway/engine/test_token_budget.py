"""Batches by tokens: what a request's texts cost, who runs together, and what is too much."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from tensorgate.gateway.contract.canonical import InferRequest, ModelView
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.files import FileRef
from tensorgate.gateway.contract.tensor import BYTES, TensorSpec
from tensorgate.gateway.contract.text import TextOptions
from tensorgate.gateway.engine.admission import Admission
from tensorgate.gateway.engine.pending_request import PendingRequest
from tensorgate.gateway.engine.queue import QueuePolicy, RequestQueue
from tensorgate.gateway.engine.token_budget import TokenBudget

TOKENIZER = FileRef("tokenizer.json", Path(__file__).parents[3] / "config/demo/models/writer/tokenizer.json")
KEY = object()
MOST = 24


class Idle:
    """A worker that has nothing to do, and takes turns with nobody."""

    contention = 0


@pytest.fixture
def budget() -> TokenBudget:
    options = {**TextOptions(kind="embedding").__dict__, "tokenizer": TOKENIZER, "max_tokens": 20}
    return TokenBudget(TextOptions.model_construct(**options), MOST, {"text": TensorSpec("text", BYTES, (-1,))})


@pytest.fixture
def ask(make_model: Callable[..., ModelView]) -> Callable[..., InferRequest]:
    view = make_model("m", {"text": ("BYTES", (-1,))}, {"y": ("FP32", (-1,))}, max_batch_size=8)

    def request(*texts: bytes, **changes: Any) -> InferRequest:
        return InferRequest(view, {"text": np.array(texts, object)}, **changes)

    return request


LIGHT, BEGINNING, LONG = b"light", b"In the beginning", b"a" * 100
"""2, 6 and 100 tokens."""


@pytest.mark.parametrize(
    ("texts", "changes", "tokens"),
    [
        ([LIGHT], {}, 2),
        ([LIGHT, BEGINNING], {}, 6),
        ([LONG], {}, 20),  # the model takes no more
        ([LIGHT], {"tokens": 5}, 5),  # the dialect has counted
        ([b"\xff\xfe"], {}, 1),  # no UTF-8 is replaced, and refused later
        ([b"a" * 3000], {}, 20),
        ([b"b" * 2000, b"c" * 45], {}, 20),
        ([b"a" * 30] * 100, {}, 10),  # not counted but guessed, and so not refused
    ],
    ids=lambda value: str(value)[:20],
)
def test_the_tokens_of_the_longest_text(
    budget: TokenBudget, ask: Callable[..., InferRequest], texts: list[bytes], changes: dict[str, Any], tokens: int
) -> None:
    rows = 1 if len(texts) == 2 and len(texts[0]) > 1000 else len(texts)
    assert budget.tokens_of(ask(*texts, **changes), rows) == tokens


def test_tokens_that_are_brought_are_counted_by_their_shape(make_model: Callable[..., ModelView]) -> None:
    options = TextOptions.model_construct(**{**TextOptions(kind="embedding").__dict__, "tokenizer": TOKENIZER})
    ids = TensorSpec("input_ids", np.dtype(np.int64), (-1, -1))
    budget = TokenBudget(options, MOST, {"input_ids": ids})
    view = make_model("m", {"input_ids": ("INT64", (-1, -1))}, {"y": ("FP32", (-1,))}, max_batch_size=8)
    assert budget.tokens_of(InferRequest(view, {"input_ids": np.zeros((3, 8), np.int64)}), 3) == 8
    with pytest.raises(InvalidArgument, match="4 texts of up to 8 tokens are 32 with their padding"):
        budget.tokens_of(InferRequest(view, {"input_ids": np.zeros((4, 8), np.int64)}), 4)


def test_more_than_runs_together_is_refused_with_what_to_do(
    budget: TokenBudget, ask: Callable[..., InferRequest]
) -> None:
    with pytest.raises(InvalidArgument, match=r"5 texts of up to 6 tokens are 30 .* takes 24 at once: send fewer"):
        budget.tokens_of(ask(BEGINNING, *[LIGHT] * 4), 5)


def queue_of(budget: TokenBudget, *, delay_us: int = 0) -> RequestQueue:
    return RequestQueue("m", QueuePolicy(max_batch_size=8, max_queue_delay_us=delay_us), budget)


def waits(queue: RequestQueue, request: InferRequest) -> PendingRequest:
    pending = PendingRequest(request, Admission(len(request.inputs["text"]), KEY), 0.0, queue.left, lambda *_: None)
    queue.add(pending)
    return pending


def taken(queue: RequestQueue) -> list[list[PendingRequest]]:
    """Batch by batch, all that waits."""
    found = []
    while (batch := queue.next_batch([cast("Any", Idle())])) is not None:
        found.append(list(batch[1].members))
    return found


def test_a_long_text_makes_its_batch_small(budget: TokenBudget, ask: Callable[..., InferRequest]) -> None:
    queue = queue_of(budget)
    short = [waits(queue, ask(LIGHT)) for _ in range(7)]
    long = waits(queue, ask(BEGINNING))
    more = [waits(queue, ask(BEGINNING)) for _ in range(5)]
    assert queue.queued_tokens == 7 * 2 + 6 * 6
    assert taken(queue) == [short, [long, *more[:3]], more[3:]]
    assert queue.queued_tokens == queue.queued == 0


def test_who_leaves_takes_their_tokens_along(budget: TokenBudget, ask: Callable[..., InferRequest]) -> None:
    queue = queue_of(budget)
    first, second = waits(queue, ask(LONG)), waits(queue, ask(LIGHT, LIGHT))
    assert queue.queued_tokens == 24
    first.abandon()
    assert queue.queued_tokens == 4
    assert taken(queue) == [[second]]
    assert queue.queued_tokens == 0


def test_what_is_refused_waits_nowhere(budget: TokenBudget, ask: Callable[..., InferRequest]) -> None:
    queue = queue_of(budget)
    with pytest.raises(InvalidArgument):
        waits(queue, ask(LONG, LONG))
    assert queue.queued == queue.queued_tokens == 0
    assert taken(queue) == []


def test_full_of_tokens_waits_for_no_company(
    budget: TokenBudget, ask: Callable[..., InferRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tensorgate.gateway.engine.queue.time.monotonic", lambda: 0.0)
    queue = queue_of(budget, delay_us=1_000_000)
    first = waits(queue, ask(LONG))
    assert taken(queue) == []
    assert queue.next_wakeup_s == pytest.approx(1)
    second = waits(queue, ask(LONG))  # not beside the first, but no more has room there
    assert taken(queue) == [[first]]
    assert queue.queued == 1
    second.abandon()
