"""What can compute a model, each imported only when a model asks for it.

A new backend is one module and one line here: docs/add-a-backend.md has one.
"""

BACKENDS = {
    "classic": "tensorgate.backends.classic:KIND",
    "ensemble": "tensorgate.backends.ensemble.backend:KIND",
    "genai": "tensorgate.backends.genai:KIND",
    "onnx": "tensorgate.backends.onnx.backend:KIND",
    "remote": "tensorgate.backends.remote:KIND",
    "python": "tensorgate.backends.python.backend:KIND",
    "tensorflow": "tensorgate.backends.saved_model:KIND",
    "torch": "tensorgate.backends.torch_model:KIND",
    "triton_python": "tensorgate.backends.triton_python:KIND",
}
