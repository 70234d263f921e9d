"""PyTorch's programs as they are: TorchScript (model.pt) and exported programs (model.pt2).

backend.py   the backend (options.py: what YAML may say)  archive.py   which of them a file is, and what it may hold
script.py    TorchScript                                  exported.py  torch.export's programs, compiled packages
names.py     names -> places of arguments and results     tensor_bridge.py  NumPy and CuPy arrays <-> torch's tensors
graphs.py    runs recorded as CUDA graphs                 failures.py  what torch raises, as callers may see it
library.py   torch itself, if it is there

The folder is not called torch: what runs from here would find it in place of the library.
"""

from tensorgate.backends.torch_model.backend import KIND

__all__ = ["KIND"]
