"""What two processes of a gateway say to each other. Each message is an array that begins with its number.

Times are seconds of `time.monotonic()`, which all processes of a machine share.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

import msgspec

VERSION: Final = 11
"""Of the layout: processes of different versions refuse each other."""


class Message(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """Base of all that is said."""


class Block(Message):
    """Bytes in the arena of whoever sends the message; `ticket` comes back in a Release."""

    offset: int
    size: int
    ticket: int


class Tensor(Message):
    """One array: `datatype` is its Open Inference name. BYTES have the elements one after the other in `data`, and
    their lengths, as unsigned 32-bit numbers, in `lengths`.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes | Block
    lengths: bytes | Block = b""


Tensors: TypeAlias = tuple[Tensor, ...]


class Classes(Message):
    """The best classes of one output. See canonical.TopK."""

    values: Tensor
    indices: Tensor


# ------------------------------------------------------------------------------------------------------ both directions


class Hello(Message, tag=0):
    """The first message of each side."""

    version: int
    program: str
    """The version of the program."""
    pid: int
    slot: int = 0
    """Which door it is."""
    restarts: dict[str, int] = {}
    """How often the door of this slot had to be replaced, by reason."""


class Release(Message, tag=1):
    """No array of these blocks is left: their owner may use them again."""

    tickets: tuple[int, ...]


# --------------------------------------------------------------------------------------------------- door to the engine


class Submit(Message, tag=10):
    """An InferRequest for the model version with the serial number `model`."""

    call: int
    model: int
    inputs: Tensors
    id: str = ""
    outputs: tuple[tuple[str, int], ...] = ()
    """(name, top_k)"""
    parameters: dict[str, bool | int | float | str] = {}
    signature: str = ""
    priority: int = 0
    sequence: tuple[int | str, bool, bool] | None = None
    """(id, start, end)"""
    deadline: float | None = None
    queue_timeout_us: int = 0
    stream: bool = False
    tokens: int = 0
    request_id: str = ""
    share: str = ""
    """See CancellationToken."""
    carried: dict[str, str] | None = None
    """Where somebody wants to know when it ran: the headers of requests to other servers that are made for it."""


class Cancel(Message, tag=11):
    """Nobody waits for this call any more; `satisfied`: its caller has all that it wants."""

    call: int
    satisfied: bool = False


class Credit(Message, tag=12):
    """So many more answers of a decoupled model may come."""

    call: int
    answers: int


class Relay(Message, tag=13):
    """A whole call, for the engine to decode, answer and encode. See contract.call.Call."""

    call: int
    dialect: str
    body: bytes | Block
    method: str
    target: str
    headers: dict[str, str]
    transport: str
    args: dict[str, str]
    deadline: float | None
    limits: tuple[int, int, int | None]
    """max_body_bytes, max_binary_bytes, max_json_depth"""
    listener: tuple[str, ...]
    peer: tuple[str, tuple[str, ...]]
    """Its address, and the names of its certificate."""
    caller: tuple[str, tuple[str, ...], float] | None
    """name, roles, until"""
    auth: str
    request_id: str
    admitted: bool
    """Limits have counted it already."""
    carried: dict[str, str] | None
    """See Submit."""
    share: str = ""
    """See Call."""


class RelayPage(Message, tag=14):
    """An HTTP request for a page that is no dialect's."""

    call: int
    path: str
    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    peer: tuple[str, tuple[str, ...]]


class Observed(Message, tag=15):
    """What a door has counted since it last said so, and the number of the Settle that asked for it, or 0."""

    settle: int
    series: tuple[Series, ...]
    errors: tuple[CountedError, ...]
    ended: tuple[Ended, ...]
    listeners: tuple[tuple[str, str, int | None, int, int, int], ...]
    """(title, transport, connections, running, bytes received, bytes sent) as they are now"""
    lines: tuple[int, int, int, int, int]
    """Lines of the access log so far, written and dropped, and calls recorded, dropped and passed over."""
    routes: tuple[RouteCount, ...]
    routes_running: tuple[tuple[str, int], ...]
    """Requests of a route that are on their way now."""
    usage: tuple[tuple[str, str, int, int, int, int, float, int], ...] = ()
    """(caller, model, calls, rows, bytes in, bytes out, seconds of computing, calls that failed)"""
    replicas: tuple[tuple[int, bytes], ...] = ()
    """Requests that copies of versions have answered, by the version's number: (rows, when it began, its seconds, the
    model's) of each, as 64-bit floats one after the other."""


