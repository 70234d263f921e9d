"""A port for gRPC, as everything that looks at its bytes wants it."""

import gc
import logging
from collections.abc import AsyncIterator, Callable

import pytest
from toy_rpc import LANES, Model, Toy, toy_port

from tensorgate.gateway.contract.canonical import ModelView


@pytest.fixture(params=LANES, ids=lambda lane: "lane" if lane else "grpc.aio")
def lane(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
async def toy(make_model: Callable[..., ModelView], lane: bool, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Toy]:
    """Whatever happens on the wire is nothing to complain about in the log."""
    with caplog.at_level(logging.WARNING):
        async with toy_port(make_model("toy", {}, {}, handle=Model()), lane=lane) as running:
            yield running
    assert not caplog.records


@pytest.fixture
def nothing_left() -> None:
    """What earlier tests have let go of is gone, for one that counts what the whole process has taken."""
    gc.collect()
