"""Header blocks: the specification's own examples, and what is written is read. Source: RFC 7541, appendix C."""

import pytest

from gateway.hpack import BadBlock, Decoder, decode, encode

EXAMPLES = {
    "828684410f7777772e6578616d706c652e636f6d": {
        ":method": "GET",
        ":scheme": "http",
        ":path": "/",
        ":authority": "www.example.com",
    },
    "828684418cf1e3c2e5f23a6ba0ab90f4ff": {
        ":method": "GET",
        ":scheme": "http",
        ":path": "/",
        ":authority": "www.example.com",
    },
    "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c78f0b97c8e9ae82ae43d3": {
        ":status": "302",
        "cache-control": "private",
        "date": "Mon, 21 Oct 2013 20:13:21 GMT",
        "location": "https://www.example.com",
    },
    "040c2f73616d706c652f70617468": {":path": "/sample/path"},
    "100870617373776f726406736563726574": {"password": "secret"},
    "2088": {":status": "200"},
}


@pytest.mark.parametrize("block", EXAMPLES)
def test_the_specification_s_examples(block: str) -> None:
    assert decode(bytes.fromhex(block)) == EXAMPLES[block]


@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 254, 255, 300, 16_511, 20_000, 70_000])
def test_what_is_written_is_read(size: int) -> None:
    headers = {":path": "/" + "p" * size, "x-long": "~" * size, "x-empty": ""}
    assert decode(encode(headers.items())) == headers


@pytest.mark.parametrize(
    "block", ["80", "be", "ff80808080808001", "3f", "3e", "41", "0003ab", "008a", "00018161", "4081ff00"]
)
def test_what_is_no_block_is_refused(block: str) -> None:
    with pytest.raises(BadBlock):
        decode(bytes.fromhex(block))


def test_a_size_behind_a_header_is_refused_even_where_that_header_was_too_long() -> None:
    with pytest.raises(BadBlock):
        Decoder(most_bytes=10).read(encode([("x-long", "~" * 100)]) + b"\x20")
