"""Everything that can go wrong with a request, one class per kind, carrying facts and not sentences.

Each dialect states once, in a table, what every kind is in its own words: HTTP status, gRPC code, text. A dialect's
own objections to its own wire format are `InvalidArgument` (or `Unsupported`, `NotFound`) with the finished text,
since nobody else could word them.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping
from enum import IntEnum
from math import ceil
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

_MOST_CAUSES: Final = 8


class Code(IntEnum):
    """gRPC's status codes, the vocabulary that the dialects share. Source: gRPC, statuscodes."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class GatewayError(Exception):
    """Base of all kinds.

    `code` is what the kind is called where a dialect has no better word for it; str() serves logs. `http_headers` go
    with the error in every dialect.
    """

    code = Code.UNKNOWN
    http_headers: Mapping[str, str] = MappingProxyType({})


class _Told(Exception):
    """What comes with a finished text, which reaches the caller as it is."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


# ------------------------------------------------------------------------------------------------ the caller's message


class InvalidArgument(_Told, GatewayError):
    """Something in the request is wrong.

    Raised by a dialect, or by a user's model, `text` reaches the caller as it is.
    """

    code = Code.INVALID_ARGUMENT


class Unsupported(_Told, GatewayError):
    """The request asks for something that this server does not do; `text` reaches the caller as it is."""

    code = Code.UNIMPLEMENTED


class NotFound(_Told, GatewayError):
    """A named thing other than a model is not there; `text` reaches the caller as it is."""

    code = Code.NOT_FOUND


class MalformedJson(GatewayError):
    """The body is not JSON.

    `reason` is RapidJSON's wording, which two of the three contracts use; `offset` counts bytes, None if unknown.
    """

    code = Code.INVALID_ARGUMENT

    def __init__(self, reason: str, offset: int | None = None) -> None:
        super().__init__(f"{reason} at {offset}")
        self.reason = reason
        self.offset = offset


class BodyTooLarge(GatewayError):
    """The body is (or inflates to) more than `limit` bytes."""

    code = Code.RESOURCE_EXHAUSTED

    def __init__(self, limit: int) -> None:
        super().__init__(f"body larger than {limit} bytes")
        self.limit = limit


class RouteNotFound(GatewayError):
    """No endpoint has this address."""

    code = Code.UNIMPLEMENTED

    def __init__(self, method: str, path: str) -> None:
        super().__init__(f"{method} {path}")
        self.method = method
        self.path = path


class MethodNotAllowed(RouteNotFound):
    """The address exists, for other methods."""


# --------------------------------------------------------------------------------------------------------- which model


class ModelNotFound(GatewayError):
    """No such model, or not in this version.

    `known` tells that the model has a name here but no version that answers.
    """

    code = Code.NOT_FOUND

    def __init__(self, name: str, version: int | None = None, *, known: bool = False) -> None:
        super().__init__(name if version is None else f"{name} version {version}")
        self.name = name
        self.version = version
        self.known = known


class LabelNotFound(GatewayError):
    """The version label names nothing."""

    code = Code.INVALID_ARGUMENT

    def __init__(self, name: str, label: str) -> None:
        super().__init__(f"{name} label {label}")
        self.name = name
        self.label = label


class SignatureNotFound(GatewayError):
    """The model has no such signature."""

    code = Code.FAILED_PRECONDITION

    def __init__(self, model: str, signature: str) -> None:
        super().__init__(f"{model} signature {signature}")
        self.model = model
        self.signature = signature


class ModelDecoupled(GatewayError):
    """The model answers zero to many times, and this call can carry exactly one answer."""

    code = Code.UNIMPLEMENTED

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.model = model


class NotOneAnswer(GatewayError):
    """A decoupled model gave no answer, or several, and this call can carry exactly one."""

    code = Code.INVALID_ARGUMENT

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.model = model


# ------------------------------------------------------------------------------------------------ changing the server


class AdminRequired(GatewayError):
    """The call changes the server's state, and does not carry the administrator's key in `header`."""

    code = Code.PERMISSION_DENIED

    def __init__(self, header: str) -> None:
        super().__init__(header)
        self.header = header


class Unauthenticated(GatewayError):
    """Nobody knows who calls: the call has no credentials, or some that count for nothing here.

    `given`: it has some. What exactly is wrong with them is nobody's business.
    """

    code = Code.UNAUTHENTICATED

    def __init__(self, *, given: bool) -> None:
        super().__init__("wrong credentials" if given else "no credentials")
        self.given = given
        challenge = 'Bearer realm="tensorgate"'
        self.http_headers = {"WWW-Authenticate": f'{challenge}, error="invalid_token"' if given else challenge}


class Forbidden(GatewayError):
    """The caller is known, or needs not be, and may not do this: use `model`, or change the server's state."""

    code = Code.PERMISSION_DENIED

    def __init__(self, model: str = "") -> None:
        super().__init__(f"not allowed: {f'model {model}' if model else 'administration'}")
        self.model = model


