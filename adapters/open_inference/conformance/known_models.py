"""A Triton repository of Python models whose behaviour the cases know; a real Triton serves it, and we do."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import dedent
from typing import Final

TRITON_TYPES: Final[Mapping[str, str]] = {
    "BOOL": "TYPE_BOOL",
    "UINT8": "TYPE_UINT8",
    "UINT16": "TYPE_UINT16",
    "UINT32": "TYPE_UINT32",
    "UINT64": "TYPE_UINT64",
    "INT8": "TYPE_INT8",
    "INT16": "TYPE_INT16",
    "INT32": "TYPE_INT32",
    "INT64": "TYPE_INT64",
    "FP16": "TYPE_FP16",
    "FP32": "TYPE_FP32",
    "FP64": "TYPE_FP64",
    "BYTES": "TYPE_STRING",
}
ADD_SUB: Final = "conform_add_sub"
UPPER: Final = "conform_upper"
REPEAT: Final = "conform_repeat"
SUM: Final = "conform_sequence_sum"
FAILING: Final = "conform_failing"
PARAMETERS: Final = "conform_parameters"

_HEAD = (
    "import json\nimport numpy as np\nimport triton_python_backend_utils as pb_utils\n\n\nclass TritonPythonModel:\n"
)
_IDENTITY = """
def execute(self, requests):
    return [
        pb_utils.InferenceResponse([pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(each, "IN").as_numpy())])
        for each in requests
    ]
"""
_MODELS: Final[Mapping[str, tuple[str, str]]] = {
    ADD_SUB: (
        """
        backend: "python"
        max_batch_size: 8
        input { name: "INPUT0" data_type: TYPE_INT32 dims: [ 4 ] }
        input { name: "INPUT1" data_type: TYPE_INT32 dims: [ 4 ] }
        output [
          { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 4 ] label_filename: "labels.txt" },
          { name: "OUTPUT1" data_type: TYPE_INT32 dims: [ 4 ] }
        ]
        """,
        """
        def execute(self, requests):
            responses = []
            for request in requests:
                a = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
                b = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
                outputs = [pb_utils.Tensor("OUTPUT0", a + b), pb_utils.Tensor("OUTPUT1", a - b)]
                responses.append(pb_utils.InferenceResponse(outputs))
            return responses
        """,
    ),
    UPPER: (
        """
        backend: "python"
        max_batch_size: 4
        input [ { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] } ]
        output [ { name: "SHOUT" data_type: TYPE_STRING dims: [ 1 ] } ]
        """,
        """
        def execute(self, requests):
            responses = []
            for request in requests:
                rows = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
                shout = np.array([[text.decode().upper().encode() for text in row] for row in rows], dtype=object)
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("SHOUT", shout)]))
            return responses
        """,
    ),
    REPEAT: (
        """
        backend: "python"
        model_transaction_policy { decoupled: true }
        input [ { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] } ]
        output [ { name: "INDEX" data_type: TYPE_INT32 dims: [ 1 ] } ]
        """,
        """
        def execute(self, requests):
            for request in requests:
                sender = request.get_response_sender()
                for index in range(int(pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0])):
                    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("INDEX", np.array([index], np.int32))]))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            return None
        """,
    ),
    SUM: (
        """
        backend: "python"
        max_batch_size: 1
        sequence_batching {
          max_sequence_idle_microseconds: 20000000
          control_input [ {
            name: "START"
            control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ]
          } ]
        }
        input [ { name: "VALUE" data_type: TYPE_INT32 dims: [ 1 ] } ]
        output [ { name: "SUM" data_type: TYPE_INT32 dims: [ 1 ] } ]
        instance_group [ { kind: KIND_CPU count: 1 } ]
        """,
        """
        def initialize(self, args):
            self.total = 0

        def execute(self, requests):
            responses = []
            for request in requests:
                if pb_utils.get_input_tensor_by_name(request, "START").as_numpy().ravel()[0]:
                    self.total = 0
                self.total += int(pb_utils.get_input_tensor_by_name(request, "VALUE").as_numpy().ravel()[0])
                output = pb_utils.Tensor("SUM", np.array([[self.total]], np.int32))
                responses.append(pb_utils.InferenceResponse([output]))
            return responses
        """,
    ),
    FAILING: (
        """
        backend: "python"
        input [ { name: "CODE" data_type: TYPE_INT32 dims: [ 1 ] } ]
        output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
        """,
        """
        def execute(self, requests):
            codes = [
                pb_utils.TritonError.INTERNAL,
                pb_utils.TritonError.INVALID_ARG,
                pb_utils.TritonError.NOT_FOUND,
                pb_utils.TritonError.UNAVAILABLE,
                pb_utils.TritonError.UNSUPPORTED,
            ]
            responses = []
            for request in requests:
                code = int(pb_utils.get_input_tensor_by_name(request, "CODE").as_numpy()[0])
                error = pb_utils.TritonError(f"told to fail with {code}", codes[code])
                responses.append(pb_utils.InferenceResponse([], error=error))
            return responses
        """,
    ),
    PARAMETERS: (
        """
        backend: "python"
        input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
        output [ { name: "PARAMETERS" data_type: TYPE_STRING dims: [ 1 ] } ]
        """,
        """
        def execute(self, requests):
            responses = []
            for request in requests:
                text = json.dumps(json.loads(request.parameters() or "{}"), sort_keys=True)
                output = pb_utils.Tensor("PARAMETERS", np.array([text.encode()], dtype=object))
                responses.append(pb_utils.InferenceResponse([output]))
            return responses
        """,
    ),
}


def identity_name(datatype: str) -> str:
    """The model that gives back its one tensor of this datatype, `IN` as `OUT`, of one dimension of any size."""
    return f"conform_identity_{datatype.lower()}"


def repository(folder: str) -> Mapping[str, bytes]:
    """Files by their paths in the repository, wherever it lies."""
    files: dict[str, str] = {f"{ADD_SUB}/labels.txt": "zero\none\n"}
    for name, (config, code) in _MODELS.items():
        files[f"{name}/config.pbtxt"] = dedent(config).lstrip()
        files[f"{name}/1/model.py"] = _HEAD + _indented(code)
    for datatype, triton_type in TRITON_TYPES.items():
        name = identity_name(datatype)
        tensor = f"data_type: {triton_type} dims: [ -1 ]"
        files[f"{name}/config.pbtxt"] = (
            f'backend: "python"\ninput [ {{ name: "IN" {tensor} }} ]\noutput [ {{ name: "OUT" {tensor} }} ]\n'
        )
        files[f"{name}/1/model.py"] = _HEAD + _indented(_IDENTITY)
    return {path: text.encode() for path, text in files.items()}


def _indented(code: str) -> str:
    lines = dedent(code).strip().splitlines()
    return "".join(f"    {line}".rstrip() + "\n" for line in lines)
