"""JSON documents -> values: control values as Python has them, number arrays straight into NumPy. Contract: RapidJSON,
which both TensorFlow Serving and Triton parse with.

A tensor in JSON is a megabyte of digits around a few bytes of structure, and building a Python object per number
costs more than the model does. So bodies are parsed by simdjson, whose arrays stay where they are until a caller
names the dtype it wants (`numbers`, `rectangle`): the digits then become one float64, int64 or uint64 buffer without
a Python object in between.

`read` returns a *value*: None, bool, int, float, str, an object or an array. Objects are `dict` or `simdjson.Object`,
arrays `list` or `simdjson.Array`: test with `isinstance(value, OBJECT)` and `isinstance(value, ARRAY)`; both kinds
offer `value[key]`, `.get`, `in`, `len`, `.keys()`, and `value[i]`, `len`, iteration. Of repeated keys the first wins.
Values of simdjson are only good until the next `read` on the same thread: take what you need, keep nothing.

A request that is one large array between a few known bytes need not be a document at all: `scan` reads an array where
it stands, by the compiled helper `_numbers` where that is installed.

What simdjson refuses is read once more with RapidJSON, the parser of both TensorFlow Serving and Triton: that accepts
the tokens NaN, Inf and Infinity and integers of any size, and words every syntax error with its offset as those
servers do.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import IO, Any, Final, Literal, cast

import numpy as np
import rapidjson
import simdjson

from tensorgate.adapters._native import helper
from tensorgate.adapters.json.texts import array_of, read_json
from tensorgate.gateway.contract.call import Buffer
from tensorgate.gateway.contract.errors import ErrorReason, GatewayError, MalformedJson
from tensorgate.gateway.contract.tensor import BYTES, DTYPES

_native_scan = helper("native_numbers", "_numbers", "scan")
_native_text = helper("native_numbers", "_numbers", "format_floats")
_native_depth = helper("native_numbers", "_numbers", "depth")

OBJECT: Final = (dict, simdjson.Object)
ARRAY: Final = (list, simdjson.Array)

_SIMDJSON_MAX_DEPTH: Final = 1024
_SIMDJSON_MAX_LENGTH: Final = 0xFFFFFF
_KEPT_BYTES: Final = 1 << 20
"""A parser has up to 13 times as much memory as its largest document has bytes: one that has read a larger document is
not kept."""
_FEW_KEYS: Final = 16
"""As many keys may each be looked up from the front of their object."""
STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
"""One of JSON's, or what looks like it up to the end of the text."""
_NOT_BRACKETS: Final = bytes(c for c in range(256) if c not in b"[]{}")
_NUMBER_TEXT: Final = b"0123456789.eE+- \n\r\t"
_WALK_LIMIT: Final = 512
_COUNT_LIMIT: Final = 4096
_SEARCHED_BYTES: Final = 4 << 20
MAX_DIMENSIONS: Final = 64  # NumPy's
_BEGINNING: Final = 64 << 10
_WHOLE_BYTES: Final = 256 << 10
_STEP_BYTES: Final = 64 << 10
_LONGEST_TOKEN: Final = 16
"""Of those that a parser takes for something else when they are cut short: the end of a text is not looked at."""
_MORE_FOLLOWS: Final = "The document root must not be followed"
_AT_ONCE: Final = 1 << 16
_local: Final = threading.local()
_SCANNED: Final[Mapping[np.dtype[Any], tuple[Literal["f", "d", "i", "u"], np.dtype[Any]]]] = {
    DTYPES["FP32"]: ("f", DTYPES["FP32"]),
    DTYPES["FP64"]: ("d", DTYPES["FP64"]),
    **{DTYPES[name]: ("i", DTYPES["INT64"]) for name in ("INT8", "INT16", "INT32", "INT64")},
    **{DTYPES[name]: ("u", DTYPES["UINT64"]) for name in ("UINT8", "UINT16", "UINT32", "UINT64")},
}
"""Dtype -> the kind that the compiled helper reads for it, and that kind's own dtype."""


class WrongLeaf(GatewayError):
    """An array holds something that its dtype does not take.

    `leaf` is the value as Python has it; the dialect words the error.
    """

    error_reason = ErrorReason.DTYPE

    def __init__(self, leaf: Any) -> None:
        super().__init__(repr(leaf))
        self.leaf = leaf


