"""Steps before and after a model, written once for NumPy and CuPy. A new op is one module and one line here."""

OPS = {
    "argmax": "backends.ops.argmax:KIND",
    "cast": "backends.ops.cast:KIND",
    "dequantize": "backends.ops.dequantize:KIND",
    "detokenize": "backends.ops.detokenize:KIND",
    "l2_normalize": "backends.ops.l2_normalize:KIND",
    "log_softmax": "backends.ops.log_softmax:KIND",
    "nms": "backends.ops.nms:KIND",
    "normalize": "backends.ops.normalize:KIND",
    "one_hot": "backends.ops.one_hot:KIND",
    "quantize": "backends.ops.quantize:KIND",
    "rename": "backends.ops.rename:KIND",
    "reshape": "backends.ops.reshape:KIND",
    "select": "backends.ops.select:KIND",
    "sigmoid": "backends.ops.sigmoid:KIND",
    "softmax": "backends.ops.softmax:KIND",
    "threshold": "backends.ops.threshold:KIND",
    "tokenize": "backends.ops.tokenize:KIND",
    "top_k": "backends.ops.top_k:KIND",
}
