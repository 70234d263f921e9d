"""TensorFlow's SavedModels as they are, with their signatures.

backend.py       the backend: YAML options, which of its functions a request runs
signatures.py    SignatureDefs -> signatures; which is the default     library.py   TensorFlow itself, if it is there
host.py          the functions on the CPU, NumPy in and out            device.py    on a GPU, CuPy in and out
failures.py      what TensorFlow raises, as errors that callers may see
"""

from tensorgate.backends.saved_model.backend import KIND

__all__ = ["KIND"]
