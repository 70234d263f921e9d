"""Header blocks: the specification's own examples, and what is written is read. Source: RFC 7541, appendix C."""

import hpack
import pytest

from tensorgate.gateway.wire.hpack import BadBlock, Decoder, decode, encode

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
        Decoder(max_bytes=10).read(encode([("x-long", "~" * 100)]) + b"\x20")


SEQUENCES = {
    "C.3, requests": (
        4096,
        ["828684410f7777772e6578616d706c652e636f6d", "828684be58086e6f2d6361636865",
         "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565"],
        [("custom-key", "custom-value"), ("cache-control", "no-cache"), (":authority", "www.example.com")],
    ),
    "C.4, the same in Huffman's code": (
        4096,
        ["828684418cf1e3c2e5f23a6ba0ab90f4ff", "828684be5886a8eb10649cbf",
         "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf"],
        [("custom-key", "custom-value"), ("cache-control", "no-cache"), (":authority", "www.example.com")],
    ),
    "C.5, answers, with evictions": (
        256,
        ["4803333032580770726976617465611d4d6f6e2c203231204f637420323031332032303a31333a323120474d54"
         "6e1768747470733a2f2f7777772e6578616d706c652e636f6d", "4803333037c1c0bf",
         "88c1611d4d6f6e2c203231204f637420323031332032303a31333a323220474d54c05a04677a69707738666f6f3d4153444a4b48514b"
         "425a584f5157454f50495541585157454f49553b206d61782d6167653d333630303b2076657273696f6e3d31"],
        [("set-cookie", "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"), ("content-encoding", "gzip"),
         ("date", "Mon, 21 Oct 2013 20:13:22 GMT")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SEQUENCES)
def test_the_specification_s_tables(name: str) -> None:
    size, blocks, table = SEQUENCES[name]
    decoder = Decoder(1 << 20, size)
    for block in blocks:
        before = decoder.changes
        assert decoder.read(bytes.fromhex(block))
        assert decoder.changes > before
    assert [*decoder._table] == table


ONE = "4001780179"
"""x: y, which becomes an entry."""
BLOCKS: dict[str, tuple[str, bool]] = {
    "2.3.3 the last static entry": ("bd", True),
    "2.3.3 an entry of an empty table": ("be", False),
    "2.3.3 the newest entry": (ONE + "be", True),
    "2.3.3 an entry behind the oldest": (ONE + "bf", False),
    "4.2 no table": ("20", True),
    "4.2 the largest table": ("3fe11f", True),
    "4.2 a larger table": ("3fe21f", False),
    "4.2 two sizes": ("203fe11f82", True),
    "4.2 a size behind a header": ("8220", False),
    "4.3 an entry that a size has taken": (ONE + "be", True),
    "4.4 an entry larger than the table": ("2040017801798282", True),
    "4.4 and what would be it": ("20400178017 9be".replace(" ", ""), False),
    "5.1 a number of many bytes": ("ff80808080808080808001", False),
    "5.1 a number that is cut": ("ff", False),
    "5.1 zeros behind a number": ("3f8080808000", True),
    "5.2 a text that is cut": ("00017805616263", False),
    "5.2 Huffman: the padding are zeros": ("0001788100", False),
    "5.2 Huffman: the padding are ones": ("000178811f", True),
    "5.2 Huffman: a whole byte of padding": ("000178821fff", False),
    "5.2 Huffman: the end within": ("00017884ffffffff", False),
    "6.1 entry 0": ("80", False),
    "6.2.1 a name that is no entry": ("7f8001", False),
    "6.2.2 a name of the table": ("0401 2f".replace(" ", ""), True),
    "6.2.3 never indexed": ("1001780179", True),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block(name: str) -> None:
    """RFC 7541, section by section: whether it is one."""
    block, is_one = BLOCKS[name]
    decoder = Decoder(1 << 20)
    if is_one:
        decoder.read(bytes.fromhex(block))
    else:
        with pytest.raises(BadBlock):
            decoder.read(bytes.fromhex(block))
    try:
        hpack.Decoder().decode(bytes.fromhex(block), raw=True)
    except hpack.HPACKError:
        assert not is_one, "the oracle is of another mind"
    else:
        assert is_one, "the oracle is of another mind"
