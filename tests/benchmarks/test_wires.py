"""Real bytes through the handlers by hand, in both directions."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.wires import GRPS, GRPS_NDARRAY, TF_SERVING, V2, WIRES, Wire

ROW = np.array([[1.5, -2.0, 0.1]], np.float32)
REQUESTS = [
    (
        V2,
        b'{"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1.5, -2.0, 0.10000000149011612]}]}',
    ),
    (TF_SERVING, b'{"instances": [[1.5, -2.0, 0.10000000149011612]]}'),
    (
        GRPS,
        b'{"gtensors": {"tensors": [{"name": "x", "dtype": "DT_FLOAT32", "shape": [1, 3], '
        b'"flat_float32": [1.5, -2.0, 0.10000000149011612]}]}}',
    ),
    (GRPS_NDARRAY, b'{"ndarray": [[1.5, -2.0, 0.10000000149011612]]}'),
]
ANSWERS = [
    (
        V2,
        b'{"model_name":"identity","model_version":"1","outputs":'
        b'[{"name":"y","datatype":"FP32","shape":[1,3],"data":[1.5,-2.0,0.1]}]}',
    ),
    (TF_SERVING, b'{"predictions":[[1.5,-2.0,0.1]]}'),
    (
        GRPS,
        b'{"status":{"code":200,"msg":"OK","status":"SUCCESS"},"gtensors":{"tensors":'
        b'[{"name":"y","dtype":"DT_FLOAT32","shape":[1,3],"flat_float32":[1.5,-2.0,0.1]}]}}',
    ),
    (GRPS_NDARRAY, b'{"status":{"code":200,"msg":"OK","status":"SUCCESS"},"ndarray":[[1.5,-2.0,0.1]]}'),
]


@pytest.mark.parametrize(("wire", "body"), REQUESTS, ids=["v2", "tf_serving", "grps", "grps_ndarray"])
def test_requests(wire: Wire, body: bytes) -> None:
    assert wire.request(ROW) == body
    np.testing.assert_array_equal(wire.decode(body), ROW, strict=True)


@pytest.mark.parametrize(("wire", "body"), ANSWERS, ids=["v2", "tf_serving", "grps", "grps_ndarray"])
def test_answers(wire: Wire, body: bytes) -> None:
    assert wire.encode(ROW) == body
    np.testing.assert_array_equal(wire.read(body), ROW, strict=True)


def test_an_answer_of_tf_serving_is_read_with_its_line_breaks() -> None:
    body = b'{\n    "predictions": [[1.5, -2.0, 0.1]\n    ]\n}'
    np.testing.assert_array_equal(TF_SERVING.read(body), ROW, strict=True)


def test_another_output_is_no_answer() -> None:
    with pytest.raises(ValueError, match="INT32"):
        V2.read(b'{"outputs":[{"name":"y","datatype":"INT32","shape":[1,1],"data":[1]}]}')


floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: str(wire.name))
@given(row=st.lists(floats, min_size=1, max_size=40))
def test_every_float_arrives_as_it_left(wire: Wire, row: list[float]) -> None:
    array: Any = np.array([row], np.float32)
    np.testing.assert_array_equal(wire.decode(wire.request(array)), array, strict=True)
    np.testing.assert_array_equal(wire.read(wire.encode(array)), array, strict=True)
