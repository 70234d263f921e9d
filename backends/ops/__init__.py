"""Steps before and after a model, written once for NumPy and CuPy. A new op is one module and one line here."""

OPS = {
    "cast": "backends.ops.cast:KIND",
    "normalize": "backends.ops.normalize:KIND",
    "reshape": "backends.ops.reshape:KIND",
    "softmax": "backends.ops.softmax:KIND",
}
