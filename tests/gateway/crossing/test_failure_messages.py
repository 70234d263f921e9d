"""Errors cross with what their callers are told beside the text; what cannot be said leaves no half frame behind."""

import pytest

from tensorgate.gateway.contract.errors import Unavailable
from tensorgate.gateway.crossing.failures import error_of, failure_of
from tensorgate.gateway.crossing.frames import FrameReader, add_frame
from tensorgate.gateway.crossing.messages import Failure


def test_headers_of_an_error_cross() -> None:
    error = Unavailable("away")
    error.http_headers = type(error.http_headers)({"Retry-After": "1"})
    frame = bytearray()
    add_frame(failure_of(1, error), frame)
    (said,) = FrameReader[Failure](Failure).receive(memoryview(frame))
    found = error_of(said)
    assert (type(found), found.http_headers) == (Unavailable, {"Retry-After": "1"})


def test_what_cannot_be_said_leaves_nothing_behind() -> None:
    frame = bytearray(b"before")
    with pytest.raises(TypeError):
        add_frame(Failure(1, "Unavailable", "", {"fact": object()}), frame)
    assert frame == b"before"
