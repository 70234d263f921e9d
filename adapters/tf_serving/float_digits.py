"""Many float32 numbers to text at once, by NumPy: the digits of all of them are columns of one matrix.

The text is that of `number_text`. For a number of decimal exponent X, its first nine digits are the integer nearest to
a * 10^(8-X), and its first six the integer nearest to a thousandth of that. Multiplying in float64 is off by less than
3e-7 there, so the nine digits are certain unless the product lies next to a half; six digits matter only if they read
back as the same float32, and then it does not lie near a half. Whether they read back is certain unless they lie next
to the middle between two float32. What is not certain, and what is not a normal number, is left to the caller: a few
in a million of random numbers.

Digits, sign, point and exponent of a number stand in a row of source bytes. A template per class of numbers (fixed or
scientific notation, exponent, count of digits) says which of them to put where; unused places are 0, to be dropped.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]

WIDTH: Final = 16  # the longest text, -0.000123456789 or -1.23456789e-10, and what separates it from the next
_LEAST_NORMAL: Final = np.finfo(np.float32).tiny
_MOST_NORMAL: Final = np.finfo(np.float32).max
_CHUNK: Final = 2048  # rows whose matrices stay in the processor's cache
_MAX_EXPONENT: Final = 46  # of the tables, in both directions; float32 has 38

# Columns of the source: digits 1-4 and 5-8 come from a table, four at a time; so do the four bytes of an exponent.
_FIRST_DIGIT, _SIGN, _POINT, _ZERO, _EXPONENT, _SEPARATOR, _NOTHING, _SOURCE_WIDTH = 8, 9, 10, 11, 12, 16, 17, 20
_DIGITS: Final = (_FIRST_DIGIT, *range(8))
_CONSTANTS: Final = np.frombuffer(b"\0" * 10 + b".0" + b"\0" * 8, np.uint32)

_EXPONENTS: Final = range(-_MAX_EXPONENT, _MAX_EXPONENT + 1)
_TO_NINE_DIGITS: Final = np.array([float(f"1e{8 - x}") for x in _EXPONENTS])
_FROM_SIX_DIGITS: Final = np.array([float(f"1e{x - 5}") for x in _EXPONENTS])
_EXPONENT_TEXTS: Final = np.frombuffer("".join(f"e{x:+03d}" for x in _EXPONENTS).encode(), np.uint32)
_FOUR_DIGITS: Final = np.frombuffer("".join(f"{i:04d}" for i in range(10_000)).encode(), np.uint32)
_TRAILING_ZEROS: Final = np.array([4 - len(f"{i:04d}".rstrip("0")) for i in range(10_000)], np.intp)

_LEAST_FIXED, _MOST_FIXED = -4, 8
_SCIENTIFIC_CLASS: Final = (_MOST_FIXED - _LEAST_FIXED + 1) * 9
_ZERO_CLASS: Final = _SCIENTIFIC_CLASS + 9


def _fixed(exponent: int, count: int) -> list[int]:
    if exponent < 0:
        return [_ZERO, _POINT, *[_ZERO] * (-exponent - 1), *_DIGITS[:count]]
    whole = [*_DIGITS[: exponent + 1]]
    return [*whole, _POINT, *(_DIGITS[exponent + 1 : count] or [_ZERO])]


def _scientific(count: int) -> list[int]:
    point = [_POINT] if count > 1 else []
    return [_DIGITS[0], *point, *_DIGITS[1:count], *range(_EXPONENT, _EXPONENT + 4)]


def _make_templates() -> Array:
    rows = [_fixed(x, count) for x in range(_LEAST_FIXED, _MOST_FIXED + 1) for count in range(1, 10)]
    rows += [_scientific(count) for count in range(1, 10)]
    rows += [[_ZERO, _POINT, _ZERO]]
    return np.array([[_SIGN, *row, _SEPARATOR, *[_NOTHING] * (WIDTH - 2 - len(row))] for row in rows], np.intp)


_TEMPLATES: Final = _make_templates()


def text_matrix(flat: Array, separators: Array) -> tuple[Array, Array]:
    """float32 [n] and uint8 [n] -> uint8 [n, WIDTH], each row a text, its separator, and zeros in between; and
    bool [n], which rows the caller has to write itself.
    """
    matrix = np.empty((flat.size, WIDTH), np.uint8)
    left = np.empty(flat.size, np.bool_)
    with np.errstate(invalid="ignore"):  # next to infinity, six digits may be more than float32 holds
        for at in range(0, flat.size, _CHUNK):
            part = slice(at, at + _CHUNK)
            left[part] = _write(flat[part], separators[part], matrix[part])
    return matrix, left


def _write(numbers: Array, separators: Array, matrix: Array) -> Array:
    """Texts of one chunk into its rows of the matrix -> which of them are left to the caller."""
    sizes = np.abs(numbers)
    zero = sizes == 0
    normal = (sizes >= _LEAST_NORMAL) & (sizes <= _MOST_NORMAL)
    sizes[~normal] = 1
    digits, exponent, limit, doubtful = _nine_digits(sizes)
    first, rest = np.divmod(digits, 100_000_000)
    middle, last = np.divmod(rest, 10_000)
    words = np.empty((numbers.size, _SOURCE_WIDTH // 4), np.uint32)
    words[:, 0] = np.take(_FOUR_DIGITS, middle)
    words[:, 1] = np.take(_FOUR_DIGITS, last)
    words[:, 2] = _CONSTANTS[2]
    words[:, 3] = np.take(_EXPONENT_TEXTS, exponent + _MAX_EXPONENT)
    words[:, 4] = _CONSTANTS[4]
    source = words.view(np.uint8)
    source[:, _FIRST_DIGIT] = first + ord("0")
    source[:, _SIGN] = np.signbit(numbers) * ord("-")
    source[:, _SEPARATOR] = separators
    classes = _classes(middle, last, exponent, limit)
    classes[zero] = _ZERO_CLASS
    places = np.take(_TEMPLATES, classes, axis=0)
    places += np.arange(0, source.size, _SOURCE_WIDTH)[:, None]
    np.take(source.reshape(-1), places, out=matrix, mode="clip")
    return np.asarray(doubtful | ~(normal | zero))


def _classes(middle: Array, last: Array, exponent: Array, limit: Array) -> Array:
    """The template of each number, by notation, exponent and count of digits up to the last that is not 0."""
    zeros = np.take(_TRAILING_ZEROS, last)
    if (zeros == 4).any():
        zeros += (last == 0) * np.take(_TRAILING_ZEROS, middle)
    fixed = (exponent >= _LEAST_FIXED) & (exponent < limit)
    return np.where(fixed, (exponent - _LEAST_FIXED) * 9, _SCIENTIFIC_CLASS) + (8 - zeros)


def _nine_digits(sizes: Array) -> tuple[Array, Array, Array, Array]:
    """Positive normal float32 -> their nine digits as an integer (six and three zeros where six do), the decimal
    exponent of the first, the exponent from which on notation is scientific, and which of this is doubtful.
    """
    wide = sizes.astype(np.float64)
    exponent = np.floor(np.log10(wide)).astype(np.intp)
    scaled = wide * np.take(_TO_NINE_DIGITS, exponent + _MAX_EXPONENT)
    off = (scaled >= 1e9) | (scaled < 1e8)  # the logarithm may be, next to a power of ten
    if off.any():
        exponent[off] += np.where(scaled[off] < 1e8, -1, 1)
        scaled = wide * np.take(_TO_NINE_DIGITS, exponent + _MAX_EXPONENT)
    nine = np.rint(scaled)
    six = np.rint(scaled * 1e-3)
    back = six * np.take(_FROM_SIX_DIGITS, exponent + _MAX_EXPONENT)
    enough = back.astype(np.float32) == sizes
    from_middle = (back.view(np.int64) & 0x1FFF_FFFF) - 0x1000_0000  # of two float32, in units of the last float64 bit
    doubtful = (np.abs(np.abs(scaled - nine) - 0.5) < 1e-5) | (np.abs(from_middle) < 16)
    digits = np.where(enough, six * 1000, nine).astype(np.uint32)
    rounded_up = digits == 1_000_000_000
    digits[rounded_up] = 100_000_000
    exponent += rounded_up
    return digits, exponent, np.where(enough, 6, 9), doubtful
