"""What is no call, or no whole one, at a gRPC port, and what the house itself answers there.

Source: gRPC over HTTP/2 (PROTOCOL-HTTP2).
"""

import h2_wire as h2
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from h2_wire import connect, data, in_frames, message, request
from toy_rpc import CHAT, COUNT, ECHO, LIMIT, TELL, Toy

from tensorgate.gateway.contract.errors import Code
from tensorgate.gateway.wire.http2_frames import END_STREAM

REFUSED = {Code.UNKNOWN, Code.INVALID_ARGUMENT, Code.UNIMPLEMENTED, Code.INTERNAL}


@pytest.mark.parametrize("method", [ECHO, CHAT, COUNT])
async def test_a_message_above_the_limit(method: str, toy: Toy) -> None:
    """Refused by its prefix: nobody waits for what it claims, or keeps it."""
    async with await connect(toy.port) as wire:
        for size in (LIMIT + 1, 0xFFFFFFFF):
            stream = wire.open_stream(method)
            wire.send(data(stream, b"\0" + size.to_bytes(4, "big") + bytes(1000)))
            answer = await wire.answer(stream)
            assert (answer.status, answer.data) == (Code.RESOURCE_EXHAUSTED, b"")
            assert answer.text
        assert (await wire.call(ECHO, b"hello")).body == b"hello"
    assert toy.model.submitted == 1


async def test_a_message_at_the_limit(toy: Toy) -> None:
    async with await connect(toy.port) as wire:
        await wire.settled()
        stream = wire.open_stream(TELL)
        await wire.send_data(stream, message(bytes(LIMIT)), 1 << 14)
        assert f'"size": {LIMIT}'.encode() in (await wire.answer(stream)).body


NO_MESSAGE: dict[str, list[bytes]] = {
    "no data": [],
    "empty data": [b""],
    "half a prefix": [b"\0\0"],
    "a prefix alone": [message(b"hello")[:5]],
    "half a message": [message(b"hello")[:8]],
}


@pytest.mark.parametrize("method", [ECHO, COUNT])
@pytest.mark.parametrize("way", NO_MESSAGE)
async def test_calls_without_a_whole_message(way: str, method: str, toy: Toy) -> None:
    """grpc.aio never answers them, and forgets them with their connection."""
    async with await connect(toy.port) as wire:
        parts = NO_MESSAGE[way]
        stream = wire.take()
        wire.send(in_frames(stream, wire.block(request(method)), 0 if parts else END_STREAM))
        wire.send(*(data(stream, part, end=True) for part in parts))
        answer = await wire.answer(stream) if toy.own_server else wire.streams[stream]
        assert answer.status in REFUSED or answer.reset is not None or not toy.own_server
        assert not answer.data
        assert (await wire.call(ECHO, b"hello")).body == b"hello"
    assert toy.model.submitted == 1


@pytest.mark.parametrize("payload", [b"\0\0", message(b"hello")[:5], message(b"hello")[:8]])
async def test_a_conversation_that_ends_in_mid_message(payload: bytes, toy: Toy) -> None:
    async with await connect(toy.port) as wire:
        answer = await wire.say(request(CHAT), message(b"whole") + payload)
        assert answer.status in {*REFUSED, Code.OK} or answer.reset is not None
        assert (await wire.call(ECHO, b"hello")).body == b"hello"
    assert toy.model.submitted <= 2


@pytest.mark.parametrize("parts", [[message(b"a") + message(b"b")], [message(b"a"), message(b"b")]])
async def test_two_messages_of_a_call_that_takes_one(parts: list[bytes], toy: Toy) -> None:
    async with await connect(toy.port) as wire:
        answer = await wire.say(request(ECHO), *parts)
        assert answer.status in {*REFUSED, Code.OK} or answer.reset is not None
        if answer.status == Code.OK:
            assert answer.body == b"a"
        assert (await wire.call(ECHO, b"hello")).body == b"hello"


@pytest.mark.parametrize(
    "path", ["/toy.Toy/No", "/", "//", "", "*", "/toy.Toy", "/toy.Toy/Echo/", "/toy.Toy/Echo?a", "/" + "x" * 5000]
)
async def test_methods_that_nobody_knows(path: str, toy: Toy) -> None:
    async with await connect(toy.port) as wire:
        answer = await wire.call(path, b"hello")
        assert answer.status == Code.UNIMPLEMENTED or answer.reset is not None or answer.header(":status") == "404"
        assert (await wire.call(ECHO, b"hello")).body == b"hello"
    assert toy.model.submitted == 1


