"""What a Python server of grps 1.1 loads: models whose behaviour the cases know, by that server's converter of tensors.

The files stand beside grps' own: they are laid over its folder `server/py_server`. That server needs PyTorch, whose
tensors its converter makes; texts, which PyTorch has none of, go through without a converter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from textwrap import dedent
from typing import Final

from tensorgate.adapters.grps.conformance.cases import ADD_SUB, HALF_PLUS_TWO, IDENTITIES

_CONVERTER: Final = '"""The converters are those of the framework."""\n'
_INFERERS: Final = dedent(
    '''
    """What the conformance cases of tensorgate know."""
    from grps_framework.apis.grps_pb2 import GrpsMessage
    from grps_framework.model_infer.inferer import ModelInferer, inferer_register


    class Known(ModelInferer):
        def init(self, path, device=None, args=None):
            super().init(path, device, args)

        def load(self):
            return True

        def infer(self, inp, context):
            out = self.compute(inp)
            if context.if_streaming():  # what is returned is dropped then
                context.stream_respond(self.written(out, context))
            return out

        def written(self, out, context):
            from grps_framework.converter.torch_tensor_converter import TorchTensorConverter

            return TorchTensorConverter().postprocess(dict(out), context)


    class Identity(Known):
        """One tensor, as it came."""

        def compute(self, inp):
            (tensor,) = inp.values() if isinstance(inp, dict) else inp
            return {"y": tensor}


    class TextIdentity(Known):
        """Texts, without a converter."""

        def compute(self, inp):
            (tensor,) = inp.gtensors.tensors
            count = 1
            for size in tensor.shape:
                count *= size
            if count != len(tensor.flat_string):
                raise ValueError("the values are not as many as the shape says")
            out = GrpsMessage()
            answered = out.gtensors.tensors.add()
            answered.CopyFrom(tensor)
            answered.name = "y"
            return out

        def written(self, out, context):
            return out


    class HalfPlusTwo(Known):
        def compute(self, inp):
            (tensor,) = inp.values() if isinstance(inp, dict) else inp
            return {"y": tensor / 2 + 2}


    class AddSub(Known):
        def compute(self, inp):
            if len(inp) != 2:
                raise ValueError("two tensors are wanted")
            a, b = (inp["a"], inp["b"]) if isinstance(inp, dict) else inp
            return {"sum": a + b, "difference": a - b}


    for kind in (Identity, TextIdentity, HalfPlusTwo, AddSub):
        inferer_register.register(kind.__name__, kind())
    '''
).lstrip()


def repository(folder: str) -> Mapping[str, bytes]:
    """Files by their paths in the folder, wherever it lies: configurations, and the classes of the models."""
    kinds = {HALF_PLUS_TWO: "HalfPlusTwo", ADD_SUB: "AddSub"}
    kinds |= {name: "TextIdentity" if name.endswith("_string") else "Identity" for name in IDENTITIES}
    models = [
        {
            "name": name,
            "version": "1",
            "device": "cpu",
            "inferer_type": "customized",
            "inferer_name": kind,
            "inferer_path": "none",
            "converter_type": "none" if kind == "TextIdentity" else "torch",
        }
        for name, kind in kinds.items()
    ]
    node = {"name": "node", "type": "model", "model": f"{HALF_PLUS_TWO}-1"}
    inference = {"models": models, "dag": {"type": "sequential", "name": "dag", "nodes": [node]}}
    server = {
        "interface": {"framework": "http+grpc", "host": "127.0.0.1", "port": "7080,7081"},
        "max_connections": 1000,
        "max_concurrency": 32,
        "log": {"log_dir": "./logs", "log_backup_count": 7},
    }
    return {  # JSON is YAML, too
        "conf/inference.yml": json.dumps(inference, indent=1).encode(),
        "conf/server.yml": json.dumps(server, indent=1).encode(),
        "src/__init__.py": b"",
        "src/customized_converter.py": _CONVERTER.encode(),
        "src/customized_inferer.py": _INFERERS.encode(),
    }
