"""TensorFlow Serving's command line and configuration files -> the models and sections of a YAML file.

    line = read_flags(["--port=8500", "--model_config_file=models.config"])
    server = read_server(line)
    server.models       # each with its entry as it would stand below `models:`, or with what is wrong
    server.sections     # lines of YAML: ports, options of the dialect, metrics, polling
    server.notes        # what became of each flag and key that is no model's own

    flags.py     every flag of the original: its type, what becomes of it here, and why
    server.py    flags -> sections; reads the files that they name: models, batching, metrics, TLS
    models.py    ModelServerConfig -> entries, with the original's words for what it refuses, too
    model_location.py     what lies below a base path: ONNX or a SavedModel; looks into folders
    rows.py      whether all tensors of a model file have a dimension of rows
    batching.py  BatchingParameters -> the batch and queue of every model

Every flag and key is mapped, ignored with a reason, or refused with a remedy; what is unknown is told and passed over.
Source: TensorFlow Serving's model server, its flags and its text-format configurations.
"""

from tensorgate.adapters.importers.tf_serving_config.flags import CommandLine, read_flags, table
from tensorgate.adapters.importers.tf_serving_config.server import read_server

__all__ = ["CommandLine", "read_flags", "read_server", "table"]
