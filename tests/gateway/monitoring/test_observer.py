"""A whole gateway that is watched: its answers' ids, its log, its spans, and what it tells Prometheus of itself."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import numpy as np
import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from waiting import until

from tensorgate.adapters.protobuf import messages as pb
from tensorgate.gateway.app import App, registries
from tensorgate.gateway.cli import client
from tensorgate.gateway.config import load_config

MODELS = """
import asyncio
from tensorgate.gateway.contract.errors import QueueFull

class Echo:
    def __init__(self, context):
        pass
    async def infer(self, inputs, request):
        if inputs["x"].ravel()[0] > 0:
            await asyncio.sleep(float(inputs["x"].ravel()[0]))
        return {"y": inputs["x"]}

class Full:
    def __init__(self, context):
        pass
    def infer(self, inputs, request):
        raise QueueFull("elsewhere", 1)
"""
TENSORS = {
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1]}],
}
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACED = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "vendor=1"}
INFER = "/inference.GRPCInferenceService/ModelInfer"


class House:
    """A gateway with a model that answers after x seconds, one that is always full, and another server's."""

    def __init__(self, folder: Path, more: Mapping[str, Any], upstream: str = "") -> None:
        (folder / "models.py").write_text(MODELS)
        models: dict[str, Any] = {
            name.lower(): {"backend": "python", "path": f"models.py:{name}", **TENSORS} for name in ("Echo", "Full")
        }
        if upstream:
            server = {"dialect": "open_inference", "transport": "http", "address": upstream, "model": "echo"}
            models["far"] = {"backend": "remote", "upstream": server, **TENSORS}
        listen = {"http": [{"bind": "127.0.0.1:0", "name": "front"}], "grpc": [{"bind": "127.0.0.1:0"}]}
        sections = {"listen": listen, "models": models, "routes": {"by": [{"model": "echo"}]}, "drain_seconds": 1}
        file = folder / "gateway.yaml"
        file.write_text(yaml.safe_dump(sections | dict(more)))
        kinds = registries()
        self.folder = folder
        self.app = App(load_config(file, kinds), kinds)

    async def start(self) -> House:
        await self.app.start()
        await self.app.load(lambda report: None)
        self.url = self.app.addresses[0]
        address = next(each for each in self.app.addresses if each.startswith("grpc://"))
        self.http = aiohttp.ClientSession()
        self.channel = grpc.aio.insecure_channel(address.removeprefix("grpc://"))
        return self

    async def stop(self) -> None:
        await self.http.close()
        await self.channel.close()
        await self.app.drain()

    async def infer(
        self, name: str, x: float = 0, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Mapping[str, str]]:
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [x]}]}
        async with self.http.post(f"{self.url}/v2/models/{name}/infer", json=body, headers=headers) as answer:
            await answer.read()
            return answer.status, answer.headers

    async def call(self, name: str, *metadata: tuple[str, str]) -> Any:
        """Over gRPC -> the trailing metadata."""
        request = pb.message("inference.ModelInferRequest")(model_name=name)
        request.inputs.add(name="x", datatype="FP32", shape=[1])
        request.raw_input_contents.append(np.zeros(1, np.float32).tobytes())
        call = self.channel.unary_unary(INFER)(request.SerializeToString(), metadata=metadata)
        try:
            await call
        except grpc.aio.AioRpcError as error:
            return dict(error.trailing_metadata() or ())
        return dict(await call.trailing_metadata())

    async def lines(self) -> list[dict[str, Any]]:
        """What the log has after the last call."""
        assert self.app.observer is not None
        await asyncio.to_thread(self.app.observer.close)
        return [json.loads(line) for line in (self.folder / "access.log").read_text().splitlines()]

    async def series(self) -> dict[str, float]:
        async with self.http.get(f"{self.url}/metrics") as answer:
            found = re.findall(r"^(tensorgate\S+) (\S+)$", await answer.text(), re.MULTILINE)
        return {name: float(value) for name, value in found}


Make = Callable[..., Awaitable[House]]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    houses: list[House] = []

    async def made(upstream: str = "", **more: Any) -> House:
        folder = tmp_path / str(len(houses))
        folder.mkdir()
        houses.append(House(folder, more, upstream))
        return await houses[-1].start()

    yield made
    for house in reversed(houses):
        await house.stop()


# ----------------------------------------------------------------------------------------------------------------- ids


