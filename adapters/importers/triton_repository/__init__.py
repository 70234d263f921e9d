"""Triton's model repositories: a model's folder, with its config.pbtxt or without -> the YAML form of one model.

    reading = read_model(Path("models/resnet"))
    reading.entry       # {"backend": "onnx", "path": "models/resnet", …}, as it would stand below `models:`
    reading.notes       # what config.pbtxt says and this gateway does not do, key by key

folder.py       reads the folder; the only module here that touches files
text.py         config.pbtxt or JSON -> a ModelConfig message that knows its lines, as `common` reads it
model.py        the message -> the entry, by way of:
                kind.py        which backend               tensors.py     inputs, outputs, reshapes, labels
                scheduling.py  queue, batches, sequences   instances.py   copies and their device, versions
                warmup.py      samples before it is ready
                backend_options.py  what ONNX Runtime, TensorFlow and PyTorch read from `parameters`
ignored.py      every key by name: honoured, or why not

Nothing here imports the gateway's flow: what comes out is plain data, which the configuration validates like any YAML.
Source: Triton's model repository and model configuration.
"""

from tensorgate.adapters.importers.triton_repository.folder import model_folders, read_model
from tensorgate.adapters.importers.triton_repository.text import Reading

__all__ = ["Reading", "model_folders", "read_model"]
