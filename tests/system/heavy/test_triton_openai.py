"""The tests of Triton's OpenAI frontend, unmodified but for their fixtures, which start Triton in their own process and
load models of gigabytes: here they are given a running gateway, with a model of words and a real encoder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from client_scripts import environment
from serving import DEMO, HOST, ROOT, running

pytestmark = pytest.mark.heavy

PYTHON = ROOT / ".venv-text/bin/python"
TORCH = ROOT / ".venv-torch/bin/python"
VARIABLE = "TRITON_FRONTEND"
COMMIT = "commit e1db8a603d863b1317ee859bdeea2be19959462e"
HERE = Path(__file__).parent
RUNS_WITHIN_S = 300.0
OPTIONS = ("-q", "-rfE", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto")
WRITER = DEMO.parent / "demo/models/writer"
MODEL, ENCODER = "llama-3.1-8b-instruct", "all-MiniLM-L6-v2"
CONFTEST = """
import os

import httpx
import pytest
from tests.utils import OpenAIServer

MESSAGE = "What is machine learning?"
VALUES = {
    "backend": "vllm",
    "model": "%s",
    "prompt": MESSAGE,
    "messages": [{"role": "user", "content": MESSAGE}],
    "input": "This is a sentence.",
    "embedding_model": "%s",
    "tokenizer_model": "",
    "model_repository": "",
    "tool_call_parser": "",
}


def given(name):
    @pytest.fixture(scope="session", name=name)
    def value():
        return VALUES[name]

    return value


for each in VALUES:
    globals()[each] = given(each)


@pytest.fixture(scope="session")
def server():
    return OpenAIServer()


@pytest.fixture(scope="session")
def fastapi_client_class_scope():
    with httpx.Client(base_url=f"http://{os.environ['GATEWAY']}", timeout=30) as client:
        yield client


fastapi_client = fastapi_client_class_scope


def pytest_configure(config):
    config.addinivalue_line("markers", "openai: those of OpenAI's client")
"""
UTILS = """
import os

import openai


def setup_server(*args, **options):
    raise RuntimeError("a server in this process")


setup_fastapi_app = setup_server


class OpenAIServer:
    def __init__(self, *args, **options):
        self.url_root = f"http://{os.environ['GATEWAY']}"

    def get_client(self):
        return openai.OpenAI(base_url=f"{self.url_root}/v1", api_key="EMPTY")

    def get_async_client(self):
        return openai.AsyncOpenAI(base_url=f"{self.url_root}/v1", api_key="EMPTY")
"""
STAND_INS = {
    "fastapi/__init__.py": "",
    "fastapi/testclient.py": "class TestClient:\n    pass\n",
    "tritonserver.py": "class ModelControlMode:\n    NONE = EXPLICIT = 0\n\n\nclass Server:\n    pass\n",
}
"""What the modules import of Triton's process."""
TESTS = {
    "words": ("test_completions.py", "test_chat_completions.py", "test_openai_client.py"),
    "vectors": ("test_embeddings.py",),
}
"""Which of the models is there -> the modules that ask for it. The others test Triton's own process: sizes of requests
to its front end, its restricted addresses, its models' repository, adapters of a model of vLLM's.
"""
CHOICES = "several choices are served, and not refused"
BIAS = "logit_bias is refused in other words"
DIFFERENT = {
    **{f"TestCompletions.test_completions_multiple_choices[sampling_parameter_dict{n}]": CHOICES for n in range(4)},
    "TestChatCompletions.test_chat_completions_multiple_choices": CHOICES,
    "TestCompletions.test_completions_sampling_parameters[logit_bias-value7]": BIAS,
    "TestChatCompletions.test_chat_completions_sampling_parameters[logit_bias-param_value11]": BIAS,
    **dict.fromkeys(
        (
            f"TestChatCompletionsTokenizers.test_chat_completions_{each}_tokenizer"
            for each in ("no", "custom", "invalid_chat")
        ),
        "they start Triton in their own process",
    ),
}
"""Test -> why the gateway does something else, on purpose."""
COUNTS = {"words": (101, 111), "vectors": (19, 19)}
"""How many tests pass, and how many there are that are not skipped."""


