"""A port for gRPC, as everything that looks at its bytes wants it."""

import gc
import logging
from collections.abc import AsyncIterator, Callable

import pytest
from toy_rpc import OWN_SERVER, Model, Toy, toy_port

from tensorgate.gateway.contract.canonical import ModelView


@pytest.fixture(params=OWN_SERVER, ids=lambda own_server: "gateway" if own_server else "grpc.aio")
def own_server(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
async def toy(
    make_model: Callable[..., ModelView], own_server: bool, caplog: pytest.LogCaptureFixture
) -> AsyncIterator[Toy]:
    """Whatever happens on the wire is nothing to complain about in the log."""
    with caplog.at_level(logging.WARNING):
        async with toy_port(make_model("toy", {}, {}, handle=Model()), own_server=own_server) as running:
            yield running
    assert not caplog.records


@pytest.fixture
def nothing_left() -> None:
    """What earlier tests have let go of is gone, for one that counts what the whole process has taken."""
    gc.collect()
