"""What the gRPC client that grps hands out calls, over a plain grpc channel: every method, every kind of data.

The messages are built here from the protocol's own field numbers, so that nothing of the gateway is in them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import checks
import grpc
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "grps.protos.v1"
SCHEMA = {
    "Status": "1 code int32, 2 msg string, 3 status int32",
    "GenericTensor": "1 name string, 2 dtype int32, 3 shape uint32*, 4 flat_uint8 uint32*, 5 flat_int8 int32*, "
    "6 flat_int16 int32*, 7 flat_int32 int32*, 8 flat_int64 int64*, 9 flat_float16 float*, 10 flat_float32 float*, "
    "11 flat_float64 double*, 12 flat_string string*",
    "GenericTensorData": "1 tensors GenericTensor*",
    "SSEntry": "1 key string, 2 value string",
    "SBEntry": "1 key string, 2 value bytes",
    "SI32Entry": "1 key string, 2 value int32",
    "SI64Entry": "1 key string, 2 value int64",
    "SFEntry": "1 key string, 2 value float",
    "SDEntry": "1 key string, 2 value double",
    "GenericMapData": "1 s_s SSEntry*, 2 s_b SBEntry*, 3 s_i32 SI32Entry*, 4 s_i64 SI64Entry*, 5 s_f SFEntry*, "
    "6 s_d SDEntry*",
    "GrpsMessage": "1 status Status, 2 model string, 3 bin_data bytes, 4 str_data string, "
    "5 gtensors GenericTensorData, 7 gmap GenericMapData",
}
OK = (200, "OK", 1)
STREAMED = 10_000


def messages() -> Any:
    """The class of GrpsMessage."""
    types = descriptor_pb2.FieldDescriptorProto.Type
    file = descriptor_pb2.FileDescriptorProto(name="grps.proto", package=PACKAGE, syntax="proto3")
    for name, fields in SCHEMA.items():
        kind = file.message_type.add(name=name)
        if name == "GrpsMessage":
            kind.oneof_decl.add(name="data_oneof")
        for number, field, of in (each.split() for each in fields.split(", ")):
            of, star, _ = of.partition("*")
            made = kind.field.add(name=field, number=int(number), label=3 if star else 1)
            if name == "GrpsMessage" and int(number) >= 3:
                made.oneof_index = 0
            if of in SCHEMA:
                made.type, made.type_name = types.Value("TYPE_MESSAGE"), f".{PACKAGE}.{of}"
            else:
                made.type = types.Value(f"TYPE_{of.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.GrpsMessage"))


GrpsMessage = messages()


@contextmanager
def service(address: str) -> Iterator[Any]:
    """The service's methods by name, as stubs have them."""
    with grpc.insecure_channel(address) as channel:

        def method(name: str) -> Any:
            make = channel.unary_stream if name == "PredictStreaming" else channel.unary_unary
            return make(f"/{PACKAGE}.GrpsService/{name}", GrpsMessage.SerializeToString, GrpsMessage.FromString)

        yield method


def told(reply: Any) -> tuple[int, str, int]:
    return (reply.status.code, reply.status.msg, reply.status.status)


def tensor(name: str, dtype: int, field: str, shape: list[int], values: Any) -> dict[str, Any]:
    return {"name": name, "dtype": dtype, "shape": shape, field: values}


# -------------------------------------------------------------------------------------------------------------- health


def check_health(address: str) -> None:
    with service(address) as method:
        steps = (("CheckLiveness", 200), ("Offline", 200), ("CheckReadiness", 503), ("CheckLiveness", 200))
        for name, code in (*steps, ("Online", 200), ("CheckReadiness", 200)):
            reply = method(name)(GrpsMessage(), timeout=10)
            assert reply.status.code == code, name
            assert reply.status.status == (1 if code == 200 else 2)


# ------------------------------------------------------------------------------------------------------------ payloads


def check_text_and_bytes(address: str) -> None:
    with service(address) as method:
        for kind, sent, expected in (
            ("str_data", "hello grps.", "HELLO GRPS."),
            ("str_data", "", ""),
            ("bin_data", b"hello grps.", b"HELLO GRPS."),
        ):
            reply = method("Predict")(GrpsMessage(model="upper-1", **{kind: sent}), timeout=10)
            assert told(reply) == OK
            assert getattr(reply, kind) == expected


def check_tensors_of_every_dtype(address: str) -> None:
    rows = (
        ("UINT8", 1, "flat_uint8", [0, 255]),
        ("INT8", 2, "flat_int8", [-128, 127]),
        ("INT16", 3, "flat_int16", [-32768, 32767]),
        ("INT32", 4, "flat_int32", [-(2**31), 2**31 - 1]),
        ("INT64", 5, "flat_int64", [-(2**63), 2**63 - 1]),
        ("FP16", 6, "flat_float16", [0.5, -65504.0]),
        ("FP32", 7, "flat_float32", [0.5, float(np.float32(0.1))]),
        ("FP64", 8, "flat_float64", [0.1, -1e300]),
        ("BYTES", 9, "flat_string", ["grps", "ü"]),
    )
    with service(address) as method:
        for datatype, dtype, field, values in rows:
            for name in ("x", ""):
                sent = GrpsMessage(model=f"echo_{datatype}-1")
                sent.gtensors.tensors.add(**tensor(name, dtype, field, [2], values))
                reply = method("Predict")(sent, timeout=10)
                assert told(reply) == OK, (datatype, reply.status.msg)
                [got] = reply.gtensors.tensors
                assert (got.name, got.dtype, [*got.shape], [*getattr(got, field)]) == ("x", dtype, [2], values)


