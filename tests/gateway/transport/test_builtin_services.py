"""What every gRPC port answers for the house: health, reflection, compressed calls."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from aio_port import AioServer
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from tensorgate.adapters.protobuf.messages import file_set
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.canonical import ModelRef
from tensorgate.gateway.contract.dialect import Dialect, Endpoint, Match, Resolve
from tensorgate.gateway.contract.errors import GatewayError, ModelNotFound
from tensorgate.gateway.contract.questions import ServerDescription, ServerLive
from tensorgate.gateway.monitoring.metrics import MetricsCollector
from tensorgate.gateway.service import Service
from tensorgate.gateway.transport.grpc_exchange import GrpcLimits
from tensorgate.gateway.transport.grpc_port import GrpcListener
from tensorgate.gateway.transport.grpc_server import GrpcServer
from tensorgate.gateway.transport.sockets import bind

LIMIT = 100_000
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
REFLECTION = [f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo" for version in ("v1", "v1alpha")]


NOTHING: Any = {"name": "Nothing", "extension_range": [{"start": 1000, "end": 1001}]}
EXTENSION: Any = {"name": "more", "number": 1000, "label": 1, "type": 9, "extendee": ".toy.Nothing"}


def toy_descriptors() -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in file_set().file:
        pool.Add(file)
    pool.Add(descriptor_pb2.FileDescriptorProto(name="base.proto", package="toy", message_type=[NOTHING]))
    method = {"name": "Size", "input_type": ".toy.Nothing", "output_type": ".toy.Nothing"}
    service: Any = {"name": "Toy", "method": [method]}
    pool.Add(
        descriptor_pb2.FileDescriptorProto(
            name="toy.proto", package="toy", dependency=["base.proto"], service=[service], extension=[EXTENSION]
        )
    )
    return pool


def toy() -> Dialect:
    """Answers with the size of a message."""

    def decode(call: Call, resolve: Resolve) -> ServerLive:
        size = len(call.body)
        call.notes["size"] = str(size)
        raise GatewayError(f"{size} bytes")

    def encode_error(error: GatewayError, call: Call) -> Reply:
        return Reply(call.notes["size"].encode())

    endpoint = Endpoint("", "size", decode, lambda answer, question: Reply(b""), encode_error)

    methods = {"/toy.Toy/Size": endpoint}
    return Dialect("toy", "Toy", "/toy", lambda method, target: Match(endpoint), lambda view: None, methods)


class House:
    def __init__(self, speak: Callable[..., Any]) -> None:
        self.ready_models = {"good": True, "bad": False}
        config: Any = SimpleNamespace(readiness="strict", expose_model_errors=True, routes={}, models={})
        engine: Any = SimpleNamespace(
            is_complete=lambda: True,
            regions=None,
            ask=None,
            resolve=self.resolve,
            resolver=lambda call: None,
            discovers=False,
            check_forward=lambda call, ref: None,
            forwarded=lambda kind, named: None,
            named=lambda call: ("", ""),
            names=lambda: tuple(self.ready_models),
            is_public=lambda name: name in self.ready_models,
        )
        self.service = Service(config, engine, MetricsCollector(), ServerDescription("t", "1"))
        self.service.started = True
        self.listener = GrpcListener(self.service, [toy()], GrpcLimits(LIMIT), toy_descriptors(), make_port=speak)
        self.channel: Any = None

    def resolve(self, ref: ModelRef) -> Any:
        if not self.ready_models.get(ref.name):
            raise ModelNotFound(ref.name)
        return SimpleNamespace(handle=SimpleNamespace(is_ready=lambda: True))


@pytest.fixture(params=[GrpcServer, AioServer])
async def house(request: pytest.FixtureRequest) -> AsyncIterator[House]:
    house = House(request.param)
    sock = bind("127.0.0.1", 0)
    port = sock.getsockname()[1]
    await house.listener.start(sock)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as house.channel:
        yield house
    await house.listener.stop(0)


# -------------------------------------------------------------------------------------------------------------- health


async def check(house: House, name: str) -> Any:
    body = health_pb2.HealthCheckRequest(service=name).SerializeToString()
    return health_pb2.HealthCheckResponse.FromString(await house.channel.unary_unary(CHECK)(body)).status


async def test_health_is_the_servers_or_a_models(house: House) -> None:
    asked = ("", "toy.Toy", "anything", "good", "bad")
    assert [await check(house, name) for name in asked] == [SERVING, SERVING, SERVING, SERVING, NOT_SERVING]
    house.service.started = False
    assert [await check(house, name) for name in asked] == [NOT_SERVING] * 3 + [SERVING, NOT_SERVING]
    house.service.started = house.service.draining = True
    assert [await check(house, name) for name in asked] == [NOT_SERVING] * 5


async def test_a_watch_tells_every_change_and_ends_with_the_server(house: House) -> None:
    body = health_pb2.HealthCheckRequest(service="bad").SerializeToString()
    watch = house.channel.unary_stream(WATCH)(body)

    async def told() -> Any:
        answer = await asyncio.wait_for(watch.read(), 50)
        return answer if answer is grpc.aio.EOF else health_pb2.HealthCheckResponse.FromString(answer).status

    assert await told() == NOT_SERVING
    house.ready_models["bad"] = True
    assert await told() == SERVING
    house.service.draining = True
    stopping = asyncio.create_task(house.listener.stop(600))
    assert await told() == NOT_SERVING
    assert await told() is grpc.aio.EOF
    await stopping


async def test_what_is_no_health_question_is_refused(house: House) -> None:
    for call in (house.channel.unary_unary(CHECK)(b"\xff"), house.channel.unary_stream(WATCH)(b"\xff").read()):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert caught.value.details() == "not a valid grpc.health.v1.HealthCheckRequest"


# ---------------------------------------------------------------------------------------------------------- reflection


async def reflect(house: House, method: str, *questions: Any) -> list[Any]:
    call = house.channel.stream_stream(method)()
    for question in questions:
        await call.write(reflection_pb2.ServerReflectionRequest(**question).SerializeToString())
    await call.done_writing()
    return [reflection_pb2.ServerReflectionResponse.FromString(answer) async for answer in call]


@pytest.mark.parametrize("method", REFLECTION)
async def test_reflection(method: str, house: House) -> None:
    services, by_symbol, by_file, *own, unknown, nothing = await reflect(
        house,
        method,
        {"list_services": ""},
        {"file_containing_symbol": "toy.Toy.Size"},
        {"file_by_filename": "toy.proto"},
        {"file_containing_symbol": "grpc.health.v1.Health"},
        {"file_containing_symbol": method.split("/")[1]},
        {"file_containing_symbol": "toy.Toy.Absent"},
        {},
    )
    assert {each.name for each in services.list_services_response.service} == {
        "toy.Toy",
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    }
    for answer in (by_symbol, by_file):
        files = map(
            descriptor_pb2.FileDescriptorProto.FromString, answer.file_descriptor_response.file_descriptor_proto
        )
        assert [each.name for each in files] == ["toy.proto", "base.proto"]
    assert [each.HasField("file_descriptor_response") for each in own] == [True, True]
    assert unknown.original_request.file_containing_symbol == "toy.Toy.Absent"
    told = [(each.error_response.error_code, each.error_response.error_message) for each in (unknown, nothing)]
    assert told == [status.value for status in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT)]


@pytest.mark.parametrize("method", REFLECTION)
async def test_reflection_of_extensions(method: str, house: House) -> None:
    """Of a type that has one, 1000, in the file toy.proto; and of what is not there."""
    extension = {"containing_type": "toy.Nothing", "extension_number": 1000}
    numbers, file, absent, *unknown = await reflect(
        house,
        method,
        {"all_extension_numbers_of_type": "toy.Nothing"},
        {"file_containing_extension": extension},
        {"file_containing_extension": extension | {"extension_number": 1}},
        {"all_extension_numbers_of_type": "toy.Absent"},
        {"file_containing_extension": extension | {"containing_type": "toy.Absent"}},
        {"file_by_filename": "absent.proto"},
    )
    told = numbers.all_extension_numbers_response
    assert (told.base_type_name, [*told.extension_number]) == ("toy.Nothing", [1000])
    assert len(file.file_descriptor_response.file_descriptor_proto) == 2
    assert {each.error_response.error_code for each in (absent, *unknown)} == {grpc.StatusCode.NOT_FOUND.value[0]}


async def test_what_is_no_reflection_question_is_refused(house: House) -> None:
    call = house.channel.stream_stream(REFLECTION[0])()
    await call.write(b"\xff")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_server_that_stops_waits_for_no_reflection(house: House) -> None:
    call = house.channel.stream_stream(REFLECTION[0])()
    await call.write(reflection_pb2.ServerReflectionRequest(list_services="").SerializeToString())
    await call.read()
    async with asyncio.timeout(5):
        await house.listener.stop(20)


# ------------------------------------------------------------------------------------------------------------ messages


@pytest.mark.parametrize(("error", "logged"), [(grpc.aio.InternalError("execute_batch"), False), (KeyError(), True)])
def test_only_faults_of_ours_are_logged(error: Exception, logged: bool) -> None:
    """A busy server may hear of a client's leaving no sooner than it sends the answer: an error to grpc."""
    log = logging.getLogger("grpc._cython.cygrpc")
    record = log.makeRecord(log.name, logging.ERROR, "", 0, "raised", (), (type(error), error, None))
    assert bool(log.filter(record)) is logged


@pytest.mark.parametrize("coding", [grpc.Compression.NoCompression, grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_messages_may_be_compressed_and_are_bounded_all_the_same(coding: Any, house: House) -> None:
    size = house.channel.unary_unary("/toy.Toy/Size")
    assert await size(bytes(LIMIT), compression=coding) == str(LIMIT).encode()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await size(bytes(LIMIT * 20), compression=coding)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
