"""TensorFlow Serving's own test of its server, as it stands, run by its own TensorFlow; prints {test: failure or null}.

    python tf_serving_suite.py SOURCES FOLDER [TEST…]

SOURCES is a checkout of TensorFlow Serving. TEST_SRCDIR is laid out as Bazel does it for the test; the server's
executable in it is ours. One thing is added: the original listens once its models are loaded, and the gateway before
that, so a server counts as started when it says by grpc.health.v1 that it is ready.
"""

import importlib.util
import json
import sys
import time
import unittest
from pathlib import Path

import grpc
import tensorflow_serving
from tensorflow.python.platform import flags

TEST = "tensorflow_serving/model_servers/tensorflow_model_server_test.py"
CASE = "TensorflowModelServerTest"
READY_WITHIN_S = 40
SERVING = b"\x08\x01"


def wait_until_ready(port: int) -> None:
    """A server that never becomes ready is left to its test."""
    with grpc.insecure_channel(f"localhost:{port}") as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        give_up = time.monotonic() + READY_WITHIN_S
        while time.monotonic() < give_up:
            try:
                if check(b"", timeout=5) == SERVING:
                    return
            except grpc.RpcError:
                pass
            time.sleep(0.2)  # real time: a process that starts


def main(sources: Path, folder: str, tests: list[str]) -> bool:
    """Whether any of the tests failed."""
    tensorflow_serving.__path__.append(str(sources / "tensorflow_serving"))  # its own beside the installed client's
    specification = importlib.util.spec_from_file_location("suite", sources / TEST)
    suite = sys.modules["suite"] = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(suite)
    base = suite.tensorflow_model_server_test_base
    says_servable = base.WaitForServerReady

    def started(port: int) -> None:
        wait_until_ready(port)
        says_servable(port)

    base.WaitForServerReady = started
    flags.FLAGS([sys.argv[0], f"--test_tmpdir={folder}"])
    loader, case = unittest.TestLoader(), getattr(suite, CASE)
    tests = tests or [name for name in loader.getTestCaseNames(case) if name in vars(case)]  # TensorFlow's has more
    result = unittest.TextTestRunner(sys.stderr, verbosity=2).run(loader.loadTestsFromNames(tests, case))
    failures = {test.id().rpartition(".")[2]: text for test, text in [*result.failures, *result.errors]}
    skipped = {test.id().rpartition(".")[2] for test, _ in result.skipped}
    sys.stdout.write("\n" + json.dumps({test: failures.get(test) for test in tests if test not in skipped}) + "\n")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
