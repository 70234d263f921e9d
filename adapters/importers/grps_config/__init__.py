"""grps' server.yml and inference.yml -> the models and sections of a YAML file of this gateway.

    server = read_server(Path("conf/server.yml"), Path("conf/inference.yml"))
    server.models       # each with its entry as it would stand below `models:`, or with what is wrong
    server.sections     # lines of YAML: ports, limits, options of the dialect
    server.notes        # what became of each key that is no model's own

    server.py    server.yml -> ports and options of the dialect
    models.py    the models of inference.yml -> entries
    model_location.py     what lies where a model is said to lie: ONNX, a SavedModel, TorchScript, or what is not run
    torch_script.py   what a TorchScript file takes and gives, without torch
    skeleton.py  a customized model -> the class that is to be written
    dag.py       which model answers those who name none; several nodes are an ensemble

Every key is mapped, ignored with a reason, or refused with a remedy. Source: grps v1.1.0, the templates of both files
and what reads them.
"""

from tensorgate.adapters.importers.grps_config.server import read_server

__all__ = ["read_server"]
