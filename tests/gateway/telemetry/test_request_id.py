"""Names of calls: which of callers' own are kept, and that made ones differ."""

import os

import pytest

from tensorgate.gateway.telemetry.request_id import LONGEST, is_valid, maker, new


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", True),
        ("0af7651916cd43dd8448eb211c80319c", True),
        ("x" * LONGEST, True),
        ("x" * (LONGEST + 1), False),
        ("", False),
        ("a b", False),
        ("a\r\nb", False),
        ("é", False),
        ("\udcff", False),
        ("\x7f", False),
        ("a\n", False),
    ],
)
def test_what_goes_into_headers(text: str, expected: bool) -> None:
    assert is_valid(text) is expected


def test_made_ones_are_unique_and_sane() -> None:
    one, other = maker(), maker()
    names = [make() for make in (one, other) for _ in range(1000)]
    assert len(set(names)) == 2000
    assert all(map(is_valid, names))


def test_a_fork_makes_other_ids() -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writing, new().encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(reading, 100).decode().partition("-")[0]
    assert len(theirs) == len(new().partition("-")[0])
    assert theirs != new().partition("-")[0]
    os.close(reading)
    os.close(writing)
