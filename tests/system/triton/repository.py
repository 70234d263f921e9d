"""A Triton model repository of Python models, as people write them: served by a real Triton and by the gateway alike."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

DATATYPES: Mapping[str, str] = {
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

ECHO = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [
                pb_utils.InferenceResponse(
                    [pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(request, "IN").as_numpy())]
                )
                for request in requests
            ]
    """

MODELS: Mapping[str, tuple[str, str]] = {
    "add_sub": (
        """
        backend: "python"
        max_batch_size: 8
        input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ 4 ] }, { name: "INPUT1" data_type: TYPE_INT32 dims: [ 4 ] } ]
        output [
          { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 4 ] },
          { name: "OUTPUT1" data_type: TYPE_INT32 dims: [ 4 ] label_filename: "labels.txt" }
        ]
        dynamic_batching { max_queue_delay_microseconds: 100 }
        instance_group [ { kind: KIND_CPU count: 2 } ]
        """,
        """
        import json
        import numpy as np
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def initialize(self, args):
                config = json.loads(args["model_config"])
                output = pb_utils.get_output_config_by_name(config, "OUTPUT0")
                self.dtype = pb_utils.triton_string_to_numpy(output["data_type"])

            def execute(self, requests):
                responses = []
                for request in requests:
                    a = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
                    b = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
                    responses.append(
                        pb_utils.InferenceResponse(
                            output_tensors=[
                                pb_utils.Tensor("OUTPUT0", (a + b).astype(self.dtype)),
                                pb_utils.Tensor("OUTPUT1", (a - b).astype(self.dtype)),
                            ]
                        )
                    )
                return responses

            def finalize(self):
                print("done")
        """,
    ),
    "unbatched": (
        """
        backend: "python"
        input [ { name: "IN" data_type: TYPE_FP32 dims: [ 2, -1 ] } ]
        output [ { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
        """,
        """
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                return [
                    pb_utils.InferenceResponse(
                        [pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(r, "IN").as_numpy().sum(axis=0))]
                    )
                    for r in requests
                ]
        """,
    ),
    "upper": (
        """
        name: "upper"
        backend: "python"
        max_batch_size: 4
        input { name: "TEXT" data_type: TYPE_STRING dims: 1 }
        output { name: "SHOUT" data_type: TYPE_STRING dims: 1 }
        """,
        """
        import numpy as np
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                responses = []
                for request in requests:
                    text = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
                    shout = np.array([[t.decode().upper().encode() for t in row] for row in text], dtype=object)
                    responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("SHOUT", shout)]))
                return responses
        """,
    ),
    "trouble": (
        """
        backend: "python"
        max_batch_size: 8
        input { name: "CODE" data_type: TYPE_INT32 dims: 1 }
        output { name: "OUT" data_type: TYPE_INT32 dims: 1 }
        """,
        """
        import numpy as np
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                E = pb_utils.TritonError
                codes = [E.UNKNOWN, E.INTERNAL, E.NOT_FOUND, E.INVALID_ARG, E.UNAVAILABLE, E.UNSUPPORTED, E.ALREADY_EXISTS]
                responses = []
                for request in requests:
                    code = int(pb_utils.get_input_tensor_by_name(request, "CODE").as_numpy()[0, 0])
                    if code == 100:
                        raise ValueError("no such thing")
                    if code == 101:
                        raise pb_utils.TritonModelException("model says no")
                    if code == 102:
                        return []
                    if code == 103:
                        return None
                    if code == 104:
                        responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("WRONG", np.zeros((1, 1), np.int32))]))
                    elif code == 105:
                        responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros((1, 1), np.float32))]))
                    elif code == 106:
                        responses.append(pb_utils.InferenceResponse([], error=E("plain")))
                    elif code < 0:
                        out = pb_utils.Tensor("OUT", np.array([[code]], np.int32))
                        responses.append(pb_utils.InferenceResponse([out], error=E(f"code {code}", codes[-code - 1])))
                    else:
                        responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([[code]], np.int32))]))
                return responses
        """,
    ),
    "repeat": (
        """
        backend: "python"
        model_transaction_policy { decoupled: true }
        input [ { name: "N" data_type: TYPE_INT32 dims: [ 1 ] }, { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] optional: true } ]
        output [ { name: "I" data_type: TYPE_INT32 dims: [ 1 ] } ]
        """,
        """
        import threading
        import numpy as np
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                for request in requests:
                    n = int(pb_utils.get_input_tensor_by_name(request, "N").as_numpy()[0])
                    sender = request.get_response_sender()
                    threading.Thread(target=self.answer, args=(sender, n)).start()
                return None

            def answer(self, sender, n):
                if n < 0:
                    error = pb_utils.TritonError("negative")
                    sender.send(
                        pb_utils.InferenceResponse([], error=error), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
                    )
                    return
                for i in range(n):
                    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("I", np.array([i], np.int32))]))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        """,
    ),
    "auto": (
        "",
        """
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            @staticmethod
            def auto_complete_config(auto_complete_model_config):
                auto_complete_model_config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [2]})
                auto_complete_model_config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [2]})
                auto_complete_model_config.set_max_batch_size(4)
                auto_complete_model_config.set_dynamic_batching()
                return auto_complete_model_config

            def execute(self, requests):
                return [
                    pb_utils.InferenceResponse(
                        [pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(r, "IN").as_numpy() * 2)]
                    )
                    for r in requests
                ]
        """,
    ),
    "facts": (
        """
        backend: "python"
        max_batch_size: 0
        input [ { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] } ]
        output [
          { name: "PARAMETERS" data_type: TYPE_STRING dims: [ 1 ] },
          { name: "ID" data_type: TYPE_STRING dims: [ 1 ] },
          { name: "WANTED" data_type: TYPE_STRING dims: [ -1 ] },
          { name: "CONFIG" data_type: TYPE_STRING dims: [ -1 ] }
        ]
        parameters { key: "greeting" value { string_value: "hello" } }
        """,
        """
        import json
        import numpy as np
        import triton_python_backend_utils as pb_utils

        def text(*words):
            return np.array([w.encode() for w in words], dtype=object)

        class TritonPythonModel:
            def initialize(self, args):
                config = json.loads(args["model_config"])
                self.config = [
                    config["parameters"]["greeting"]["string_value"], str(config["max_batch_size"]),
                    config["input"][0]["data_type"], args["model_instance_kind"], args["model_version"], args["model_name"],
                ]

            def execute(self, requests):
                responses = []
                for r in requests:
                    parameters = json.dumps(json.loads(r.parameters()), sort_keys=True)
                    everything = {
                        "PARAMETERS": text(parameters),
                        "ID": text(r.request_id()),
                        "WANTED": text(*sorted(r.requested_output_names())),
                        "CONFIG": text(*self.config),
                    }
                    responses.append(
                        pb_utils.InferenceResponse(
                            [pb_utils.Tensor(n, a) for n, a in everything.items() if n in r.requested_output_names()]
                        )
                    )
                return responses
        """,
    ),
    "caller": (
        """
        backend: "python"
        max_batch_size: 0
        input [ { name: "IN" data_type: TYPE_FP32 dims: [ 2, -1 ] }, { name: "WHOM" data_type: TYPE_STRING dims: [ 1 ] } ]
        output [ { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
        """,
        """
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                responses = []
                for r in requests:
                    whom = pb_utils.get_input_tensor_by_name(r, "WHOM").as_numpy()[0].decode()
                    call = pb_utils.InferenceRequest(
                        model_name=whom, requested_output_names=["OUT"],
                        inputs=[pb_utils.get_input_tensor_by_name(r, "IN")],
                    )
                    answer = call.exec()
                    if answer.has_error():
                        raise pb_utils.TritonModelException("inner: " + answer.error().message())
                    responses.append(
                        pb_utils.InferenceResponse([pb_utils.get_output_tensor_by_name(answer, "OUT")])
                    )
                return responses
        """,
    ),
    "sum": (
        """
        backend: "python"
        max_batch_size: 4
        sequence_batching {
          max_sequence_idle_microseconds: 5000000
          control_input [
            { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
            { name: "END" control [ { kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] } ] },
            { name: "READY" control [ { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } ] },
            { name: "CORRID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] }
          ]
          oldest { max_candidate_sequences: 4 }
        }
        input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
        output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }, { name: "FLAGS" data_type: TYPE_INT32 dims: [ 3 ] } ]
        """,
        """
        import numpy as np
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def initialize(self, args):
                self.sums = {}

            def execute(self, requests):
                responses = []
                for r in requests:
                    get = lambda name: pb_utils.get_input_tensor_by_name(r, name).as_numpy().reshape(-1)[0]
                    value, start, end, corrid = get("IN"), get("START"), get("END"), int(get("CORRID"))
                    total = (0 if start else self.sums[corrid]) + value
                    self.sums[corrid] = total
                    if end:
                        del self.sums[corrid]
                    flags = np.array([[start, end, get("READY")]], np.int32)
                    responses.append(pb_utils.InferenceResponse([
                        pb_utils.Tensor("OUT", np.array([[total]], np.int32)), pb_utils.Tensor("FLAGS", flags),
                    ]))
                return responses
        """,
    ),
}

