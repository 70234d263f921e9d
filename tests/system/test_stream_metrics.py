"""What a stream's answers take is counted by model, under our names and under OpenTelemetry's."""

from __future__ import annotations

from pathlib import Path

from serving import demo_config, running
from waiting import wait_until


def test_first_and_next_answers_are_counted(tmp_path: Path) -> None:
    (tmp_path / "gateway.yaml").write_text(demo_config({}, metrics={"genai_names": True}))
    with running(tmp_path / "gateway.yaml") as gateway:
        assert "tensorgate_first_answer_seconds_count" not in gateway.metrics().names()
        events = 0
        for tokens in (1, 6):
            body = {"text_input": "Once", "max_tokens": tokens, "stream": True, "seed": 3}
            answer = gateway.post("/v2/models/writer/generate_stream", body)
            assert answer.status == 200
            events += answer.body.count(b"data: ")
        assert gateway.post("/v1/models/half_plus_two:predict", {"instances": [1.0]}).status == 200

        def counted(name: str, **labels: str) -> float:
            return gateway.metrics().total(f"{name}_seconds_count", **labels)

        wait_until(lambda: counted("tensorgate_first_answer", model="writer") == 2)
        wait_until(lambda: counted("gen_ai_server_request_duration", gen_ai_request_model="writer") == 2)
        between = counted("tensorgate_next_answer", model="writer")
        assert between == events - 2
        assert counted("gen_ai_server_time_to_first_token", gen_ai_request_model="writer") == 2
        assert counted("gen_ai_server_time_per_output_token", gen_ai_request_model="writer") == between
        assert gateway.metrics().values("gen_ai_request_model") == {"writer"}


def test_tokens_are_counted_by_model(tmp_path: Path) -> None:
    (tmp_path / "gateway.yaml").write_text(demo_config({}))
    with running(tmp_path / "gateway.yaml") as gateway:

        def counted(model: str, kind: str) -> float:
            return gateway.metrics().total("tensorgate_tokens_total", model=model, kind=kind)

        assert "tensorgate_tokens_total" not in gateway.metrics().names()
        asked = {"model": "writer", "prompt": "In the beginning", "max_tokens": 6, "seed": 1}
        for more in ({}, {"stream": True}, {"n": 2}):
            assert gateway.post("/v1/completions", asked | more).status == 200
        assert gateway.post("/v1/completions", asked | {"temperature": 9}).status == 400
        assert gateway.post("/v1/embeddings", {"model": "embedder", "input": ["the earth", "the earth"]}).status == 200
        wait_until(lambda: counted("writer", "input") == 18)
        assert 20 <= counted("writer", "output") <= 24
        wait_until(lambda: counted("embedder", "input") == 4)
        assert counted("embedder", "output") == 0
