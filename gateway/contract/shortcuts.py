"""Every way around the plain flow, by name.

The plain way is the readable one: aiohttp or one frame after the other, a whole document or message, Python and NumPy,
the queue, a thread, the full pipeline. It is always there. A shortcut gives the same bytes for less, where it applies;
each has a row here, is measured by `python -m benchmarks.shortcuts`, and one that saves less than 3 % of what a request
costs end to end goes.

    TENSORGATE_PLAIN=all tensorgate serve …                     no shortcuts
    TENSORGATE_PLAIN=http_fast_path,inline_runs tensorgate …    without these two

What is decided when a model is loaded, and holds for all of its requests, is no shortcut but the model: operators that
became one pass, the runtime's own rewriting of a graph.

The variable is read once, when the process starts: on the way of a request nobody asks. `tests/equivalence` serves the
same models with and without them, and compares every byte.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

VARIABLE: Final = "TENSORGATE_PLAIN"


@dataclass(frozen=True, slots=True)
class Shortcut:
    """`when` it is taken, the `plain` way in its place, the module `where` both part, and what it `saves`: processor
    time of the server per request, of the named kind.
    """

    when: str
    plain: str
    where: str
    saves: str


SHORTCUTS: Final[Mapping[str, Shortcut]] = {
    # ------------------------------------------------------------------------------------------------------- transports
    "http_fast_path": Shortcut(
        when="an HTTP/1.1 request with an ordinary head and a length",
        plain="aiohttp reads every request",
        where="gateway.transport.http_server",
        saves="88 us a request in place of 160 (V2 JSON, 16 floats)",
    ),
    "eager_start": Shortcut(
        when="a request begins: its first step is taken at once, and a task is made only if it has to wait, in a door "
        "if it has to wait for more than the engine's answer",
        plain="a task for each request",
        where="gateway.wire.eager_start",
        saves="98 us in place of 101 to 107 (V2 JSON, 16 floats)",
    ),
    "known_call_heads": Shortcut(
        when="a gRPC call whose header block is byte for byte one that was read with the same table",
        plain="every header block is decoded and read",
        where="gateway.transport.grpc_connection",
        saves="73 us in place of 108 (V2 gRPC, 16 floats)",
    ),
    "whole_frames": Shortcut(
        when="a HEADERS frame that is all of the headers, a DATA frame that is one whole message",
        plain="frames and messages are put together piece by piece",
        where="gateway.wire.http2",
        saves="67 us in place of 72 (V2 gRPC, 16 floats)",
    ),
    "direct_reads": Shortcut(
        when="the rest of a large gRPC message: the kernel writes it where it stays",
        plain="it is read into memory that all share, and copied",
        where="gateway.wire.http2",
        saves="600 us in place of 633 (V2 gRPC, 600 KB)",
    ),
    "cut_through": Shortcut(
        when="a large call that another server answers whole, or its answer, of which more is to come a millisecond "
        "after its beginning: it is sent on while it arrives",
        plain="call and answer are sent on once all of them is here",
        where="gateway.wire.cut_through",
        saves="no processor time; the answer is there after 10.6 ms in place of 14.8 (V2 gRPC, 600 KB, two links of "
        "1 Gbit/s)",
    ),
    "passed_pieces": Shortcut(
        when="a piece of a stream that another server answers, over HTTP/1.1, if all before it has left",
        plain="each piece is a reply, which whoever waits for it sends",
        where="backends.remote.http_connection",
        saves="13.8 us a piece in place of 20.1 (64 streams, a piece every 2 ms: benchmarks.text relay)",
    ),
    # --------------------------------------------------------------------------------------------------------- dialects
    "v2_json_templates": Shortcut(
        when="Open Inference JSON that differs from an earlier request in the digits of its only input",
        plain="the document is read",
        where="adapters.open_inference.request",
        saves="86 us in place of 111 (V2 JSON, 16 floats)",
    ),
    "v2_binary_heads": Shortcut(
        when="Open Inference JSON in front of binary tensors that is byte for byte an earlier one",
        plain="the document is read",
        where="adapters.open_inference.request",
        saves="93 us in place of 123 (V2 binary, 16 floats)",
    ),
    "v2_grpc_templates": Shortcut(
        when="a message to ModelInfer or ModelStreamInfer that differs from an earlier one in its raw contents alone",
        plain="protobuf reads the message",
        where="adapters.open_inference.proto_request",
        saves="82 us in place of 108 (V2 gRPC, 16 floats)",
    ),
    "lone_arrays": Shortcut(
        when="a body of TensorFlow Serving's or grps' JSON that is one array between known words",
        plain="the document is read",
        where="adapters.json.cuts",
        saves="102 us in place of 139 (TensorFlow Serving JSON, 16 floats)",
    ),
    "array_cuts": Shortcut(
        when="long arrays in JSON bodies of 256 KiB and more: they are scanned without the interpreter",
        plain="the document is read with its arrays",
        where="adapters.json.cuts",
        saves="a small request beside two of 2 MB: median 0.3 to 0.6 ms in place of 0.9; the large cost a fifth more",
    ),
    "stacked_columns": Shortcut(
        when="rows of named inputs in TensorFlow Serving's JSON, all of the same names, of scalars or of long arrays",
        plain="the rows are walked value by value",
        where="adapters.tf_serving.predict_request",
        saves="760 us in place of 1,634 (256 rows of two numbers)",
    ),
    "message_cuts": Shortcut(
        when="tensors' data in protobuf messages of some kilobytes and more: views of the body",
        plain="protobuf reads the whole message",
        where="adapters.open_inference.proto_request, adapters.tf_serving.proto_request, adapters.grps.proto_message",
        saves="0.8 ms in place of 7.1 (TensorFlow Serving gRPC, 600 KB of float_val)",
    ),
    "predict_frames": Shortcut(
        when="one small output over gRPC's Predict whose data are its array's memory: what is around that is kept",
        plain="the message is made field by field",
        where="adapters.tf_serving.proto_response",
        saves="114 us in place of 123 (TensorFlow Serving gRPC, 16 floats)",
    ),
    "native_numbers": Shortcut(
        when="numbers in JSON, where the compiled helper is installed",
        plain="simdjson, orjson, RapidJSON and Python",
        where="adapters.json.body",
        saves="181 us in place of 1,013 (TensorFlow Serving JSON, 1,000 floats)",
    ),
    "native_texts": Shortcut(
        when="tensors of strings, where the compiled helper is installed",
        plain="Python, string by string",
        where="adapters.json.texts",
        saves="901 us in place of 1,021 (V2 JSON, 1,000 strings)",
    ),
    "native_varints": Shortcut(
        when="integers in protobuf's typed fields, where the compiled helper is installed",
        plain="NumPy",
        where="adapters.protobuf.varints",
        saves="268 us in place of 491 (TensorFlow Serving gRPC, 1,000 of int64_val)",
    ),
    "native_examples": Shortcut(
        when="tf.Examples over gRPC, where the compiled helper is installed",
        plain="protobuf's wire format, read by Python",
        where="adapters.tf_serving.example_proto",
        saves="1.9 ms in place of 29 (TensorFlow Serving gRPC, 1,000 Examples of ten features)",
    ),
    # ----------------------------------------------------------------------------------------------------------- engine
    "response_cache": Shortcut(
        when="a request to a model with `response_cache: true` that is bit by bit one that was answered",
        plain="the model runs",
        where="gateway.engine.model",
        saves="54 us in place of 81 (V2 JSON, 16 floats, a model that computes nothing)",
    ),
    "door_replicas": Shortcut(
        when="a door is asked for a model that is quicker than the way to the engine, and has a copy of it",
        plain="the request crosses to the engine",
        where="gateway.replicas",
        saves="64 us in place of 110 (V2 JSON, 16 floats, two doors)",
    ),
    "inline_runs": Shortcut(
        when="an idle model has been measured to be quicker than a hop to a thread and back: it runs on the event loop",
        plain="the model's own thread",
        where="gateway.engine.scheduler",
        saves="143 us in place of 267 (V2 JSON, 16 floats, one caller)",
    ),
    "inline_dispatch": Shortcut(
        when="a request that would run alone on an idle model of the event loop: in its caller's own steps",
        plain="the queue, a batch of one and a task",
        where="gateway.engine.scheduler",
        saves="191 us in place of 231 (V2 gRPC, 16 floats, relayed to itself)",
    ),
    "bare_runs": Shortcut(
        when="a request alone on the host, to a model without operators: its arrays pass as they are",
        plain="the full pipeline: bring, prepare, infer, pack, fetch, split",
        where="backends.execution.pipeline",
        saves="70 us in place of 84 (V2 gRPC, 16 floats)",
    ),
    "joined_runs": Shortcut(
        when="requests for all outputs of a model on the host, without operators: joined and split, and no more",
        plain="the full pipeline",
        where="backends.execution.pipeline",
        saves="70 us in place of 81 (V2 JSON, 16 floats, a model in a thread)",
    ),
    "bound_outputs": Shortcut(
        when="an ONNX model on the host runs again on inputs of the same shapes: tensors are bound once",
        plain="InferenceSession.run",
        where="backends.onnx.backend",
        saves="66 us in place of 87 (V2 gRPC, 16 floats)",
    ),
}


def named(text: str) -> frozenset[str]:
    """What the variable's text turns off. Raises ValueError for a name that is in no row."""
    names = frozenset(name.strip() for name in text.split(",") if name.strip())
    if "all" in names:
        return frozenset(SHORTCUTS)
    if unknown := sorted(names - SHORTCUTS.keys()):
        raise ValueError(f"{VARIABLE}: there is no shortcut '{unknown[0]}'; all, or some of {', '.join(SHORTCUTS)}")
    return names


def _plain() -> frozenset[str]:
    """A wrong name is for `check_variable` to tell: whoever imports a module is not to fail for it."""
    try:
        return named(os.environ.get(VARIABLE, ""))
    except ValueError:
        return frozenset()


_PLAIN: Final = _plain()


def is_taken(name: str) -> bool:
    """Whether a shortcut may be taken in this process. To be asked where modules are imported or objects made, not on
    the way of a request. Raises KeyError for a name that is in no row.
    """
    SHORTCUTS[name]
    return name not in _PLAIN


def plain_names() -> tuple[str, ...]:
    """The shortcuts that are off in this process."""
    return tuple(name for name in SHORTCUTS if name in _PLAIN)


def check_variable() -> None:
    """Raises ValueError if the variable names what is in no row."""
    named(os.environ.get(VARIABLE, ""))
