"""What a gRPC call says beside its frames: metadata, deadlines, statuses, compressed messages.

Source: gRPC over HTTP/2 (PROTOCOL-HTTP2), gRPC's compression.
"""

import base64
import gzip
import json
import zlib
from typing import Any

import pytest
from h2_wire import Wire, connect, data, in_frames, literal, message, request
from toy_rpc import BIG, CHAT, COUNT, ECHO, FAIL, HOLD, METADATA_BYTES, TELL, Toy
from waiting import Clock

from tensorgate.gateway.contract.errors import Code


async def tell(wire: Wire, *more: tuple[str, str]) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((await wire.call(TELL, b"", *more)).body)
    return told


# ------------------------------------------------------------------------------------------------------------- metadata


async def test_metadata_arrive_as_they_are(toy: Toy) -> None:
    pairs = [
        ("x-a", "1"),
        ("x-empty", ""),
        ("x-signs", 'a,b; c="%41" ~'),
        ("x-y_z.0", "ok"),
        ("authorization", "Bearer t"),
    ]
    async with await connect(toy.port) as wire:
        told = await tell(wire, *pairs, ("user-agent", "wire/1"))
    assert {name: told["headers"][name] for name, _ in pairs} == dict(pairs)
    assert "wire/1" in told["headers"]["user-agent"]
    assert not [name for name in told["headers"] if name.startswith((":", "grpc-")) or name in ("te", "content-type")]
    assert told["peer"] == "127.0.0.1"


async def test_binary_metadata_are_base64(toy: Toy) -> None:
    raw = base64.b64encode(bytes(range(256))).decode()
    async with await connect(toy.port) as wire:
        for value in (raw, raw.rstrip("="), ""):
            told = await tell(wire, ("x-bin", value), ("x-after", "1"))
            assert told["headers"]["x-bin"].rstrip("=") == value.rstrip("=")
            assert told["headers"]["x-after"] == "1"


async def test_binary_metadata_that_are_no_base64_harm_nobody(toy: Toy) -> None:
    async with await connect(toy.port) as wire:
        for value in ("?", "a", "====", "\x7f"):
            stream = await wire.answer(wire.ask(TELL, b"", ("x-bin", value)))
            assert stream.status in (Code.OK, Code.INTERNAL) or stream.reset is not None
        assert (await wire.call(ECHO, b"hello")).body == b"hello"


async def test_a_header_that_comes_twice(toy: Toy) -> None:
    async with await connect(toy.port) as wire:
        told = await tell(wire, ("x-a", "1"), ("x-a", "2"))
        assert told["headers"]["x-a"] in ("1", "2", "1,2", "1, 2")


