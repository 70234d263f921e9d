"""`tensorgate new`: a commented configuration to begin with, with what it serves."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FILE: Final = "gateway.yaml"
_PORTS: Final = """\
listen:
  http: [{bind: "0.0.0.0:8000"}]       # every dialect: /v2 Open Inference, /v1 TensorFlow Serving, /grps/v1 grps
  grpc: [{bind: "0.0.0.0:8001"}]
  metrics: {bind: "0.0.0.0:8002"}      # Prometheus reads /metrics here
"""
_HALF_PLUS_TWO: Final = base64.b64decode(
    "CAgSCnRlbnNvcmdhdGU6ewoXCgF4CgRoYWxmEgdwcm9kdWN0IgNNdWwKGQoHcHJvZHVjdAoGYWRkZW5kEgF5IgNBZGQSDWhhbGZfcGx1c190"
    "d28qDhABQgRoYWxmSgQAAAA/KhAQAUIGYWRkZW5kSgQAAABAWgkKAXgSBAoCCAFiCQoBeRIECgIIAUIECgAQEQ=="
)
"""An ONNX model: FP32 x -> y = x / 2 + 2."""

_COLOURS: Final = base64.b64decode(
    "CAgSCnRlbnNvcmdhdGU6hQEKPAoFaW1hZ2USB2NvbG91cnMiClJlZHVjZU1lYW4qDQoEYXhlc0ABQAKgAQcqDwoIa2VlcGRpbXMYAKABAhIH"
    "Y29sb3Vyc1ogCgVpbWFnZRIXChUIARIRCgMSAW4KAghACgIIQAoCCANiGgoHY29sb3VycxIPCg0IARIJCgMSAW4KAggDQgQKABAN"
)
"""An ONNX model: the mean of FP32 image [n, 64, 64, 3] over height and width."""


@dataclass(frozen=True, slots=True)
class Starter:
    """Files by path, and what to try once they are served."""

    about: str
    files: Mapping[str, str | bytes]
    tries: Sequence[str]


STARTERS: Final[Mapping[str, Starter]] = {
    "python": Starter(
        "a class of yours, whose calls share runs",
        {
            FILE: f"""\
# A class of yours as a model.
{_PORTS}
models:
  similarity:
    backend: python
    path: model.py:Similarity          # file:Class
    max_batch_size: 32                 # rows of several callers in one call; 0: one request, no batch dimension
    inputs:
      - {{name: pair, datatype: FP32, shape: [-1, 2, -1]}}  # -1: any size, first the rows
    outputs:
      - {{name: similarity, datatype: FP32, shape: [-1]}}
""",
            "model.py": '''\
class Similarity:
    """The cosine between two vectors."""

    def __init__(self, context):  # once: context.parameters are the YAML's, context.path is this file's folder
        self.xp = context.xp  # NumPy, or CuPy where device: cuda says so

    def infer(self, inputs, request):  # arrays by name in, arrays by name out
        a, b = inputs["pair"][:, 0], inputs["pair"][:, 1]
        lengths = self.xp.sqrt((a * a).sum(axis=1) * (b * b).sum(axis=1))
        return {"similarity": (a * b).sum(axis=1) / lengths}
''',
        },
        ["tensorgate call similarity '[[[1, 0], [1, 1]]]'"],
    ),
    "onnx": Starter(
        "an ONNX model with versions, labels and a canary",
        {
            FILE: f"""\
# An ONNX model. This one is y = x / 2 + 2: put yours in its place.
{_PORTS}
models:
  half_plus_two:
    backend: onnx
    path: models/half_plus_two         # a folder per version: 1/model.onnx, 2/model.onnx, ...
    versions: all                      # or latest, or [1, 2]
    labels: {{stable: 1, canary: 2}}
    device: auto                       # the first GPU if there is one, else the CPU; or cpu, cuda:0, all
    max_batch_size: 0                  # rows in one run; above 0 where the first dimension of all tensors is the batch
    # preprocess:                      # what `tensorgate ops` lists, before the model and on its device
    #   - {{op: normalize, input: x, mean: [0.0], std: [1.0]}}

routes:                                # names for callers, apart from models'
  half: [{{model: half_plus_two, label: stable, weight: 90}}, {{model: half_plus_two, label: canary, weight: 10}}]
""",
            "models/half_plus_two/1/model.onnx": _HALF_PLUS_TWO,
            "models/half_plus_two/2/model.onnx": _HALF_PLUS_TWO,
        },
        ["tensorgate call half '[1.0, 2.0, 5.0]'"],
    ),
    "images": Starter(
        "photos in, decoded and resized by the gateway; pip install 'pillow>=11'",
        {
            FILE: f"""\
