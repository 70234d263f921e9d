"""The dialects that the gateway speaks, each imported only when a configuration wants it.

A new dialect is one folder here, one line in DIALECTS, and its cases below tests/adapters.
"""

DIALECTS = {
    "open_inference": "tensorgate.adapters.open_inference:KIND",
    "tf_serving": "tensorgate.adapters.tf_serving:KIND",
    "grps": "tensorgate.adapters.grps:KIND",
    "openai": "tensorgate.adapters.openai:KIND",
}

CONFORMANCE = {
    "v2": "tensorgate.adapters.open_inference.conformance:SUITE",
    "tf_serving": "tensorgate.adapters.tf_serving.conformance:SUITE",
    "grps": "tensorgate.adapters.grps.conformance:SUITE",
}
"""What servers are asked by `tensorgate conform --dialect NAME`."""