@pytest.mark.parametrize("size", [100, METADATA_BYTES // 2])
async def test_metadata_of_usual_sizes(size: int, toy: Toy) -> None:
    async with await connect(toy.port) as wire:
        assert (await tell(wire, ("x-long", "v" * size)))["headers"]["x-long"] == "v" * size


async def test_metadata_that_are_too_large_end_their_call_alone(toy: Toy) -> None:
    async with await connect(toy.port) as wire:
        await wire.settled()
        stream = wire.take()
        block = literal(request(ECHO, ("x-long", "v" * METADATA_BYTES * 3)))
        wire.send(in_frames(stream, block), data(stream, message(b"hello"), end=True))
        answer = await wire.answer(stream)
        assert (
            answer.status in (Code.RESOURCE_EXHAUSTED, Code.INTERNAL)
            or answer.reset is not None
            or answer.header(":status") == "431"
        )
        assert (await wire.call(ECHO, b"hello")).body == b"hello"


async def test_request_ids_come_back(toy: Toy) -> None:
    async with await connect(toy.port) as wire:
        for method, body, status in (
            (ECHO, b"", Code.OK),
            (FAIL, b"5 x", 5),
            (COUNT, b"1 1", Code.OK),
            (CHAT, b"", Code.OK),
        ):
            answer = await wire.call(method, body, ("x-request-id", "mine-1"))
            assert (answer.status, answer.header("x-request-id")) == (status, "mine-1")
        assert (await wire.call(ECHO, b"")).header("x-request-id") is None
        replaced = (await wire.call(ECHO, b"", ("x-request-id", "has spaces and is no id"))).header("x-request-id")
        assert replaced
        assert " " not in replaced


async def test_equal_headers_are_calls_of_their_own(toy: Toy, clock: Clock) -> None:
    """The same block again and again: deadlines and ids are each call's."""
    block = literal(request(TELL, ("grpc-timeout", "5S"), ("x-request-id", "no good id")))
    ids = set()
    async with await connect(toy.port) as wire:
        for stream in (1, 3, 5):
            wire.send(in_frames(stream, block), data(stream, message(b""), end=True))
            answer = await wire.answer(stream)
            left = json.loads(answer.body)["left"]
            assert left == 5 if toy.own_server else 0 < left <= 5
            ids.add(answer.header("x-request-id"))
            await clock.advance(0.3)
    assert len(ids) == 3


# ------------------------------------------------------------------------------------------------------------- statuses


@pytest.mark.parametrize(
    "text",
    [
        "plain", "", "100% of %41", "two\nlines\r\n", "naïve ☃ \U0001f600", "tab\tand \x7f", " ~ ", "%", "a" * 1500,
        'q"uotes\\', "\x01\x1f", "é" * 700,
    ],
)  # fmt: skip
async def test_texts_of_errors_arrive_as_they_are(text: str, toy: Toy) -> None:
    async with await connect(toy.port) as wire:
        answer = await wire.call(FAIL, f"9 {text}".encode())
        assert (answer.status, answer.text) == (9, text)
        raw = answer.header("grpc-message") or ""
        assert all(" " <= sign <= "~" for sign in raw), "percent-encoded: PROTOCOL-HTTP2, Status-Message"


async def test_texts_that_are_too_long_are_cut(toy: Toy) -> None:
    async with await connect(toy.port) as wire:
        stream = wire.open_stream(FAIL)
        await wire.send_data(stream, message(b"9 " + "ü".encode() * 20_000))
        answer = await wire.answer(stream)
        assert answer.status == 9
        assert answer.text == "ü" * len(answer.text)
        assert 900 < len(answer.text) <= 1000


@pytest.mark.parametrize("code", [*range(1, 17)])
async def test_all_codes(code: int, toy: Toy) -> None:
    async with await connect(toy.port) as wire:
        assert (await wire.call(FAIL, b"%d x" % code)).status == code


async def test_a_fault_of_ours_tells_nothing(toy: Toy, caplog: pytest.LogCaptureFixture) -> None:
    async with await connect(toy.port) as wire:
        for method in (ECHO, COUNT, CHAT):
            answer = await wire.call(method, b"bug")
            assert answer.status == Code.INTERNAL
            assert "secret" not in answer.text
            assert "Traceback" not in answer.text
    assert len(caplog.records) == 3
    caplog.clear()


# ------------------------------------------------------------------------------------------------------------ deadlines


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("1H", 3600), ("2M", 120), ("100S", 100), ("99999999m", 99_999.999), ("99999999u", 99.999999), ("007S", 7),
        ("99999999H", 359_999_996_400), ("90000m", 90),
    ],
)  # fmt: skip
async def test_deadlines_in_all_units(given: str, seconds: float, toy: Toy) -> None:
    async with await connect(toy.port) as wire:
        left = (await tell(wire, ("grpc-timeout", given)))["left"]
    if seconds > 1e9:
        assert left is None or left > 1e8
    else:
        assert seconds - 40 < left <= seconds * 1.02


@pytest.mark.parametrize("given", ["1n", "99999999n", "0S", "0m", "1u"])
async def test_deadlines_that_are_over(given: str, toy: Toy) -> None:
    """Nanoseconds are units, too: 99999999n is a tenth of a second."""
    async with await connect(toy.port) as wire:
        answer = await wire.call(HOLD, b"", ("grpc-timeout", given))
        assert answer.status == Code.DEADLINE_EXCEEDED or answer.reset is not None
    await toy.until(lambda: not toy.model.open)


@pytest.mark.parametrize(
    "given", ["", "S", "5", "5s", "-5S", "5.5S", "+5S", "1 S ", "soon", "123456789S", "1" * 5000, "٣S"]
)
async def test_deadlines_that_are_nonsense(given: str, toy: Toy) -> None:
    """The call is answered as if it had none, or refused: never left alone."""
    async with await connect(toy.port) as wire:
        answer = await wire.call(TELL, b"", ("grpc-timeout", given))
        assert (
            answer.status in (Code.OK, Code.INVALID_ARGUMENT, Code.DEADLINE_EXCEEDED, Code.INTERNAL)
            or answer.reset is not None
        )
        assert (await wire.call(ECHO, b"hello")).body == b"hello"


