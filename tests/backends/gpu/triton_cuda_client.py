"""Triton's client library and a GPU's memory, in a process that has nothing of the gateway: argument is its URL."""

from __future__ import annotations

import json
import sys
import urllib.request
from typing import Any

import numpy as np
import tritonclient.utils.cuda_shared_memory as cuda

ROWS, WIDTH = 4, 16
NBYTES = 4 * ROWS * WIDTH


def post(path: str, document: Any) -> Any:
    """The answer's JSON; raises HTTPError."""
    request = urllib.request.Request(sys.argv[1] + path, json.dumps(document).encode(), method="POST")  # noqa: S310
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
        return json.loads(answer.read() or b"{}")


def main() -> None:
    """One region in, one out, several times; then both are forgotten."""
    regions = {name: cuda.create_shared_memory_region(name, NBYTES, 0) for name in ("given", "wanted")}
    for name, region in regions.items():
        handle = {"b64": cuda.get_raw_handle(region).decode()}
        document = {"raw_handle": handle, "device_id": 0, "byte_size": NBYTES}
        post(f"/v2/cudasharedmemory/region/{name}/register", document)
    for seed in range(5):
        x = np.random.default_rng(seed).standard_normal((ROWS, WIDTH), np.float32)
        cuda.set_shared_memory_region(regions["given"], [x])
        at = {"shared_memory_byte_size": NBYTES}
        given: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": [ROWS, WIDTH]}
        given["parameters"] = {"shared_memory_region": "given", **at}
        wanted = {"name": "y", "parameters": {"shared_memory_region": "wanted", **at}}
        post("/v2/models/twice/infer", {"inputs": [given], "outputs": [wanted]})
        y = cuda.get_contents_as_numpy(regions["wanted"], np.float32, [ROWS, WIDTH])
        np.testing.assert_array_equal(y, x * 2)
    post("/v2/cudasharedmemory/unregister", {})
    for region in regions.values():
        cuda.destroy_shared_memory_region(region)


if __name__ == "__main__":
    main()
