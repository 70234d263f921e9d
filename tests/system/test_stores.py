"""Models of another machine behind the real command: fetched when they are loaded, on demand for whoever asks first."""

from __future__ import annotations

from pathlib import Path

import yaml
from serving import DEMO, HOST, running
from store_world import serving_files

MODELS = DEMO.parent / "demo/models"


def test_a_model_on_demand_is_fetched_for_who_asks_first(tmp_path: Path) -> None:
    with serving_files() as server:
        server.put("half", {"1/model.onnx": (MODELS / "half_plus_two/1/model.onnx").read_bytes()})
        server.put("more", {"1/model.onnx": (MODELS / "half_plus_three/123/model.onnx").read_bytes()})
        file = tmp_path / "gateway.yaml"
        config = {
            "listen": {"http": [{"bind": f"{HOST}:0"}], "metrics": {"bind": f"{HOST}:0"}},
            "stores": {"cache": {"folder": "cache"}},
            "residency": {"on_demand": ["half"]},
            "models": {name: {"backend": "onnx", "path": f"{server.url}/{name}/"} for name in ("half", "more")},
        }
        file.write_text(yaml.safe_dump(config))
        with running(file) as gateway:
            assert len(server.gets("more/1/model.onnx")) == 1
            assert server.gets("half/1/model.onnx") == []
            assert gateway.post("/v1/models/half:predict", {"instances": [1.0]}).json == {"predictions": [2.5]}
            assert len(server.gets("half/1/model.onnx")) == 1
            assert gateway.get("/v2/models/half").json["versions"] == ["1"]
            assert gateway.stop() == 0
        assert (tmp_path / "cache/trees").is_dir()