@pytest.fixture(scope="module")
def sources() -> Path:
    if VARIABLE not in os.environ:
        pytest.skip(f"{VARIABLE} names no checkout of github.com/triton-inference-server/server, {COMMIT}")
    if not PYTHON.exists() or not TORCH.exists():
        pytest.fail("the clients are not installed: say `make test-system`", pytrace=False)
    return Path(os.environ[VARIABLE]) / "python/openai/tests"


def configuration(which: str, folder: Path) -> str:
    def inputs(**datatypes: str) -> list[dict[str, object]]:
        return [{"name": name, "datatype": type_, "shape": [1], "optional": True} for name, type_ in datatypes.items()]

    text = {"kind": "chat", "tokenizer": str(WRITER / "tokenizer.json"), "logprobs": "logprobs"}
    words = {
        "backend": "python",
        "path": f"{HERE / 'openai_words.py'}:Words",
        "inputs": [
            {"name": "text_input", "datatype": "BYTES", "shape": [1]},
            *inputs(max_tokens="INT32", temperature="FP32", seed="INT64", logprobs="INT32"),
        ],
        "outputs": [{"name": name, "datatype": "BYTES", "shape": [1]} for name in ("text_output", "logprobs")],
        "text": text | {"chat_template": str(WRITER / "chat_template.jinja")},
    }
    encoder = folder / "encoder"
    vectors = {
        "backend": "onnx",
        "path": str(encoder),
        "max_batch_size": 32,
        "text": {
            "kind": "embedding",
            "tokenizer": str(encoder / "tokenizer.json"),
            "pooling": "mean",
            "max_tokens": 256,
        },
    }
    if which == "vectors":
        command = [TORCH, HERE / "minilm.py", encoder]
        subprocess.run(command, env=environment(), check=True, capture_output=True, timeout=RUNS_WITHIN_S)
    return yaml.safe_dump(
        {
            "listen": {"http": [{"bind": f"{HOST}:0"}]},
            "openai": {"error_form": "fastapi"},
            "models": {MODEL: words} if which == "words" else {ENCODER: vectors},
        }
    )


@pytest.mark.timeout(300)
@pytest.mark.parametrize("which", TESTS)
def test_triton_s_frontend_s_tests_pass(which: str, sources: Path, tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    for name in TESTS[which]:
        shutil.copy(sources / name, tmp_path / "tests")
    (tmp_path / "tests/__init__.py").touch()
    (tmp_path / "tests/conftest.py").write_text(CONFTEST % (MODEL if which == "words" else ENCODER, ENCODER))
    (tmp_path / "tests/utils.py").write_text(UTILS)
    for name, text in STAND_INS.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    file = tmp_path / "gateway.yaml"
    file.write_text(configuration(which, tmp_path))
    with running(file) as gateway:
        outcomes = tmp_path / "outcomes.xml"
        done = subprocess.run(
            [PYTHON, "-m", "pytest", *OPTIONS, f"--junitxml={outcomes}", "tests"],
            cwd=tmp_path,
            env=environment() | {"GATEWAY": f"{HOST}:{gateway.port}"},
            capture_output=True,
            text=True,
            timeout=RUNS_WITHIN_S,
        )
        assert outcomes.exists(), done.stdout + done.stderr
    found = [*ElementTree.parse(outcomes).iter("testcase")]  # noqa: S314 - our own
    ran = {name_of(case): case for case in found if case.find("skipped") is None}
    failed = {name for name, case in ran.items() if case.find("failure") is not None or case.find("error") is not None}
    assert not failed - DIFFERENT.keys(), done.stdout
    assert not DIFFERENT.keys() & (ran.keys() - failed), "these pass by now"
    assert (len(ran) - len(failed), len(ran)) == COUNTS[which]


def name_of(case: ElementTree.Element) -> str:
    return f"{case.attrib['classname'].rpartition('.')[2]}.{case.attrib['name']}"