async def test_a_caller_s_id_comes_back(make: Make) -> None:
    house = await make()
    _, headers = await house.infer("echo", headers={"X-Request-Id": "mine"})
    assert headers["x-request-id"] == "mine"
    _, headers = await house.infer("nobody", headers={"X-Request-Id": "mine"})
    assert headers["x-request-id"] == "mine"
    assert (await house.call("echo", ("x-request-id", "mine")))["x-request-id"] == "mine"
    assert (await house.call("nobody", ("x-request-id", "mine")))["x-request-id"] == "mine"


async def test_one_that_is_not_sane_is_replaced(make: Make) -> None:
    house = await make()
    for bad in ("x" * 129, "a b", "é"):
        _, headers = await house.infer("echo", headers={"X-Request-Id": bad})
        assert re.fullmatch(r"[0-9a-f]+-[0-9a-f]+", headers["x-request-id"])


async def test_who_sends_none_gets_one_only_if_all_do(make: Make) -> None:
    house = await make()
    assert "x-request-id" not in (await house.infer("echo"))[1]
    assert "x-request-id" not in await house.call("echo")
    house = await make(request_ids=True)
    ids = [(await house.infer("echo"))[1]["x-request-id"] for _ in range(3)]
    ids += [(await house.call("echo"))["x-request-id"] for _ in range(3)]
    assert len(set(ids)) == 6


async def test_aiohttp_s_answers_have_it_too(make: Make) -> None:
    house = await make()
    body = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[0]}]}'

    async def chunks() -> AsyncIterator[bytes]:
        yield body

    url = f"{house.url}/v2/models/echo/infer"
    async with house.http.post(url, data=chunks(), headers={"X-Request-Id": "mine"}) as answer:
        assert (answer.status, answer.headers["x-request-id"]) == (200, "mine")


# ----------------------------------------------------------------------------------------------------------------- log


async def test_every_call_leaves_a_line(make: Make) -> None:
    house = await make(access_log={"file": "access.log"})
    await house.infer("by", headers={"X-Request-Id": "one"})
    await house.infer("full")
    await house.infer("nobody")
    await house.call("echo", ("x-request-id", "two"))
    first, full, nobody, last = await house.lines()
    assert (first["request_id"], first["route"], first["model"], first["rows"]) == ("one", "by", "echo", 1)
    assert (first["remote"], first["listener"], first["http_status"]) == ("127.0.0.1", "front", 200)
    assert first["bytes_in"] > 50
    assert first["bytes_out"] > 50
    assert 0 < first["compute_ms"] <= first["total_ms"]
    assert (full["code"], full["error"], full["model"]) == ("UNAVAILABLE", "QueueFull", "full")
    assert (nobody["code"], nobody["error"], nobody["http_status"]) == ("NOT_FOUND", "ModelNotFound", 404)
    assert (last["request_id"], last["transport"], last["remote"]) == ("two", "grpc", "127.0.0.1")
    assert "http_status" not in last


async def test_a_caller_who_leaves_is_logged(make: Make) -> None:
    house = await make(access_log={"file": "access.log"})
    caller = asyncio.create_task(house.infer("echo", 3000))
    await until(lambda: house.app.repository.snapshot.models["echo"][1].running)
    caller.cancel()
    await until(lambda: house.app.observer.access_log.written)  # type: ignore[union-attr]
    (line,) = await house.lines()
    assert (line["code"], line["model"]) == ("CANCELLED", "echo")


# --------------------------------------------------------------------------------------------------------------- spans