# Photos go in as files, in the bytes of any dialect; the network gets what the steps before it make of them.
{_PORTS}
models:
  colours:                             # the mean of red, green and blue: put your network in its place
    backend: onnx
    path: colours.onnx                 # FP32 image [n, 64, 64, 3] -> FP32 colours [n, 3]
    max_batch_size: 16
    inputs:
      - {{name: image, datatype: BYTES, shape: [-1]}}          # JPEG or PNG
    preprocess:
      - {{op: decode_image, input: image}}                     # upright, RGB
      - {{op: resize, input: image, size: [64, 64]}}
      - {{op: scale, input: image, divide: 255, to: FP32}}
      # - {{op: transpose, input: image, layout: NHWC->NCHW}}  # where channels come first
""",
            "colours.onnx": _COLOURS,
        },
        ["tensorgate call colours image=@photo.jpg"],
    ),
    "text": Starter(
        "text in, text out piece by piece",
        {
            FILE: f"""\
# A model that streams: POST /v2/models/speaker/generate answers whole, .../generate_stream as server-sent events.
{_PORTS}
models:
  speaker:
    backend: python
    path: model.py:Speaker
    instances: 4                       # so many texts at a time; others wait
    inputs:
      - {{name: text_input, datatype: BYTES, shape: [1]}}
      - {{name: stream, datatype: BOOL, shape: [1], optional: true}}
      - {{name: max_tokens, datatype: INT32, shape: [1], optional: true}}
    outputs:
      - {{name: text_output, datatype: BYTES, shape: [1]}}
""",
            "model.py": '''\
class Speaker:
    """Says the words of a text. Put your model's pieces in their place."""

    def infer(self, inputs, request):  # a generator streams
        words = inputs["text_input"][0].decode().split()
        most = int(inputs["max_tokens"][0]) if "max_tokens" in inputs else len(words)
        if "stream" not in inputs or not inputs["stream"][0]:
            yield {"text_output": [" ".join(words[:most])]}
            return
        for word in words[:most]:
            if request.cancelled:  # nobody listens any more
                return
            yield {"text_output": [word + " "]}
''',
        },
        [
            """curl -s localhost:8000/v2/models/speaker/generate -d '{"text_input": "one two three"}'""",
            "curl -sN localhost:8000/v2/models/speaker/generate_stream "
            """-d '{"text_input": "one two three", "stream": true}'""",
        ],
    ),
    "remote": Starter(
        "in front of a server that runs already",
        {
            FILE: f"""\
# All models of another server, under their own names, for callers of every dialect.
{_PORTS}
upstreams:
  old:
    dialect: open_inference            # or tf_serving, grps
    address: "localhost:9001"          # its gRPC port
    # other_address: "localhost:9000"  # its HTTP port: calls that come over HTTP are passed on as they are
    models: all                        # or a list of names

# models:                              # models of your own beside them, and one more name for an old one:
#   vision: {{backend: remote, upstream: {{dialect: tf_serving, address: "localhost:8500", model: resnet}}}}
""",
        },
        ["tensorgate models"],
    ),
    "triton": Starter(
        "a Triton model repository, served as it is",
        {
            FILE: f"""\
# A Triton model repository: ONNX, SavedModel, PyTorch, python models and ensembles, with their config.pbtxt.
{_PORTS}
repositories: [models]
""",
            "models/doubled/config.pbtxt": """\
backend: "python"
max_batch_size: 8
input [{ name: "x", data_type: TYPE_FP32, dims: [-1] }]
output [{ name: "y", data_type: TYPE_FP32, dims: [-1] }]
dynamic_batching {}
""",
            "models/doubled/1/model.py": """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", 2 * x)]))
        return responses
""",
        },
        ["tensorgate call doubled '[[1.0, 2.0]]'"],
    ),
    "tf-serving": Starter(
        "on TensorFlow Serving's ports, for its clients alone",
        {
            FILE: """\
# What clients of TensorFlow Serving find on its ports. A SavedModel needs tensorflow beside this program.
listen:
  http: [{bind: "0.0.0.0:8501", dialects: [tf_serving]}]
  grpc: [{bind: "0.0.0.0:8500", dialects: [tf_serving]}]

models:
  half_plus_two:
    backend: onnx                      # tensorflow: <path>/<version>/saved_model.pb
    path: models/half_plus_two
    labels: {stable: 1}
    # signatures: {...}                # serving_default stands by itself
""",
            "models/half_plus_two/1/model.onnx": _HALF_PLUS_TWO,
        },
        ["""curl -s localhost:8501/v1/models/half_plus_two:predict -d '{"instances": [1.0, 2.0, 5.0]}'"""],
    ),
}


def write(kind: str, folder: Path) -> Sequence[str]:
    """Write a starter's files -> the lines that say so. Raises FileExistsError before anything is written, OSError."""
    starter = STARTERS[kind]
    for name in starter.files:
        if (folder / name).exists():
            raise FileExistsError(f"{folder / name} is there already, and nothing was written")
    for name, content in starter.files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content.encode() if isinstance(content, str) else content)
    wrote = [f"wrote {folder / name}" for name in starter.files]
    return [*wrote, "", "now:", f"  tensorgate serve {folder / FILE}", *(f"  {line}" for line in starter.tries)]
