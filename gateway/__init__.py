"""tensorgate: one front door for inference clients that speak different languages. This is the map of the house.

    client ── bytes ──▶ http_server / grpc_server ── Call ──▶ service ──▶ dialect.decode ── InferRequest ──▶ scheduler
    client ◀─ bytes ─── http_server / grpc_server ◀─ Reply ── service ◀── dialect.encode ◀─ InferResponse ── pipeline

What everybody speaks
    canonical.py      requests, answers, specifications: the form between dialects and models
    questions.py      what can be asked besides an inference: health, metadata, statistics, load and unload …
    errors.py         everything that can go wrong, one class per kind, facts only
    ports.py          what can be plugged in: dialects, backends, operators; the messages Call and Reply
    files.py          files that the YAML names
    shortcuts.py      the ways around the plain flow, by name

The life of a request
    http_server.py    HTTP <-> Call and Reply             grpc_server.py    gRPC <-> Call and Reply
    http_lane.py      ordinary HTTP requests, without aiohttp: http_head.py reads them, http_body.py receives them;
                      http_exchange.py is what the lane and aiohttp have in common
    grpc_lane.py      a gRPC port; grpc_connection.py is one client of it, grpc_head.py reads what a call's headers
                      say, grpc_call.py is one call, grpc_exchange.py what the rest of the house sees of it
    grpc_streams.py   calls of many messages              grpc_house.py     health and reflection on every gRPC port
    http2.py          one end of an HTTP/2 connection, ours or to another server: http2_frames.py has its frames,
                      hpack.py its headers, grpc_messages.py gRPC's messages on it
    first_step.py     flows that end where they begin      patience.py       how long clients are waited for
    sockets.py        addresses to listen on              peers.py          who is at the other end
    service.py        decode, answer, encode: the one way in, the one place where errors become replies
    gate.py           may this caller ask for this: auth.py knows who calls, access.py who may use what, rate_limit.py
                      how often; tls.py has the ports' certificates, cors.py what browsers are told
    router.py         the name that a caller uses -> the version that answers
    route.py          a name with several models behind it, and which of them a request gets
    shadow.py         copies of requests for another model; comparison.py compares the answers, shadow_samples.py keeps
                      some, shadow_metrics.py counts them, shadow_report.py prints them
    model.py          one loaded version: does a request fit?  response_cache.py  answers that are given again
    scheduler.py      the queue, and how batches leave it
    waiting.py        which of them may go next             sequences.py      the same where they build on one another
    job.py            an accepted request and its answers   slot.py           the thread where a batch runs
    failure_log.py    what models' code raises, in the log
    passing.py        a request that needs no queue, and runs in its caller's own steps
    meter.py          what a scheduler reports to         statistics.py     the counters of one loaded version
    hidden.py         controls and states, which pass between the gateway and a model of sequences
    shared_memory.py  the memory that callers share with us

What is loaded, and from what
    config/           YAML -> Config, strictly              catalog.py        which models there are, how configured
    repository.py     which are served, by whose word       record.py         one model's versions and their states
    inventory.py      what is loaded; loads and unloads     model_list.py     a caller's list in place of all models
    loader.py         a model on disk -> in memory          plan.py           what the configuration says of it then
    samples.py        what YAML says of the warm-up       warmup.py         what runs before callers may ask
    policies.py       what YAML says of queues and sequences, fitted to a model
    signatures.py     what it says of TensorFlow Serving's signatures
    uploads.py        files that come with a load           model_folder.py   model.yaml in a folder of models
    reload.py         the configuration, read anew          changes.py        what another configuration would change
    study.py          how its models would differ from those that are served
    admin.py          who may change a running server       migrate.py        other servers' configurations -> YAML
    app.py            the composition root: the only module that imports dialects and backends
    serving.py        `serve`, in one process or two      supervisor.py     a parent that replaces one that ended

What can be seen
    metrics.py        every Prometheus instrument           triton_metrics.py the same numbers under Triton's names
    series.py         what they are made of               tf_serving_metrics.py  and under TensorFlow Serving's
    gpu_metrics.py    the GPUs that models are on
    tracing.py        which requests leave a trace          logs.py           what is logged, as callers may change it
    monitor.py        the last seconds, hours and days      overview.py       what the operator's page shows
    page/             the page itself                       client.py         what the command line asks a gateway
    check.py          what a configuration shows to be wrong, without loading a model
    op_list.py        what the command line says of operators
    vitals.py         the process itself              traffic.py        what passes through its ports
    refusals.py       why callers are turned away     observer.py       who is told of every call that ends:
    access_log.py     a line of JSON                  log_lines.py      what it is made of
    spans.py          OpenTelemetry's spans
    trail.py          what becomes of one call        trace_context.py  whose call it is, and whether it is traced
    request_id.py     what it is called               peers.py          where it came from
    __main__.py       the command line

`adapters` holds the dialects (pure: bytes in, request out), `backends` what computes models. Neither knows the other,
and of the gateway both know canonical, questions, errors and ports alone; import-linter holds everybody to it.

To add a dialect: one module in `adapters` with a KIND, one line in `adapters.DIALECTS`, its cases below
`tests/adapters`. `tests/gateway/test_transports.py` has a whole one in sixty lines.
"""

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
"""ONNX Runtime 1.31 and later looks up a collector of Microsoft's and writes below HOME's cache, unless this stands in
the environment before it is imported the first time, by us or by a model of a user's. Its disable_telemetry_events()
comes too late."""