class CrossOriginRefused(GatewayError):
    """A page of another site has a browser change the server's state; `origin` is that site, as far as the browser
    says it.
    """

    code = Code.PERMISSION_DENIED

    def __init__(self, origin: str) -> None:
        super().__init__(f"for pages of {origin}, this server's state is not to be changed")
        self.origin = origin


class RateLimited(GatewayError):
    """The caller has used up what it may use; after `retry_after` seconds there is more."""

    code = Code.RESOURCE_EXHAUSTED

    def __init__(self, what: str, retry_after: float) -> None:
        super().__init__(f"too many {what}, retry after {retry_after:.3f} s")
        self.what = what
        self.retry_after = max(1, ceil(retry_after))
        self.http_headers = {"Retry-After": str(self.retry_after)}


class ModelControlOff(GatewayError):
    """Models are not loaded and unloaded by callers here: the mode of model control is another, or, for a list of
    models in place of those that are served, no folders are named where they may lie.
    """

    code = Code.UNAVAILABLE


class ModelNotStored(GatewayError):
    """A model was to be loaded that no repository holds."""

    code = Code.INTERNAL

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.model = model


class LoadRefused(GatewayError):
    """What a model was to be loaded with is wrong: its configuration, or the files that came along.

    `reason` is for the caller's eyes.
    """

    code = Code.INVALID_ARGUMENT

    def __init__(self, model: str, reason: str) -> None:
        super().__init__(f"model '{model}': {reason}")
        self.model = model
        self.reason = reason


class LoadFailed(GatewayError):
    """Versions of a model could not be loaded; `reasons` tells why, by version. What served before still does."""

    code = Code.INVALID_ARGUMENT

    def __init__(self, model: str, reasons: Mapping[int, str]) -> None:
        super().__init__(f"model '{model}': {dict(reasons)}")
        self.model = model
        self.reasons = reasons


class PlatformRefused(GatewayError):
    """A model was to be served as one of a platform that is not known here, or that differs from `before`, its own."""

    code = Code.INVALID_ARGUMENT

    def __init__(self, model: str, platform: str, before: str = "") -> None:
        super().__init__(f"model '{model}': platform '{platform}', so far '{before}'")
        self.model = model
        self.platform = platform
        self.before = before


class LabelRefused(GatewayError):
    """A label was to name a version that does not serve."""

    code = Code.FAILED_PRECONDITION

    def __init__(self, model: str, label: str, version: int) -> None:
        super().__init__(f"model '{model}': label '{label}' for version {version}")
        self.model = model
        self.label = label
        self.version = version


class Reason(NamedTuple):
    """Why something failed, for people, and of what kind that was."""

    text: str
    code: Code = Code.UNKNOWN


