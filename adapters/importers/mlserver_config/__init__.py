"""MLServer's settings -> the models and sections of a YAML file of this gateway.

    server = read_server(Path("models"), programs="gateway-models", trusted=False)

    server.py    settings.json at the top -> ports and limits; every model-settings.json below it is a model
    models.py    one model-settings.json -> an entry: ONNX where such a file lies beside, else the class for its kind

Every key is mapped, ignored with a reason, or refused with a remedy. Source: MLServer, mlserver/settings.py and its
runtimes.
"""

from tensorgate.adapters.importers.mlserver_config.server import read_server

__all__ = ["read_server"]