Times: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]
Merged: TypeAlias = tuple[tuple[float, Times], ...]
"""Observations that a door could not keep one by one: (seconds, how often)"""


class Series(Message):
    """Calls of one kind. Seconds are 64-bit floats, one after the other."""

    dialect: str
    transport: str
    model: str
    version: str
    method: str
    took: bytes
    ran: bytes
    decoded: bytes
    encoded: bytes
    failed: tuple[tuple[int, str, float, Times], ...]
    """(code, reason, seconds, calls)"""
    merged: tuple[Merged, Merged, Merged, Merged] = ((), (), (), ())
    """More of took, ran, decoded and encoded, in this order."""
    exemplars: tuple[tuple[str, float, float], ...] = ()
    """(trace's id, seconds, when it ended, in seconds since 1970) of the last traced call of each bucket of seconds."""
    tokens: tuple[int, int] = (0, 0)
    """Those that calls brought, and those that they were answered with."""


class CountedError(Message):
    """Failures of one kind: see monitoring.recent_errors. Times are of the system's clock."""

    key: tuple[str, str, str, str, str, int, str]
    """dialect, transport, model, version, method, code, reason"""
    text: str
    """What the last of them said."""
    since: float
    last: float
    count: Times


class RouteCount(Message):
    """Requests that a route has sent to a version, and why. See contract.metrics.RouteUsage."""

    route: str
    model: str
    version: str
    why: str
    requests: int


class Ended(Message):
    """One call, for the counters of a dialect that counts each; or several that count alike, and their means."""

    dialect: str
    model: str
    method: str
    transport: str
    code: int
    """What the caller was told."""
    seconds: float
    model_seconds: float
    """-1 where no model was asked; `rows`, too."""
    rows: float
    calls: Times = 1
    """How many; of several, the numbers are means."""


class Seen(Message, tag=16):
    """The door has taken over the State of this number."""

    number: int


# --------------------------------------------------------------------------------------------------- engine to the door


class Asked(Message):
    """A call to another server, which was told the number of its span, 16 digits. Times are of time.monotonic()."""

    target: str
    span_id: str
    begun: float
    ended: float
    failed: bool


class Answer(Message, tag=30):
    """See canonical.InferResponse. `ran` has (rows, batch_rows, submitted, started, ended) for each run of the request,
    (rows, submitted, ended) where it ended while it waited.
    """

    call: int
    outputs: Tensors
    parameters: dict[str, bool | int | float | str]
    final: bool
    classes: dict[str, Classes]
    ran: tuple[tuple[float, ...], ...]
    asked: tuple[Asked, ...] = ()
    seconds: float = 0.0
    """How long such a request is likely to run; 0, unless doors may have copies of the version."""


class End(Message, tag=31):
    """No more answers of a decoupled model."""

    call: int
    asked: tuple[Asked, ...] = ()


class Failure(Message, tag=32):
    """The call, or the Relay, ends with an error: the class of `contract.errors`, its text and its facts."""

    call: int
    kind: str
    text: str
    facts: dict[str, Any]
    ran: tuple[tuple[float, ...], ...] = ()
    asked: tuple[Asked, ...] = ()
    refused: bool = False
    """The request was not even accepted."""


class Stale(Message, tag=33):
    """The version that a Submit names does not serve any more."""

    call: int