ENSEMBLE = """
    platform: "ensemble"
    max_batch_size: 8
    input [ { name: "A" data_type: TYPE_INT32 dims: [ 4 ] }, { name: "B" data_type: TYPE_INT32 dims: [ 4 ] } ]
    output [ { name: "SUM" data_type: TYPE_INT32 dims: [ 4 ] }, { name: "ZERO" data_type: TYPE_INT32 dims: [ 4 ] } ]
    ensemble_scheduling {
      step [
        {
          model_name: "add_sub" model_version: -1
          input_map { key: "INPUT0" value: "A" } input_map { key: "INPUT1" value: "B" }
          output_map { key: "OUTPUT0" value: "SUM" }
        },
        {
          model_name: "add_sub" model_version: -1
          input_map { key: "INPUT0" value: "SUM" } input_map { key: "INPUT1" value: "SUM" }
          output_map { key: "OUTPUT1" value: "ZERO" }
        }
      ]
    }
    """


def build(folder: Path) -> None:
    """The whole repository below `folder`."""
    for name, (config, code) in MODELS.items():
        _write(folder, name, config, code)
    for datatype, kind in DATATYPES.items():
        config = f"""
            backend: "python"
            input [ {{ name: "IN" data_type: {kind} dims: [ -1 ] }} ]
            output [ {{ name: "OUT" data_type: {kind} dims: [ -1 ] label_filename: "labels.txt" }} ]
            """
        _write(folder, f"echo_{datatype}", config, ECHO)
    for number in (2, 3):
        _write(folder, "versions", 'backend: "python"\n' + VERSIONED, ECHO, number)
    _write(folder, "group", ENSEMBLE, None)


VERSIONED = """
    input [ { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] } ]
    output [ { name: "OUT" data_type: TYPE_INT32 dims: [ -1 ] } ]
    version_policy { all {} }
    """


def _write(folder: Path, name: str, config: str, code: str | None, version: int = 1) -> None:
    (folder / name / str(version)).mkdir(parents=True)
    if config:
        (folder / name / "config.pbtxt").write_text(dedent(config))
    if code is not None:
        (folder / name / str(version) / "model.py").write_text(dedent(code))
    (folder / name / "labels.txt").write_text("zero\none\ntwo\n")
