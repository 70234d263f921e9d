"""Triton's Python models, unchanged: a model.py with a class TritonPythonModel, and the module that it imports.

backend.py       the backend: YAML options, what the model takes and gives
instance.py      one loaded model: initialize, execute, finalize        thread.py      the thread where it lives
modules.py       its files as modules of their own                      utils.py       triton_python_backend_utils
exchange.py      requests in, answers out, one or many                  calls.py       what it asks of other models
tensor.py request.py response.py errors.py logger.py metrics.py         the classes of that module
datatypes.py dlpack.py model_config.py                                  what they are made of
"""

from tensorgate.backends.triton_python.backend import KIND

__all__ = ["KIND"]