class ReloadFailed(GatewayError):
    """Models that are new in a list of models could not be loaded; `reasons` tells why, by model and version. The list
    counts all the same.
    """

    code = Code.UNKNOWN

    def __init__(self, reasons: Mapping[tuple[str, int], Reason]) -> None:
        super().__init__(str(dict(reasons)))
        self.reasons = reasons


# ----------------------------------------------------------------------------------------------- tensors against specs


class UnknownOutput(InvalidArgument):
    """An output was asked for that the model does not have."""

    def __init__(self, output: str, model: str) -> None:
        super().__init__(f"model '{model}' has no output '{output}'")
        self.output = output
        self.model = model


class InputCount(InvalidArgument):
    """Too few or too many inputs. The model takes `least` to `most`; `got` and `missing` list names."""

    def __init__(self, model: str, got: tuple[str, ...], missing: tuple[str, ...], least: int, most: int) -> None:
        takes = f"{least} to {most}"
        super().__init__(f"model '{model}' takes {takes} inputs, got {list(got)}, missing {list(missing)}")
        self.model = model
        self.got = got
        self.missing = missing
        self.least = least
        self.most = most


class UnknownInput(InvalidArgument):
    """An input was sent that the model does not have."""

    def __init__(self, input: str, model: str) -> None:
        super().__init__(f"model '{model}' has no input '{input}'")
        self.input = input
        self.model = model


class BatchMissing(InvalidArgument):
    """An input without any dimension was sent to a model that takes batches."""

    def __init__(self, input: str, model: str) -> None:
        super().__init__(f"input '{input}' of model '{model}' has no batch dimension")
        self.input = input
        self.model = model


class BatchMismatch(InvalidArgument):
    """Inputs of one request differ in the batch dimension."""

    def __init__(self, input: str, model: str) -> None:
        super().__init__(f"input '{input}' of model '{model}' has another batch size than its neighbours")
        self.input = input
        self.model = model


class BatchTooLarge(InvalidArgument):
    """The request has more rows than the model takes at once."""

    def __init__(self, rows: int, limit: int, model: str) -> None:
        super().__init__(f"{rows} rows, but model '{model}' takes at most {limit}")
        self.rows = rows
        self.limit = limit
        self.model = model


class DtypeMismatch(InvalidArgument):
    """An input has the wrong datatype; `got` and `want` are datatype names, FP32 for example."""

    def __init__(self, input: str, got: str, want: str, model: str) -> None:
        super().__init__(f"input '{input}' of model '{model}' is {got}, expected {want}")
        self.input = input
        self.got = got
        self.want = want
        self.model = model


class ShapeMismatch(InvalidArgument):
    """An input has the wrong shape.

    `want` has -1 where any size fits; `batched`: its first entry is the batch dimension.
    """

    def __init__(self, input: str, got: tuple[int, ...], want: tuple[int, ...], model: str, *, batched: bool) -> None:
        super().__init__(f"input '{input}' of model '{model}' has shape {list(got)}, expected {list(want)}")
        self.input = input
        self.got = got
        self.want = want
        self.model = model
        self.batched = batched


class ClassesUnsupported(InvalidArgument):
    """The best classes of an output were asked for, but its datatype has none: BOOL, FP16, BF16, BYTES."""

    def __init__(self, output: str, datatype: str) -> None:
        super().__init__(f"output '{output}' is {datatype}, which cannot be classified")
        self.output = output
        self.datatype = datatype


class ClassesTooMany(InvalidArgument):
    """The best classes of an output were asked for that is too large."""

    def __init__(self, output: str) -> None:
        super().__init__(f"output '{output}' is too large to be classified")
        self.output = output


# ----------------------------------------------------------------------------------------------------------- sequences


class SequenceIdMissing(InvalidArgument):
    """The model keeps sequences apart, and the request does not say to which one it belongs."""

    def __init__(self, model: str) -> None:
        super().__init__(f"model '{model}' takes requests of sequences only, and this one has no sequence id")
        self.model = model


