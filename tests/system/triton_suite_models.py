"""Sources of Python models that stand in for compiled backends of Triton's build, with what its suites ask of them."""

from __future__ import annotations

IDENTITY = """
import json
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.outputs = [output["name"] for output in config["output"]]
        parameters = config.get("parameters", {})
        self.delay_s = int(parameters.get("execute_delay_ms", {"string_value": "0"})["string_value"]) / 1000
        time.sleep(int(parameters.get("creation_delay_sec", {"string_value": "0"})["string_value"]))

    def execute(self, requests):
        time.sleep(self.delay_s)
        answers = []
        for request in requests:
            arrays = {each.name().replace("IN", "OUT"): each.as_numpy() for each in request.inputs()}
            zeros = np.zeros_like(next(iter(arrays.values())))
            tensors = [pb_utils.Tensor(name, arrays.get(name, zeros)) for name in self.outputs]
            answers.append(pb_utils.InferenceResponse(tensors))
        return answers
"""
"""Triton's backend `identity`: INPUT0, INPUT1… given back as OUTPUT0, OUTPUT1…, after `execute_delay_ms`; zeros for an
input that is not there. It takes `creation_delay_sec` to load.
"""

REPEAT = """
import json
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.unit_s = float(config["parameters"]["unit_s"]["string_value"])
        self.threads = []

    def execute(self, requests):
        for request in requests:
            values, delays, wait = (
                pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("IN", "DELAY", "WAIT")
            )
            sender = request.get_response_sender()
            if values.shape != delays.shape:
                text = f"expected IN and DELAY shape to match, got {list(values.shape)} and {list(delays.shape)}"
                sender.send(
                    pb_utils.InferenceResponse(error=pb_utils.TritonError(text)),
                    flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL,
                )
                continue
            thread = threading.Thread(target=self.repeat, args=(sender, values, delays))
            thread.start()
            self.threads.append(thread)
            time.sleep(wait[0] * self.unit_s)

    def repeat(self, sender, values, delays):
        for n, (value, delay) in enumerate(zip(values, delays)):
            time.sleep(delay * self.unit_s)
            tensors = [
                pb_utils.Tensor("OUT", np.array([value], np.int32)),
                pb_utils.Tensor("IDX", np.array([n], np.uint32)),
            ]
            sender.send(pb_utils.InferenceResponse(tensors))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def finalize(self):
        for thread in self.threads:
            thread.join()
"""
"""Triton's backend `repeat`: each value of IN on its own after its DELAY; execute returns after WAIT. Both are counted
in `unit_s`.
"""

SEQUENCE = """
import json
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.delay_s = int(config["parameters"]["execute_delay_ms"]["string_value"]) / 1000
        self.sums = {}

    def execute(self, requests):
        time.sleep(self.delay_s)
        answers = []
        for request in requests:
            tensors = {each.name(): each.as_numpy() for each in request.inputs()}
            value, sequence = tensors["INPUT"], request.correlation_id()
            if tensors["READY"].any():
                self.sums[sequence] = value if tensors["START"].any() else self.sums.get(sequence, 0) + value
            output = pb_utils.Tensor("OUTPUT", self.sums[sequence].astype(np.int32))
            answers.append(pb_utils.InferenceResponse([output]))
        return answers
"""
"""Triton's test backend `sequence`: the sum of a sequence so far."""

ITERATIVE = """
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.left = {}

    def execute(self, requests):
        for request in requests:
            sequence, sender = request.correlation_id(), request.get_response_sender()
            value = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
            if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START or sequence not in self.left:
                self.left[sequence] = int(value.flat[0])
            self.left[sequence] -= 1
            left = self.left[sequence]
            output = pb_utils.Tensor("OUTPUT", np.full_like(value, left))
            if left:
                sender.send(pb_utils.InferenceResponse([output]))
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            else:
                sender.send(
                    pb_utils.InferenceResponse([output]), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
                )
        time.sleep(0.5)
"""
"""Triton's test backend `iterative_sequence`: counts from INPUT down to nought, an answer each time it is scheduled."""
