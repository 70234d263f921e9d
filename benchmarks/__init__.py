"""Comparisons that anyone can run again; README.md says what each measures and how to read it."""

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # as the gateway does; see there
