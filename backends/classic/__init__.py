"""Models of XGBoost, LightGBM and scikit-learn, computed by the library that trained them, in a process of their own.

`tensorgate import FILE` makes ONNX of them, which runs quicker and beside all others; this is for those of which that
cannot be made. Nothing is unpickled.

backend.py   the backend, and what YAML may say   library.py   a file, read by its library
"""

from tensorgate.backends.classic.backend import KIND

__all__ = ["KIND"]