class OutOfRange(WrongLeaf):
    """An integer does not fit its dtype."""


class Ragged(GatewayError):
    """A nested array is not rectangular; the dialect walks it to word the error."""

    error_reason = ErrorReason.SHAPE


class TooManyDimensions(Ragged):
    """An array is nested deeper than NumPy's arrays can be."""


def read(body: bytes, max_depth: int, *, ignore_trailing: bool = False) -> Any:
    """Bytes of a JSON document -> value (see above). Raises MalformedJson with RapidJSON's reason and the offset in
    bytes.

    `ignore_trailing` accepts text after the document, as TensorFlow Serving does.
    """
    limit = min(max_depth, _SIMDJSON_MAX_DEPTH)
    if is_deeper(body, limit):  # found sooner than a parser notices
        end = _end_before_nesting(body, limit, ignore_trailing)
        if end is None:
            raise MalformedJson(f"nesting deeper than {max_depth} levels", max_depth=max_depth)
        body = body[:end]
    try:
        parser = _local.parser if len(body) <= _KEPT_BYTES else simdjson.Parser()
    except AttributeError:
        parser = _local.parser = simdjson.Parser()
    try:
        try:
            value = parser.parse(body)
        except RuntimeError:  # a value of an earlier document is still alive somewhere (in a traceback, say)
            parser = _local.parser = simdjson.Parser()
            value = parser.parse(body)
    except (RuntimeError, ValueError, KeyError, IndexError):
        del parser
        return _read_slowly(body, max_depth, ignore_trailing)
    longest = _SIMDJSON_MAX_LENGTH - 1
    _local.uncounted = len(body) > 2 * longest and body.count(b",") >= longest
    return value


def _end_before_nesting(text: bytes, limit: int, ignore_trailing: bool) -> int | None:
    """Where a document ends whose text, as a whole, nests deeper than `limit`, if it ends near the beginning and what
    follows is ignored. Raises MalformedJson where the text goes wrong before it is deep: what is no JSON, such as an
    image, has many brackets, too.
    """
    begun = text[:_BEGINNING]
    try:
        _read_slowly(begun, limit, False)
    except MalformedJson as error:
        place = error.offset
        is_cut_short = len(begun) < len(text) and place is not None and place + _LONGEST_TOKEN > len(begun)
        if place is None or is_cut_short or is_deeper(text[:place], limit):
            return None
        if ignore_trailing and error.reason.startswith(_MORE_FOLLOWS):
            return place
        raise
    return None


def _read_slowly(text: bytes, max_depth: int, ignore_trailing: bool) -> Any:
    """What simdjson refused, read by RapidJSON: a value, or the reason in RapidJSON's words."""
    skipped = 3 if text.startswith(b"\xef\xbb\xbf") else 0
    try:
        return _rapidjson(text[skipped:])
    except rapidjson.JSONDecodeError as error:
        reason, offset = _reason(error)
        if ignore_trailing and reason.startswith(_MORE_FOLLOWS):
            return _read_slowly(text[: skipped + offset], max_depth, False)
        raise MalformedJson(reason, skipped + offset) from None
    except (
        UnicodeDecodeError
    ) as error:  # somewhere in the text, which may be wrong before, or not be in a string at all
        end = skipped + error.start
        try:
            return _read_slowly(text[:end] + b"?", max_depth, ignore_trailing)
        except MalformedJson as sooner:
            if sooner.offset is None or sooner.offset <= end:
                raise
        raise MalformedJson("Invalid encoding in string.", end) from None
    except RecursionError:
        raise MalformedJson(f"nesting deeper than {max_depth} levels", max_depth=max_depth) from None
    except ValueError:  # an integer with more digits than Python makes one of
        raise MalformedJson("Number too big to be stored in double.") from None


class _Repeating(dict[str, Any]):
    """An object with repeated keys: the first of each, and all `members` as they came, which its length counts."""

    members: list[tuple[str, Any]]

    def __len__(self) -> int:
        return len(self.members)


def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """RapidJSON's own look-up finds the first of repeated keys; so do we. Members keep their order."""
    members = dict(pairs)
    if len(members) == len(pairs):
        return members
    repeating = _Repeating(members)
    repeating.update(reversed(pairs))
    repeating.members = pairs
    return repeating