def check_a_large_tensor(address: str) -> None:
    values = np.random.default_rng(0).standard_normal(150_528).astype(np.float32)
    with service(address) as method:
        sent = GrpsMessage(model="echo_FP32-1")
        sent.gtensors.tensors.add(**tensor("x", 7, "flat_float32", [values.size], values))
        reply = method("Predict")(sent, timeout=10)
        assert told(reply) == OK
        assert np.array_equal(np.array(reply.gtensors.tensors[0].flat_float32, np.float32), values)


def check_a_map(address: str) -> None:
    sent = {"s_s": "value", "s_b": b"\xffgrps", "s_i32": -1, "s_i64": 2**53 + 1, "s_f": 1.5, "s_d": 0.1}
    with service(address) as method:
        message = GrpsMessage(model="echo_map-1")
        for name, value in sent.items():
            getattr(message.gmap, name).add(key="key", value=value)
        message.gmap.s_b[0].value = b"grps"  # a string that the reply can carry
        reply = method("Predict")(message, timeout=10)
        assert told(reply) == OK
        assert {each.name: [*_flat(each)] for each in reply.gtensors.tensors} == {
            name: ["grps" if name == "s_b" else value] for name, value in sent.items()
        }


def _flat(each: Any) -> Any:
    return next(values for field, values in each.ListFields() if field.name.startswith("flat_"))


# ------------------------------------------------------------------------------------------------------------- streams


def countdown(start: int) -> Any:
    message = GrpsMessage(model="fast_countdown-1")
    message.gtensors.tensors.add(**tensor("start", 4, "flat_int32", [1], [start]))
    return message


def check_ten_thousand_messages_come_in_order(address: str) -> None:
    """While others ask for other things."""
    with service(address) as method:
        wrong: list[str] = []
        done = threading.Event()

        def others() -> None:
            while not done.is_set():
                reply = method("Predict")(GrpsMessage(model="upper-1", str_data="x"), timeout=10)
                if (told(reply), reply.str_data) != (OK, "X"):
                    wrong.append(str(reply))

        thread = threading.Thread(target=others)
        thread.start()
        try:
            replies = list(method("PredictStreaming")(countdown(STREAMED - 1), timeout=30))
        finally:
            done.set()
            thread.join()
        assert {told(reply) for reply in replies} == {OK}
        counts = [number for reply in replies for number in reply.gtensors.tensors[0].flat_int32]
        assert counts == list(range(STREAMED - 1, -1, -1))
        assert not wrong, wrong


def check_a_stream_of_one_and_one_that_fails(address: str) -> None:
    with service(address) as method:
        [reply] = method("PredictStreaming")(GrpsMessage(model="upper-1", str_data="x"), timeout=10)
        assert (told(reply), reply.str_data) == (OK, "X")
        [reply] = method("PredictStreaming")(GrpsMessage(model="absent-1", str_data="x"), timeout=10)
        assert told(reply) == (500, "Model absent-1 not found.", 2)


def check_a_stream_that_is_left(address: str) -> None:
    with service(address) as method:
        stream = method("PredictStreaming")(countdown(10**9), timeout=60)
        assert next(stream).gtensors.tensors[0].flat_int32[0] == 10**9
        stream.cancel()
        assert told(method("Predict")(GrpsMessage(model="upper-1", str_data="x"), timeout=10)) == OK


# ----------------------------------------------------------------------------------------------- metadata and refusals


def check_metadata(address: str) -> None:
    with service(address) as method:
        server = method("ServerMetadata")(GrpsMessage(), timeout=10)
        assert told(server) == OK
        assert "name: half_plus_two" in server.str_data
        model = method("ModelMetadata")(GrpsMessage(str_data="digits"), timeout=10)
        assert told(model) == OK
        assert "name: digits" in model.str_data
        for message, expected in (
            (GrpsMessage(), (400, "No model name.", 2)),
            (GrpsMessage(str_data=""), (400, "The model name is empty.", 2)),
            (GrpsMessage(str_data="your_model"), (404, "Model not found.", 2)),
        ):
            assert told(method("ModelMetadata")(message, timeout=10)) == expected


def check_refusals(address: str) -> None:
    with service(address) as method:
        absent = method("Predict")(GrpsMessage(model="upper", str_data="x"), timeout=10)
        assert told(absent) == (500, "Model upper not found.", 2)
        short = GrpsMessage(model="half_plus_two-1")
        short.gtensors.tensors.add(**tensor("x", 7, "flat_float32", [2, 2], [1.0]))
        refused = method("Predict")(short, timeout=10)
        assert (refused.status.code, refused.status.status) == (500, 2)
        assert "expected size: 4, actual size: 1" in refused.status.msg


if __name__ == "__main__":
    checks.main(globals())