class Collector:
    """A collector of OpenTelemetry's, as far as it takes what is sent."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector._take(self)

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def _take(self, handler: BaseHTTPRequestHandler) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        if handler.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        assert handler.path == "/v1/traces"
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]
        handler.send_response(200)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    def config(self, ratio: float) -> dict[str, Any]:
        return {"endpoint": f"http://127.0.0.1:{self.server.server_port}", "ratio": ratio}


def attributes(span: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


@pytest.fixture
def collector() -> Iterator[Collector]:
    pytest.importorskip("opentelemetry.sdk")
    collector = Collector()
    yield collector
    collector.server.shutdown()
    collector.thread.join()
    collector.server.server_close()


async def test_a_traced_call_is_a_span_with_one_for_each_stage(make: Make, collector: Collector) -> None:
    house = await make(opentelemetry=collector.config(0.0))
    await house.infer("echo")  # is not traced
    await house.infer("echo", headers={**TRACED, "x-request-id": "mine"})
    await house.call("nobody", *TRACED.items())
    await asyncio.to_thread(house.app.observer.close)  # type: ignore[union-attr]
    over_http, over_grpc = [span for span in collector.spans if span.kind == 2]
    assert over_http.name == "POST /v2/models/{model}/infer"
    assert (over_http.trace_id.hex(), over_http.parent_span_id.hex()) == (TRACE, SPAN)
    assert over_http.trace_state == "vendor=1"
    found = attributes(over_http)
    assert (found["tensorgate.model"], found["tensorgate.version"], found["tensorgate.batch_size"]) == ("echo", 1, 1)
    assert (found["http.route"], found["http.response.status_code"]) == ("/v2/models/{model}/infer", 200)
    assert (found["url.path"], found["tensorgate.request_id"]) == ("/v2/models/echo/infer", "mine")
    stages = [span for span in collector.spans if span.parent_span_id == over_http.span_id]
    assert [span.name for span in stages] == ["decode", "queue", "infer", "encode"]
    for span in stages:
        assert over_http.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        assert span.end_time_unix_nano <= over_http.end_time_unix_nano
    found = attributes(over_grpc)
    assert (over_grpc.name, found["rpc.method"]) == (INFER[1:], "ModelInfer")
    assert (found["rpc.grpc.status_code"], found["error.type"]) == (5, "ModelNotFound")
    assert over_grpc.status.code == 0  # a caller's mistake is no error of the server's


async def test_other_servers_are_told_whose_call_it_is(make: Make, collector: Collector) -> None:
    near = await make(opentelemetry=collector.config(0.0))
    far = await make(near.url, opentelemetry=collector.config(0.0))
    assert (await far.infer("far", headers=TRACED))[0] == 200
    assert (await far.infer("far"))[0] == 200  # nobody traces it
    for house in (far, near):
        await asyncio.to_thread(house.app.observer.close)  # type: ignore[union-attr]
    (leg,) = [span for span in collector.spans if span.kind == 3]
    here, there = sorted((s for s in collector.spans if s.kind == 2), key=lambda span: span.start_time_unix_nano)
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE}
    assert leg.parent_span_id == here.span_id
    assert there.parent_span_id == leg.span_id
    assert there.trace_state == "vendor=1"


async def test_a_share_of_calls_is_traced(make: Make, collector: Collector) -> None:
    house = await make(opentelemetry=collector.config(1.0), access_log={"file": "access.log"})
    await house.infer("echo", headers={"traceparent": f"00-{TRACE}-{SPAN}-00"})  # its caller says no
    await house.infer("echo")
    first, second = await house.lines()
    (span,) = [span for span in collector.spans if span.kind == 2]
    assert "trace_id" not in first
    assert second["trace_id"] == span.trace_id.hex()


async def test_a_collector_that_is_not_there_holds_up_nobody(make: Make) -> None:
    pytest.importorskip("opentelemetry.sdk")
    house = await make(opentelemetry={"endpoint": "http://127.0.0.1:9", "ratio": 1.0, "max_waiting": 4})
    for _ in range(20):
        assert (await house.infer("echo"))[0] == 200
    async with asyncio.timeout(6):
        await asyncio.to_thread(house.app.observer.close)  # type: ignore[union-attr]


# ------------------------------------------------------------------------------------------------------------- metrics


async def test_traced_calls_are_exemplars_where_the_scraper_asks_for_openmetrics(
    make: Make, collector: Collector
) -> None:
    house = await make(opentelemetry=collector.config(0.0))
    await house.infer("echo")
    await house.infer("echo", headers=TRACED)
    await house.infer("echo", 0.3, headers=TRACED)
    await house.infer("nobody", headers=TRACED)

    async def text(accept: str) -> str:
        async with house.http.get(f"{house.url}/metrics", headers={"Accept": accept}) as answer:
            assert answer.content_type == (accept.partition(";")[0] or "text/plain")
            return await answer.text()

    assert TRACE not in await text("text/plain")
    families: Any = text_string_to_metric_families(await text("application/openmetrics-text"))  # type: ignore[no-untyped-call]
    found = [
        (sample.labels["model"], float(sample.labels["le"]), sample.exemplar)
        for family in families
        for sample in family.samples
        if sample.exemplar
    ]
    assert sorted(model for model, _, _ in found) == ["", "echo", "echo"]
    assert all(exemplar.labels == {"trace_id": TRACE} for _, _, exemplar in found)
    assert all(exemplar.value <= bound for _, bound, exemplar in found)
    assert max(exemplar.value for _, _, exemplar in found) >= 0.3


async def test_what_passes_through_a_port(make: Make) -> None:
    house = await make()
    running = asyncio.ensure_future(house.infer("echo", 3000))
    await until(lambda: house.app.repository.snapshot.models["echo"][1].running)
    front = '{listener="front",transport="http"}'
    found = await house.series()
    assert found[f"tensorgate_calls_in_flight{front}"] == 2  # this one, too
    assert found[f"tensorgate_open_connections{front}"] == 2
    running.cancel()
    while found[f"tensorgate_calls_in_flight{front}"] > 1:
        found = await house.series()
    await house.call("full")
    found = await house.series()
    assert found[f"tensorgate_calls_in_flight{front}"] == 1
    assert found[f"tensorgate_received_bytes_total{front}"] > 60
    assert found[f"tensorgate_sent_bytes_total{front}"] > 60
    over_grpc = '{listener="127.0.0.1:0",transport="grpc"}'
    assert found[f"tensorgate_received_bytes_total{over_grpc}"] > 20
    assert found[f"tensorgate_calls_in_flight{over_grpc}"] == 0


async def test_the_state_of_the_process(make: Make) -> None:
    house = await make(access_log={"file": "access.log"})
    await house.infer("echo")
    found = await house.series()
    assert found["tensorgate_ready"] == 1
    assert sum(name.startswith("tensorgate_build_info{") for name in found) == 1
    assert found['tensorgate_model_load_seconds{model="echo",version="1"}'] > 0
    assert found["tensorgate_access_log_lines_total"] == 1
    while not found["tensorgate_event_loop_lag_seconds_count"]:
        found = await house.series()
    assert found["tensorgate_event_loop_lag_seconds_count"] >= 1
    house.app.service.draining = True
    assert (await house.series())["tensorgate_ready"] == 0


async def test_other_servers_are_counted(make: Make) -> None:
    near = await make()
    far = await make(near.url)
    assert (await far.infer("far"))[0] == 200
    found = await far.series()
    labels = f'address="{near.url}",model="far"'
    assert found[f'tensorgate_upstream_calls_total{{{labels},result="ok"}}'] == 1
    assert found[f"tensorgate_upstream_seconds_count{{{labels}}}"] == 1
    assert found[f"tensorgate_upstream_ready{{{labels}}}"] == 1
    assert found[f"tensorgate_upstream_ejected{{{labels}}}"] == 0


# -------------------------------------------------------------------------------------------------------------- probes


@pytest.mark.parametrize("dialects", [["open_inference"], ["tf_serving"], ["grps"]], ids=lambda names: names[0])
async def test_every_port_has_the_probes(make: Make, dialects: list[str]) -> None:
    ports = {"http": [{"bind": "127.0.0.1:0", "dialects": dialects}], "grpc": [{"bind": "127.0.0.1:0"}]}
    house = await make(listen={**ports, "metrics": {"bind": "127.0.0.1:0"}})
    for draining, ready in ((False, 200), (True, 503)):
        house.app.service.draining = draining
        for address in (each for each in house.app.addresses if not each.startswith("grpc")):
            url = address.replace("metrics://", "http://")
            for path, status in (("/healthz", 200), ("/readyz", ready), ("/readyz?verbose", ready)):
                word = "ok\n" if status == 200 else "unavailable\n"
                async with house.http.get(url + path) as answer:
                    assert (answer.status, await answer.text()) == (status, word)
                async with house.http.head(url + path) as answer:
                    assert (answer.status, await answer.text()) == (status, "")
                    assert answer.headers["Content-Length"] == str(len(word))
                async with house.http.post(url + path) as answer:
                    assert answer.status == 405


async def test_health_asks_what_a_port_speaks(make: Make) -> None:
    ports = {"http": [{"bind": "127.0.0.1:0", "dialects": ["grps"]}], "grpc": [{"bind": "127.0.0.1:0"}]}
    house = await make(listen=ports)
    url, address = house.app.addresses
    grpc_address = address.removeprefix("grpc://")
    gateways: tuple[Any, ...] = (client.Gateway(url, 5), client.GrpcGateway(grpc_address, 5))
    told: list[str] = []
    for gateway in gateways:
        await asyncio.to_thread(client.health, gateway, False, 0, told.append)
        await asyncio.to_thread(client.health, gateway, True, 0, told.append)
    assert told == ["ready", "live"] * 2
    house.app.service.draining = True
    for gateway, words in zip(gateways, ("503 unavailable", "NOT_SERVING"), strict=True):
        with pytest.raises(client.ClientError, match=words):
            await asyncio.to_thread(client.health, gateway, False, 0, told.append)
        await asyncio.to_thread(client.health, gateway, True, 0, told.append)
    wrong = client.Gateway(f"http://{grpc_address}", 5), client.GrpcGateway(url.removeprefix("http://"), 5)
    for gateway in wrong:
        with pytest.raises(client.ClientError):
            await asyncio.to_thread(client.health, gateway, True, 0, told.append)
