"""What can compute a model, each imported only when a model asks for it.

A new backend is one module and one line here.
"""

BACKENDS = {
    "ensemble": "backends.ensemble:KIND",
    "onnx": "backends.onnx_runtime:KIND",
    "remote": "backends.remote:KIND",
    "python": "backends.python_model:KIND",
    "tensorflow": "backends.saved_model:KIND",
    "torch": "backends.torch_model:KIND",
    "triton_python": "backends.triton_python:KIND",
}