class _FirstWins(rapidjson.Decoder):
    def start_object(self) -> list[tuple[str, Any]]:
        return []

    def end_object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return object_of(pairs)


def members(value: Any) -> list[tuple[str, Any]]:
    """The members of an object as they came: repeated keys are all there. Raises MalformedJson.

    simdjson makes Python values of what repeats or is many, and writes beyond its list where an array is longer than
    it counts: such a document is refused.
    """
    if isinstance(value, dict):
        return value.members if isinstance(value, _Repeating) else list(value.items())
    keys = list(value)
    if len(keys) <= _FEW_KEYS and len(set(keys)) == len(keys):
        return [(key, value[key]) for key in keys]
    _check_counted()
    return list(value.items())


def as_list(value: Any) -> list[Any]:
    """An array of any content as Python values. Raises MalformedJson, as `members` does."""
    if isinstance(value, list):
        return value
    _check_counted()
    listed: list[Any] = value.as_list()
    return listed


def _check_counted() -> None:
    if _local.uncounted:
        raise MalformedJson(f"an array of {_SIMDJSON_MAX_LENGTH} elements and more, beside what must be listed")


_decoder: Final = _FirstWins(number_mode=rapidjson.NM_NAN)


class _Steps:
    """A text to be read in pieces. To give one takes a step of Python's, at which others may have the interpreter."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._at = 0

    def read(self, size: int) -> bytes:
        piece = self._text[self._at : self._at + size]
        self._at += size
        return piece


def _rapidjson(text: bytes) -> Any:
    """RapidJSON keeps the interpreter as long as it reads, tens of milliseconds for a megabyte. So a large text is read
    in steps, which takes up to twice as long. Raises JSONDecodeError, UnicodeDecodeError, RecursionError, ValueError.
    """
    if len(text) <= _WHOLE_BYTES:
        return _decoder(text)
    if not text.isascii():
        text.decode()  # the offset in the whole text, not in one of its strings
    return _decoder(cast("IO[bytes]", _Steps(text)), chunk_size=_STEP_BYTES)


def _reason(error: rapidjson.JSONDecodeError) -> tuple[str, int]:
    """'Parse error at offset 3: Invalid value.' -> ('Invalid value.', 3)"""
    head, _, reason = str(error).partition(": ")
    return reason, int(head.rsplit(" ", 1)[1])


def is_deeper(text: bytes, limit: int) -> bool:
    """Whether brackets nest deeper than `limit`.

    Cheap where there are no more than `limit` of them: then they cannot.
    """
    return _opens_more_than(text, limit, b"[{") and _depth(text) > limit


def _opens_more_than(text: bytes, limit: int, brackets: bytes) -> bool:
    """Whether there are more than `limit` of these bytes: found by memchr, which stops early; bytes.count looks at
    every byte, ten times as slowly, and wins where they are few. Long texts are searched in parts, between which others
    have the interpreter.
    """
    if len(text) < _COUNT_LIMIT:
        return sum(map(text.count, brackets)) > limit
    found = 0
    for bracket in brackets:
        for begin in range(0, len(text), _SEARCHED_BYTES):
            end = begin + _SEARCHED_BYTES
            at = text.find(bracket, begin, end)
            while at >= 0:
                found += 1
                if found > limit:
                    return True
                at = text.find(bracket, at + 1, end)
    return False


def _depth(text: bytes) -> int:
    """The greatest nesting of brackets outside strings. The compiled helper leaves the interpreter to others."""
    if _native_depth is not None:
        deepest: int = _native_depth(text)
        return deepest
    marks = np.frombuffer(STRING.sub(b"", text).translate(None, _NOT_BRACKETS), np.uint8)
    opens = (marks == ord("[")) | (marks == ord("{"))
    return int(np.cumsum(np.where(opens, 1, -1), dtype=np.int32).max(initial=0))


# -------------------------------------------------------------------------------------------------------------- arrays


def numbers(array: Any, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """The leaves of an array, however nested, in row-major order -> flat array of `dtype`, on the host.

    Numbers become numbers of any width that holds them: an integer is fine for a floating dtype (which may round, or
    overflow to infinity), a number with fraction or exponent is not for an integer. BOOL takes true and false alone,
    BYTES strings alone (their UTF-8). Raises WrongLeaf, or OutOfRange for an integer beyond its dtype.
    """
    if isinstance(array, simdjson.Array) and dtype.kind in "fiuV":
        try:
            return _from_buffer(array, dtype)
        except (TypeError, ValueError):
            pass
    return _from_leaves(_leaves(array), dtype)


def _from_buffer(array: Any, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """simdjson's flat buffer -> dtype.

    TypeError or ValueError where a leaf does not fit; `_from_leaves` then finds which.
    """
    if dtype.kind == "f" or dtype.kind == "V":
        wide = np.frombuffer(array.as_buffer(of_type="d"), np.float64)
        return wide if dtype.itemsize == 8 else _rounded(wide, dtype)
    if dtype.kind == "u":
        return _narrow(np.frombuffer(array.as_buffer(of_type="u"), np.uint64), dtype)
    return _narrow(np.frombuffer(array.as_buffer(of_type="i"), np.int64), dtype)


@np.errstate(over="ignore")
def _rounded(wide: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    return wide.astype(dtype)


def _narrow(wide: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    if wide.dtype == dtype or not wide.size:
        return wide.astype(dtype, copy=False)
    limits = np.iinfo(dtype)
    for extreme in (wide.min(), wide.max()):
        if not limits.min <= int(extreme) <= limits.max:
            raise OutOfRange(int(extreme))
    return wide.astype(dtype)


def scan(text: Buffer, start: int, dtype: np.dtype[Any]) -> tuple[np.ndarray[Any, Any], int] | None:
    """The array whose '[' is text[start] -> array of `dtype` in the shape of its nesting, on the host, and the offset
    behind it; the same values that `read` and `rectangle` give.

    None for everything but a rectangular array of JSON numbers that fit, or a flat one of strings, and always None
    without the compiled helpers: the caller then goes the way that words errors. The interpreter lock is free
    meanwhile, if the text is long.
    """
    if dtype == BYTES:
        return read_json(text, start)
    if _native_scan is None or dtype not in _SCANNED:
        return None
    kind, wide = _SCANNED[dtype]
    found = _native_scan(text, start, kind)
    if found is None:
        return None
    flat, shape, end = found
    array = np.frombuffer(flat, wide)
    if wide is not dtype:
        try:
            array = _narrow(array, dtype)
        except OutOfRange:
            return None
    return array if len(shape) == 1 else array.reshape(shape), end


def float32_text(flat: np.ndarray[Any, Any]) -> bytes | None:
    """A flat, contiguous float32 array -> JSON array of numbers that read back equal, with the tokens NaN, Infinity and
    -Infinity; three times as fast as orjson, without the interpreter lock. None without the compiled helper.
    """
    return None if _native_text is None else _native_text(flat)


def _leaves(value: Any) -> Iterator[Any]:
    """The values that are not arrays, in row-major order; an explicit stack, since depth is the sender's choice."""
    stack = [iter((value,))]
    while stack:
        for item in stack[-1]:
            if isinstance(item, ARRAY):
                stack.append(iter(item))
                break
            yield item
        else:
            stack.pop()


