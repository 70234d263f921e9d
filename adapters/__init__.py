"""The dialects that the gateway speaks, each imported only when a configuration wants it.

A new dialect is one module here, one line in DIALECTS, and its cases below tests/adapters.
"""

DIALECTS = {
    "open_inference": "adapters.open_inference:KIND",
    "tf_serving": "adapters.tf_serving:KIND",
    "grps": "adapters.grps:KIND",
}