class SequenceNotStarted(InvalidArgument):
    """No such sequence is alive: it has not been started, has ended, or was idle for too long."""

    def __init__(self, sequence: int | str, model: str) -> None:
        super().__init__(f"sequence {sequence} of model '{model}' has not been started")
        self.sequence = sequence
        self.model = model


class SequenceBatch(InvalidArgument):
    """A request of a sequence is one step of it, so that it has one row."""

    def __init__(self, model: str) -> None:
        super().__init__(f"a request of a sequence has one row, model '{model}' takes no more at once")
        self.model = model


class SequenceIdMismatch(InvalidArgument):
    """The model is handed the sequence's id as a number of `datatype`, and this one is none."""

    def __init__(self, sequence: int | str, datatype: str, model: str) -> None:
        super().__init__(f"sequence id {sequence} does not fit model '{model}', which takes it as {datatype}")
        self.sequence = sequence
        self.datatype = datatype
        self.model = model


# ------------------------------------------------------------------------------------------------------- shared memory


class SharedMemoryDisabled(Unsupported):
    """This server does not let callers share memory of that kind."""

    def __init__(self) -> None:
        super().__init__("shared memory is disabled")


class RegionNotFound(NotFound):
    """No region has this name; `kind` is system or cuda where the caller said which, else ""."""

    def __init__(self, name: str, kind: str = "") -> None:
        super().__init__(f"no shared memory region '{name}'")
        self.name = name
        self.kind = kind


class RegionExists(InvalidArgument):
    """A region of this name is registered already."""

    code = Code.ALREADY_EXISTS

    def __init__(self, name: str) -> None:
        super().__init__(f"shared memory region '{name}' exists")
        self.name = name


class RegionUnreachable(GatewayError):
    """There is no memory of this key that the gateway may map."""

    code = Code.INTERNAL

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


class RegionInvalid(GatewayError):
    """The memory of this key is smaller than the region that was asked for."""

    code = Code.INTERNAL

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


class RegionKeyReserved(InvalidArgument):
    """Keys that begin like this one are no caller's."""

    def __init__(self, name: str, key: str, prefix: str) -> None:
        super().__init__(f"shared memory region '{name}' has the key '{key}', but '{prefix}' is reserved")
        self.name = name
        self.key = key
        self.prefix = prefix


class RegionLimit(GatewayError):
    """`limit` regions are registered already."""

    code = Code.UNAVAILABLE

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} shared memory regions are registered")
        self.limit = limit


class CudaMemoryUnavailable(InvalidArgument):
    """There is no GPU here whose memory could be shared."""

    def __init__(self, name: str) -> None:
        super().__init__(f"shared memory region '{name}' is of a GPU, and there is none")
        self.name = name


class RegionRange(InvalidArgument):
    """A request names a part of a region that does not lie within it."""

    def __init__(self, name: str) -> None:
        super().__init__(f"outside of shared memory region '{name}'")
        self.name = name


class OutputTooLarge(GatewayError):
    """An output needs `needed` bytes, and the memory that its caller gave for it has `given`."""

    code = Code.INTERNAL

    def __init__(self, output: str, given: int, needed: int) -> None:
        super().__init__(f"output '{output}' needs {needed} bytes, {given} are given")
        self.output = output
        self.given = given
        self.needed = needed


# ------------------------------------------------------------------------------------------------------- time and room


class QueueFull(GatewayError):
    """`limit` requests wait for this model already."""

    code = Code.UNAVAILABLE

    def __init__(self, model: str, limit: int) -> None:
        super().__init__(f"{limit} requests wait for model '{model}'")
        self.model = model
        self.limit = limit


class QueueTimeout(GatewayError):
    """The request waited longer than it was willing to."""

    code = Code.UNAVAILABLE

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.model = model


class DeadlineExceeded(GatewayError):
    """The caller's deadline passed before there was an answer."""

    code = Code.DEADLINE_EXCEEDED

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.model = model