ANSWERED, REFUSED_BY_ALL, EITHER, REFUSED_BY_OURS = "answered", "refused", "either", "refused by ours"
OTHER_HEADERS: dict[str, tuple[h2.Pairs, str]] = {
    "grpc+proto": (request(ECHO, content_type="application/grpc+proto"), ANSWERED),
    "grpc;charset": (request(ECHO, content_type="application/grpc;charset=utf-8"), ANSWERED),
    "https": (request(ECHO, scheme="https"), ANSWERED),
    "host": (request(ECHO, ("host", "test"), without=[":authority"]), ANSWERED),
    "content-length": (request(ECHO, ("content-length", "10")), ANSWERED),
    "no te": (request(ECHO, without=["te"]), EITHER),  # grpc.aio resets these two
    "no authority": (request(ECHO, without=[":authority"]), EITHER),
    "no content-type": (request(ECHO, without=["content-type"]), EITHER),  # and answers these, whatever they mean
    "grpc-web": (request(ECHO, content_type="application/grpc-web"), EITHER),
    "grpcx": (request(ECHO, content_type="application/grpcx"), EITHER),
    "json": (request(ECHO, content_type="application/json"), REFUSED_BY_OURS),
    "GET": (request(ECHO, method="GET"), REFUSED_BY_ALL),
    "PUT": (request(ECHO, method="PUT"), REFUSED_BY_ALL),
}


@pytest.mark.parametrize("way", OTHER_HEADERS)
async def test_other_headers(way: str, toy: Toy) -> None:
    """What is no gRPC is refused by a status of HTTP's or gRPC's, or by a reset: PROTOCOL-HTTP2, Requests."""
    headers, wanted = OTHER_HEADERS[way]
    async with await connect(toy.port) as wire:
        answer = await wire.say(headers, message(b"hello"))
        status = answer.status not in (None, Code.OK) or answer.header(":status") not in (None, "200")
        refused = status or answer.reset is not None
        if wanted == EITHER or (wanted == REFUSED_BY_OURS and not toy.own_server):
            assert refused or answer.body == b"hello"
        elif wanted == ANSWERED:
            assert answer.body == b"hello"
        else:
            assert refused
            assert toy.model.submitted == 0
        assert (await wire.call(ECHO, b"hello")).body == b"hello"


# ------------------------------------------------------------------------------------------------- the house's services


async def test_health(toy: Toy) -> None:
    responses = health_pb2.HealthCheckResponse
    async with await connect(toy.port) as wire:
        for payload in (b"", health_pb2.HealthCheckRequest(service="x").SerializeToString()):
            answer = await wire.call("/grpc.health.v1.Health/Check", payload)
            assert responses.FromString(answer.body).status == responses.SERVING
        assert (await wire.call("/grpc.health.v1.Health/Check", b"\xff")).status == Code.INVALID_ARGUMENT
        stream = wire.ask("/grpc.health.v1.Health/Watch", b"")
        took = wire.streams[stream]
        await wire.until(lambda: took.data)
        toy.service.draining = True
        await wire.until(lambda: len(took.messages) == 2)
        told = [responses.FromString(each).status for each in took.messages]
        assert told == [responses.SERVING, responses.NOT_SERVING]
        wire.send(h2.reset(stream))
        assert (await wire.call(ECHO, b"hello")).body == b"hello"


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_reflection(version: str, toy: Toy) -> None:
    asked = reflection_pb2.ServerReflectionRequest
    async with await connect(toy.port) as wire:
        stream = wire.open_stream(f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo")
        took = wire.streams[stream]
        wire.send(data(stream, message(asked(list_services="").SerializeToString())))
        await wire.until(lambda: took.data)
        (told,) = took.messages
        names = {
            each.name
            for each in reflection_pb2.ServerReflectionResponse.FromString(told).list_services_response.service
        }
        assert {"toy.Toy", "grpc.health.v1.Health"} <= names
        wire.send(
            data(stream, message(asked(file_containing_symbol="grpc.health.v1.Health").SerializeToString()), end=True)
        )
        answer = await wire.answer(stream)
        assert answer.status == Code.OK
        assert b"HealthCheckResponse" in answer.messages[1]