class RelayReply(Message, tag=34):
    """A reply to a Relay or a RelayPage. See contract.call.Reply."""

    call: int
    body: tuple[bytes | Block, ...]
    status: int
    headers: dict[str, str]
    grpc_code: int
    text: str
    streamed: bool
    metadata: tuple[dict[str, str], dict[str, str]] | None = None


class RelayAccepted(Message, tag=38):
    """The request in a Relay has been submitted; `decoupled` is its model's."""

    call: int
    decoupled: bool


class RelayEnd(Message, tag=35):
    """The last word on a Relay or a RelayPage: how it ended, the error's kind, reason and text, and the version that it
    was about, None where that is unknown: by its public name, and its model's own. `counted` is the name, "" for none,
    and the rows, by which a dialect's own metrics count the call.
    """

    call: int
    code: int
    reply_code: int
    kind: str
    reason: str
    text: str
    model: str
    own_name: str
    version: int | None
    model_seconds: float
    counted: tuple[str, int] | None = None
    """None: it was no inference."""
    ran: tuple[tuple[float, ...], ...] = ()
    asked: tuple[Asked, ...] = ()


class Settle(Message, tag=36):
    """Say what was observed, now."""

    number: int


class State(Message, tag=37):
    """What the engine serves; it replaces all that was said before."""

    number: int
    models: tuple[View, ...]
    labels: dict[str, dict[str, int]]
    unloaded: tuple[str, ...]
    ready: bool
    """Whether traffic should come, but for the operator's online switch."""
    online: bool
    draining: bool
    unready: tuple[int, ...]
    """Serial numbers of versions that take nothing now."""
    serving: tuple[str, ...]
    """Public names, those of routes among them, to which traffic should come."""
    log_settings: dict[str, bool | int | str]
    reloads: int
    """How often a configuration was taken over: the files that it names may be others, though its text is not."""
    configuration: str
    """The YAML in force, "" as long as it is the one that everybody has started with."""
    replicated: tuple[int, ...] = ()
    """Serial numbers of versions that doors may answer for by copies of their own."""


class Spec(Message):
    """See tensor.TensorSpec."""

    name: str
    datatype: str
    shape: tuple[int, ...] | None
    optional: bool
    labels: tuple[str, ...]


class SignatureSpec(Message):
    """See tensor.Signature: the caller's names and the model's own tensors."""

    name: str
    inputs: tuple[tuple[str, Spec], ...]
    outputs: tuple[tuple[str, Spec], ...]
    method: str
    features: tuple[tuple[str, Spec], ...] | None
    defaults: Tensors
    definition: bytes


class ModelProgram(Message):
    """How a process loads one instance of a version by itself."""

    name: str
    version: int
    path: str
    """The version's folder or file."""
    device: str
    """auto, cpu, cuda or cuda:N."""
    threads: int
    configuration: str
    """The model's entry of the YAML as JSON, with absolute paths."""
    ops: tuple[tuple[str, str, str], ...] = ()
    """Operators of the user's own: name, file, class."""


class ReplicaOffer(Message):
    """A version of which a door may run a copy, while its number is among State.replicated."""

    program: ModelProgram
    files: str
    """The digest of the files that the engine has loaded: of others there is no copy."""
    seconds: float
    """How long a small request keeps the engine busy."""


class View(Message):
    """See canonical.ModelView."""

    serial: int
    name: str
    version: int
    versions: tuple[int, ...]
    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]
    signatures: tuple[SignatureSpec, ...]
    max_batch_size: int
    platform: str
    decoupled: bool
    merges: bool
    sees_requests: bool
    forwards: tuple[tuple[str, str], ...]
    mappings: dict[str, str]
    """Dialect -> its options for the model, as JSON."""
    devices: tuple[str, ...]
    instances: int
    replica: ReplicaOffer | None = None


FromDoor: TypeAlias = Release | Submit | Cancel | Credit | Relay | RelayPage | Observed | Seen
FromEngine: TypeAlias = (
    Release | Answer | End | Failure | Stale | RelayReply | RelayAccepted | RelayEnd | Settle | State
)