def _from_leaves(leaves: Iterator[Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Python values -> flat array, each type checked: the way for what is no plain number, and for naming the leaf
    that does not fit. Some at a time: an object takes five times the memory of the number that it is.
    """
    parts = [_from_some(list(islice(leaves, _AT_ONCE)), dtype)]
    while some := list(islice(leaves, _AT_ONCE)):
        parts.append(_from_some(some, dtype))
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _from_some(leaves: list[Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    if dtype == BYTES:
        return array_of([leaf.encode() if isinstance(leaf, str) else _refuse(leaf) for leaf in leaves])
    if dtype.kind == "b":
        return np.array([leaf if isinstance(leaf, bool) else _refuse(leaf) for leaf in leaves], np.bool_)
    if dtype.kind in "iu":
        return np.array(_integers(leaves, dtype), dtype)
    if not {*map(type, leaves)} <= {float, int}:
        _refuse(next(leaf for leaf in leaves if type(leaf) is not float and type(leaf) is not int))
    try:
        wide = np.array(leaves, np.float64)
    except OverflowError:
        wide = np.array([as_double(leaf) for leaf in leaves], np.float64)
    return _rounded(wide, dtype)


def _integers(leaves: list[Any], dtype: np.dtype[Any]) -> list[int]:
    limits = np.iinfo(dtype)
    for leaf in leaves:
        if type(leaf) is not int:
            _refuse(leaf)
        if not limits.min <= leaf <= limits.max:
            raise OutOfRange(leaf)
    return leaves


def as_double(number: int | float) -> float:
    """What is beyond every double is infinite."""
    try:
        return float(number)
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")


def _refuse(leaf: Any) -> Any:
    raise WrongLeaf(leaf)


# ---------------------------------------------------------------------------------------------------------- rectangles


def length(array: Any) -> int:
    """The number of elements; simdjson's own count ends at 2^24-1."""
    counted = len(array)
    return counted if counted != _SIMDJSON_MAX_LENGTH else sum(1 for _ in array)


def first_branch(array: Any) -> tuple[int, ...]:
    """Lengths along the first elements: the shape, if the array is rectangular.

    [[1,2],[3,4],[5,6]] -> (3, 2); [] -> (0,).
    """
    shape = []
    while isinstance(array, ARRAY):
        shape.append(length(array))
        if not shape[-1]:
            break
        array = array[0]
    return tuple(shape)


def rectangle(array: Any, dtype: np.dtype[Any], body: bytes = b"") -> np.ndarray[Any, Any]:
    """A nested array -> array of `dtype` whose shape is the nesting. Raises Ragged (also for more dimensions than NumPy
    has), WrongLeaf or OutOfRange.

    simdjson's flat buffer shows no brackets, so they are checked apart: by walking the arrays, or, where they or
    their elements are very many and the `body` is at hand, on its text.
    """
    shape = first_branch(array)
    if len(shape) > MAX_DIMENSIONS:
        raise TooManyDimensions()
    flat = numbers(array, dtype)
    digits_only = isinstance(array, simdjson.Array) and dtype.kind in "fiuV"  # no NaN, no true, no strings
    if flat.size != math.prod(shape) or not _is_regular(array, shape, body if digits_only else b""):
        raise Ragged()
    return flat.reshape(shape)


def _is_regular(array: Any, shape: tuple[int, ...], text: bytes) -> bool:
    """Whether every array at every level has the length that the first branch has there, and leaves stand only at the
    bottom.

    Walking costs a Python object per array, and one per leaf where leaves may be arrays. Where they are many, the
    brackets of the `text` (in which the array has no leaves but digits) are looked at first.
    """
    arrays = sum(math.prod(shape[:level]) for level in range(len(shape)))
    if text and 2 * arrays > len(text):  # a claim of the first branch, and too long to compare
        return False
    plain = bool(text) and arrays <= _WALK_LIMIT and not _opens_more_than(text, arrays, b"[")
    if text and not plain and max(arrays, shape[-1]) > _WALK_LIMIT:
        regular = _is_regular_by_brackets(text, shape, arrays)
        if regular is not None:
            return regular
    level: list[Any] = [array]
    for depth, size in enumerate(shape):
        if not all(isinstance(item, ARRAY) and length(item) == size for item in level):
            return False
        if depth == len(shape) - 1:
            return plain or not any(isinstance(leaf, ARRAY) for item in level for leaf in item)
        level = [item for parent in level for item in parent]
    return True


def _is_regular_by_brackets(text: bytes, shape: tuple[int, ...], arrays: int) -> bool | None:
    """Whether an array of this first branch and number of leaves is regular, as far as all brackets of the document
    tell: None if they do not.

    If it is regular, its skeleton is found. If it is not, what is found belongs to others, and its own brackets are
    left over: as many as it has levels at least, and never fewer than two ([[1], 2] and [1, [2]] are the smallest).
    """
    brackets = text.translate(None, _NUMBER_TEXT)
    found = brackets.count(_skeleton(shape))
    if not found:
        return False
    left_over = brackets.count(b"[") - found * arrays
    return True if left_over < max(len(shape), 2) else None


def _skeleton(shape: tuple[int, ...]) -> bytes:
    """The brackets and commas of a rectangular array of numbers. (2, 3) -> b'[[,,],[,,]]'"""
    text = b""
    for dimension in reversed(shape):
        text = b"[" + b",".join([text] * dimension) + b"]"
    return text
