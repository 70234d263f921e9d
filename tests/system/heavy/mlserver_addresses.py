"""Fixtures for MLServer's own tests that name a running gateway instead of the server that they would start.

Imported at the end of its conftest.py files, in .venv-mlserver.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator

import pytest
from httpx import AsyncClient
from mlserver import MLModel, ModelSettings, Settings
from mlserver.registry import MultiModelRegistry


def _address(test: str) -> tuple[str, int]:
    """The HTTP address and the port for gRPC of the gateway that has the test's models: texts have one of their own."""
    kind = "TEXTS" if "generate" in test or "stream" in test else "SUM"
    return os.environ[f"{kind}_HTTP"], int(os.environ[f"{kind}_GRPC"])


@pytest.fixture
def event_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Set as the current one, too: pytest-asyncio asks for it before the first test has one."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield loop
    loop.close()


@pytest.fixture
async def model_registry(sum_model_settings: ModelSettings) -> MultiModelRegistry:
    """What the tests compare answers with; nothing is served from it."""
    registry = MultiModelRegistry()
    await registry.load(sum_model_settings)
    return registry


@pytest.fixture
async def rest_client(
    request: pytest.FixtureRequest, sum_model: MLModel, settings: Settings
) -> AsyncIterator[AsyncClient]:
    url, _ = _address(request.node.name)
    async with AsyncClient(base_url=url) as client:
        await client.post("/v2/repository/models/sum-model/load")  # a test before has unloaded it
        yield client


@pytest.fixture
async def grpc_server(
    request: pytest.FixtureRequest, sum_model: MLModel, sum_model_settings: ModelSettings, settings: Settings
) -> None:
    url, settings.grpc_port = _address(request.node.name)
    async with AsyncClient(base_url=url) as client:
        await client.post("/v2/repository/models/sum-model/load")
