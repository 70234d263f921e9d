"""Every operator that ONNX describes, served through every dialect: the numbers that the runtime gives, to the bit."""

import json
from pathlib import Path

import onnx
import onnxruntime
import pytest
from node_cases import NodeCase, collect
from node_forms import FORMS
from node_world import TOTALS, judge

STEP = 16


@pytest.fixture(scope="module")
def cases() -> list[NodeCase]:
    return collect()


@pytest.mark.filterwarnings("ignore")  # reference numbers overflow on purpose
async def test_a_sample_of_operators_through_every_dialect(cases: list[NodeCase], tmp_path: Path) -> None:
    verdict = await judge(cases[::STEP], tmp_path)
    assert verdict.wrong == []
    assert verdict.totals.keys() == FORMS.keys()
    served = min(counts["equal"] for counts in verdict.totals.values())
    assert served > len(cases) / STEP / 3  # TensorFlow Serving's rows, of which the fewest models have any


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore")
async def test_every_operator_through_every_dialect(cases: list[NodeCase], tmp_path: Path) -> None:
    """Models, forms and refusals are those of the file, where it is about these versions."""
    verdict = await judge(cases, tmp_path)
    assert verdict.wrong == []
    told = json.loads(TOTALS.read_text())
    if (told["onnx"], told["onnxruntime"]) != (onnx.__version__, onnxruntime.__version__):
        pytest.skip(f"{TOTALS.name} is about onnx {told['onnx']} and ONNX Runtime {told['onnxruntime']}")
    assert verdict.plain() == told
