"""Gateways in processes of their own; every one is stopped by SIGTERM, and has to end with exit status 0."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from attacks import Bystanders
from serving import HOST, Gateway, demo_config, running

Serve = Callable[[str], Gateway]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole servers take their time, the more so on a busy machine."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(600 if item.get_closest_marker("heavy") else 300))


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """serve(YAML text) -> a gateway that is ready."""
    started: list[Gateway] = []
    with ExitStack() as stack:

        def start(text: str) -> Gateway:
            file = tmp_path / f"gateway{len(started)}.yaml"
            file.write_text(text)
            started.append(stack.enter_context(running(file)))
            return started[-1]

        yield start
        stop_all(started)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """The shipped demo, one for all tests of a module."""
    file = tmp_path_factory.mktemp("demo") / "demo.yaml"
    file.write_text(demo_config())
    with running(file) as gateway:
        yield gateway
        stop_all([gateway])


def stop_all(gateways: list[Gateway]) -> None:
    for gateway in gateways:
        status = gateway.stop()
        assert status == 0, f"exit status {status}; the gateway said:\n{gateway.said}"
        assert "Traceback" not in gateway.said_itself, gateway.said


# ------------------------------------------------------------------------------------------------------------- attacks


@pytest.fixture(scope="module")
def bystanders(gateway: Gateway, request: pytest.FixtureRequest) -> Iterator[Bystanders]:
    """Who sends good requests to the gateway of a module of attacks."""
    bystanders = getattr(request.module, "BYSTANDERS", Bystanders)(gateway)
    yield bystanders
    bystanders.end()


@pytest.fixture
def undisturbed(gateway: Gateway, bystanders: Bystanders) -> Iterator[None]:
    """An attack happens among bystanders, and the server outlives it."""
    yield
    bystanders.check()
    assert gateway.process.poll() is None


@pytest.fixture(scope="module")
def channel(gateway: Gateway) -> Iterator[Any]:
    """For messages of any size."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(f"{HOST}:{gateway.grpc_port}", options) as channel:
        yield channel