async def test_no_deadline_is_none(toy: Toy) -> None:
    async with await connect(toy.port) as wire:
        assert (await tell(wire))["left"] is None


# ----------------------------------------------------------------------------------------------------------- compressed

PACKED = {"gzip": gzip.compress, "deflate": zlib.compress, "identity": bytes}


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_compressed_messages(encoding: str, toy: Toy) -> None:
    body = b"hello " * 10_000
    packed = message(PACKED[encoding](body), 1)
    async with await connect(toy.port) as wire:
        for parts in ([packed], [packed[:3], packed[3:9], packed[9:]]):
            assert (await wire.say(request(ECHO, grpc_encoding=encoding), *parts)).body == body
        plain = await wire.say(request(ECHO, grpc_encoding=encoding), message(b"plain"))
        assert plain.body == b"plain"
        chat = await wire.say(request(CHAT, grpc_encoding=encoding), packed + message(b"b"), packed)
        assert (chat.messages, chat.status) == ([body, b"b", body], Code.OK)


async def test_answers_are_compressed_only_for_who_can_read_them(toy: Toy) -> None:
    async with await connect(toy.port) as wire:
        accepting = [("grpc-accept-encoding", "identity,deflate,gzip")]
        for more in ([], accepting):
            answer = await wire.call(BIG, b"100000", *more)
            assert answer.header("grpc-encoding") in (None, "identity")
            assert len(answer.body) == 100_000


BOMBS = {
    "gzip": gzip.compress(bytes(30_000_000), 1),
    "deflate": zlib.compress(bytes(30_000_000), 1),
}


@pytest.mark.parametrize("method", [ECHO, CHAT])
@pytest.mark.parametrize("encoding", BOMBS)
async def test_a_bomb_is_not_unpacked(encoding: str, method: str, toy: Toy) -> None:
    async with await connect(toy.port) as wire:
        await wire.settled()
        stream = wire.take()
        wire.send(in_frames(stream, wire.block(request(method, grpc_encoding=encoding))))
        await wire.send_data(stream, message(BOMBS[encoding], 1))
        answer = await wire.answer(stream)
        assert (answer.status, answer.data) == (Code.RESOURCE_EXHAUSTED, b"")
        assert (await wire.call(ECHO, b"hello")).body == b"hello"
    assert toy.model.submitted == 1


@pytest.mark.parametrize(
    "packed",
    [b"", b"no gzip", gzip.compress(b"whole", mtime=0)[:-9], gzip.compress(b"a", mtime=0)[:5], b"\x1f\x8b" * 9],
)
async def test_what_does_not_unpack(packed: bytes, toy: Toy) -> None:
    async with await connect(toy.port) as wire:
        answer = await wire.say(request(ECHO, grpc_encoding="gzip"), message(packed, 1))
        if packed:
            assert answer.status in (Code.UNKNOWN, Code.INVALID_ARGUMENT, Code.INTERNAL) or answer.reset is not None
        else:  # what holds nothing need not be unpacked
            assert answer.status in (Code.OK, Code.UNKNOWN, Code.INVALID_ARGUMENT, Code.INTERNAL)
        assert b"whole" not in answer.data
        assert (await wire.call(ECHO, b"hello")).body == b"hello"


async def test_an_encoding_that_nobody_knows(toy: Toy) -> None:
    async with await connect(toy.port) as wire:
        answer = await wire.say(request(ECHO, grpc_encoding="lzma"), message(b"hello", 1))
        if not toy.own_server:  # grpc.aio says "Error parsing 'grpc-encoding' metadata"
            assert answer.status in (Code.UNIMPLEMENTED, Code.INTERNAL)
            return
        assert answer.status == Code.UNIMPLEMENTED
        accepted = {name.strip() for name in (answer.header("grpc-accept-encoding") or "").split(",")}
        assert {"gzip", "deflate"} <= accepted, "gRPC's compression: the answer says what it knows"
    assert toy.model.submitted == 0


@pytest.mark.parametrize("more", [[], [("grpc-encoding", "identity")]])
async def test_a_compressed_message_of_a_call_that_is_not(more: list[tuple[str, str]], toy: Toy) -> None:
    async with await connect(toy.port) as wire:
        answer = await wire.say(request(ECHO, *more), message(gzip.compress(b"hello"), 1))
        assert answer.status in (Code.INTERNAL, Code.UNIMPLEMENTED) or answer.reset is not None
        assert (await wire.call(ECHO, b"hello")).body == b"hello"
