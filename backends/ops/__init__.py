"""Steps before and after a model, written once for NumPy and CuPy. A new op is one module and one line here."""

OPS = {
    "cast": "backends.ops.cast:KIND",
    "center_crop": "backends.ops.center_crop:KIND",
    "decode_image": "backends.ops.decode_image:KIND",
    "normalize": "backends.ops.normalize:KIND",
    "pad": "backends.ops.pad:KIND",
    "reshape": "backends.ops.reshape:KIND",
    "resize": "backends.ops.resize:KIND",
    "scale": "backends.ops.scale:KIND",
    "softmax": "backends.ops.softmax:KIND",
    "transpose": "backends.ops.transpose:KIND",
}