class ModelUnavailable(GatewayError):
    """The model was being unloaded when the request reached it, or the server stops."""

    code = Code.UNAVAILABLE

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.model = model


# ------------------------------------------------------------------------------------------------ what happened inside


class OutOfMemory(GatewayError):
    """There was no memory, on the host or on a device, for what the request needs: a smaller one, or a later one, may
    fare better.
    """

    code = Code.RESOURCE_EXHAUSTED

    def __init__(self, model: str) -> None:
        super().__init__(f"model '{model}' is out of memory")
        self.model = model


class DeviceLost(GatewayError):
    """The device of the model does no more work for this process, which is about to be replaced."""

    code = Code.UNAVAILABLE

    def __init__(self, model: str) -> None:
        super().__init__(f"model '{model}' has lost its device")
        self.model = model


class ModelFailed(_Told, GatewayError):
    """The model itself raised; `text` is the last line it said, never a traceback."""

    code = Code.INTERNAL


class OutputRows(ModelFailed):
    """A batch of `rows` rows gave an output of another number of rows, or without dimensions."""

    def __init__(self, output: str, shape: tuple[int, ...], rows: int) -> None:
        super().__init__(
            f"output '{output}' has shape {list(shape)}, but its first dimension must be the {rows} rows of the batch"
        )
        self.output = output
        self.shape = shape
        self.rows = rows


class Unknown(_Told, GatewayError):
    """A model says that a request failed, and not of what kind the failure is; `text` reaches the caller as it is."""

    code = Code.UNKNOWN


class Unavailable(_Told, GatewayError):
    """A model says that it cannot answer now; `text` reaches the caller as it is."""

    code = Code.UNAVAILABLE


class Exhausted(_Told, GatewayError):
    """A model says that it has no room for a request; `text` reaches the caller as it is."""

    code = Code.RESOURCE_EXHAUSTED


class TimedOut(_Told, GatewayError):
    """A model says that the time for a request was over; `text` reaches the caller as it is."""

    code = Code.DEADLINE_EXCEEDED


class PreconditionFailed(_Told, GatewayError):
    """A model says that it is in no state to answer such a request; `text` reaches the caller as it is."""

    code = Code.FAILED_PRECONDITION


class AlreadyExists(_Told, GatewayError):
    """A model says that what the request would make is there; `text` reaches the caller as it is."""

    code = Code.ALREADY_EXISTS


class Cancelled(_Told, GatewayError):
    """A model says that it has stopped working on a request; `text` reaches the caller as it is."""

    code = Code.CANCELLED


class EncodingFailed(_Told, GatewayError):
    """The answer has a tensor that this encoding cannot carry; `text` reaches the caller as it is."""

    code = Code.INVALID_ARGUMENT


class Internal(GatewayError):
    """A fault of ours. The caller learns no more than that; the log has the whole story."""

    code = Code.INTERNAL


def text_of(error: BaseException) -> str:
    """What an exception says for itself: text that every encoding can carry, and nothing where
    a user's class raises instead.
    """
    try:
        return str(error).encode("utf-8", "replace").decode()
    except BaseException:
        return ""


def place_of(error: BaseException, folder: Path) -> str:
    """The last line below a folder that an exception has come through, or one that it was raised for: "model.py, line
    12" with its whole path; empty if there is none. Packages that are installed below the folder are somebody else's.
    """
    own = f"{folder}{os.sep}"
    each: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        if each is None:
            break
        frames = reversed(traceback.extract_tb(each.__traceback__))
        for frame in frames:
            if frame.filename.startswith(own) and "site-packages" not in frame.filename:
                return f"{frame.filename}, line {frame.lineno}"
        each = each.__cause__ or each.__context__
    return ""


def kinds(base: type[GatewayError] = GatewayError) -> list[type[GatewayError]]:
    """Every kind below `base`, for the test that no dialect's table lacks one."""
    return [kind for child in base.__subclasses__() for kind in (child, *kinds(child))]
