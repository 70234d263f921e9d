"""A JSON array of numbers, parsed on a GPU: its bytes go there as they are, FP32 comes out.

    mark     a thread per 32 bytes: which of them begin a number; then a running sum of how many there are
    locate   a thread per 32 bytes: where each number begins
    convert  a thread per number: its value, and what stands behind it: `]`s, a comma, as many `[`s
    check    a thread per number: are there `]`s behind it just where the first arrays of each level say?

**Values.** What is wanted is the double nearest to the digits, rounded once more to FP32, for that is what json.loads
and NumPy make of them. With up to 53 bits of digits and a power of ten up to 10^22 one operation on doubles gives that
double. Otherwise the product of the first 19 digits and the power is known to 2^-50 of itself. The two ends of that
interval are rounded, and if both become the same FP32, so does everything between them. Else the number is in doubt,
as are powers that FP32 has no use for: the host reads those.

**Shape.** The least count of numbers after which n arrays end at once is how many an array of level n holds. All others
have to end at its multiples. Nothing but a rectangular array passes; all else, empty arrays and words too, is refused
without a reason, as `_numbers.scan` does it.

There are no barriers, no shared memory and no headers in the kernels, so a C++ compiler can run them thread by thread.
Results are handled as bits: CuPy compiles with -ftz=true, for which the smallest FP32 are 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

THREADS: Final = 256
WORD: Final = 32
"""Bytes that a thread of `mark` looks at."""
LEVELS: Final = 32
MAX_BYTES: Final = 1 << 30
_REFUSED, _DOUBTFUL, _FIRST = 0, 1, 2
_MIN_TEN, _MAX_TEN = -65, 38
_HEAD: Final = re.compile(rb"[\[ \t\n\r]*")
_NUMBER: Final = re.compile(rb"[-+.0-9eE]+")

ROUNDED: Final = """
// The bits of the nearest float, the smallest ones too.
__device__ inline unsigned int rounded(double value) {
    unsigned int bits;
    asm("{ .reg .f32 nearest; cvt.rn.f32.f64 nearest, %1; mov.b32 %0, nearest; }" : "=r"(bits) : "d"(value));
    return bits;
}
"""
_TENS: Final = ", ".join(f"1e{power}" for power in range(_MIN_TEN, _MAX_TEN + 1))
_CONSTANTS: Final = f"""
enum {{ WORD = {WORD}, LEVELS = {LEVELS}, REFUSED = {_REFUSED}, DOUBTFUL = {_DOUBTFUL}, FIRST = {_FIRST},
       MIN_TEN = {_MIN_TEN}, MAX_TEN = {_MAX_TEN} }};
__device__ const double TENS[] = {{{_TENS}}};
"""
_KERNELS: Final = """
__device__ inline bool is_digit(unsigned char c) { return (unsigned char)(c - '0') < 10; }

// + - . / 0 to 9, e E. No JSON has a slash outside strings, and no kernel lets it pass.
__device__ inline bool is_numeric(unsigned char c) { return (c >= '+' && c <= '9' && c != ',') || (c | 32) == 'e'; }

__device__ inline const unsigned char* skip_space(const unsigned char* p) {
    while (*p == ' ' || *p == '\\n' || *p == '\\r' || *p == '\\t') ++p;
    return p;
}

// text: `words` times WORD bytes, of which the first `bytes`, fewer, are the body's. A 0 is put behind them.
extern "C" __global__ void digits_mark(unsigned char* text, unsigned int bytes, unsigned int words,
                                       unsigned int* starts, int* counts, unsigned int* state) {
    const unsigned int word = blockIdx.x * blockDim.x + threadIdx.x;
    if (word >= words) return;
    if (word == 0) {
        state[REFUSED] = 0;
        state[DOUBTFUL] = 0;
        for (int level = 0; level <= LEVELS; ++level) state[FIRST + level] = 0xffffffffu;
    }
    const unsigned int begin = word * WORD, length = bytes - begin < WORD ? bytes - begin : WORD;
    const unsigned long long* from = (const unsigned long long*)(text + begin);
    unsigned int numeric = 0;
    for (int part = 0; part < WORD / 8; ++part) {
        const unsigned long long eight = from[part];
        for (int byte = 0; byte < 8; ++byte) {
            numeric |= (unsigned int)is_numeric((unsigned char)(eight >> (8 * byte))) << (8 * part + byte);
        }
    }
    if (length < WORD) {
        numeric &= (1u << length) - 1;
        text[bytes] = 0;
    }
    const unsigned int before = begin > 0 && is_numeric(text[begin - 1]);
    const unsigned int found = numeric & ~(numeric << 1 | before);
    starts[word] = found;
    counts[word] = __popc(found);
}

// sums: how many numbers begin up to the end of each word. -> places[count], offsets in the text
extern "C" __global__ void digits_locate(const unsigned int* starts, const int* sums, unsigned int words,
                                         unsigned int* places) {
    const unsigned int word = blockIdx.x * blockDim.x + threadIdx.x;
    if (word >= words) return;
    unsigned int found = starts[word], at = (unsigned int)sums[word] - __popc(found);
    for (; found; found &= found - 1) places[at++] = word * WORD + __ffs((int)found) - 1;
}

struct Digits {
    unsigned long long whole;  // the first 19 of them: what follows is less than 2^-59 of it
    int ten;                   // times 10 to the power of this
};

__device__ inline const unsigned char* take_digits(const unsigned char* p, Digits& digits, int each) {
    for (; is_digit(*p); ++p) {
        if (digits.whole < 1000000000000000000u) {
            digits.whole = digits.whole * 10 + (unsigned int)(*p - '0');
            digits.ten += each;
        } else {
            digits.ten += each + 1;
        }
    }
    return p;
}

// The number at `p` -> behind it, or null where it is none. `sure` says whether `bits` are its float's. The errors of
// `about`: half a unit each of `whole` as a double, of the power and of the product, and the digits left out.
__device__ inline const unsigned char* read_number(const unsigned char* p, unsigned int& bits, bool& sure) {
    const bool minus = *p == '-';
    p += minus;
    if (!is_digit(*p) || (*p == '0' && is_digit(p[1]))) return nullptr;
    Digits digits = {0, 0};
    p = take_digits(p, digits, 0);
    bool integer = true;
    if (*p == '.') {
        if (!is_digit(*++p)) return nullptr;
        p = take_digits(p, digits, -1);
        integer = false;
    }
    int exponent = 0;
    sure = true;
    if ((*p | 32) == 'e') {
        ++p;
        const bool down = *p == '-';
        p += *p == '-' || *p == '+';
        if (!is_digit(*p)) return nullptr;
        for (; is_digit(*p); ++p) {
            if (exponent < 100000) exponent = exponent * 10 + (*p - '0');
        }
        sure = exponent < 100000;
        exponent = down ? -exponent : exponent;
        integer = false;
    }
    const int ten = digits.ten + exponent;
    bits = 0;
    if (!digits.whole) {
        sure = true;
    } else if (digits.whole <= 1ull << 53 && ten >= -22 && ten <= 22) {
        const double whole = (double)digits.whole;
        bits = rounded(ten < 0 ? whole / TENS[-ten - MIN_TEN] : whole * TENS[ten - MIN_TEN]);
    } else if (sure && ten >= MIN_TEN && ten <= MAX_TEN) {
        const double about = (double)digits.whole * TENS[ten - MIN_TEN];
        bits = rounded(about * (1 - 0x1p-50));
        sure = bits == rounded(about * (1 + 0x1p-50));
    } else {
        sure = false;
    }
    if (minus && !(integer && !digits.whole)) bits |= 0x80000000u;  // an integer 0 has no sign
    return p;
}

// head: the bytes before the first number, with `depth` brackets. closes: how many arrays end behind each number.
// doubtful: pairs of a number's index and its place, for as many as there is `room`.
extern "C" __global__ void digits_convert(const unsigned char* text, unsigned int bytes, const unsigned int* places,
                                          unsigned int count, unsigned int head, unsigned int depth,
                                          unsigned int* values, unsigned char* closes, unsigned int* doubtful,
                                          unsigned int room, unsigned int* state) {
    const unsigned int number = blockIdx.x * blockDim.x + threadIdx.x;
    if (number >= count) return;
    const bool last = number + 1 == count;
    const unsigned int place = places[number];
    const unsigned char* const following = text + (last ? bytes : places[number + 1]);
    unsigned int bits, closed = 0, opened = 0;
    bool sure;
    const unsigned char* p = read_number(text + place, bits, sure);
    if (!p || (number == 0 && place != head)) {
        state[REFUSED] = 1;
        return;
    }
    for (p = skip_space(p); *p == ']'; p = skip_space(p + 1)) ++closed;
    if (!last) {
        if (*p != ',') {
            state[REFUSED] = 1;
            return;
        }
        for (p = skip_space(p + 1); *p == '['; p = skip_space(p + 1)) ++opened;
    }
    if (p != following || (last ? closed != depth : closed != opened || closed >= depth)) {
        state[REFUSED] = 1;
        return;
    }
    values[number] = bits;
    closes[number] = (unsigned char)closed;
    for (unsigned int level = 1; level <= closed; ++level) {
        unsigned int* const first = state + FIRST + level;
        if (number + 1 < *(volatile unsigned int*)first) atomicMin(first, number + 1);
    }
    if (!sure) {
        const unsigned int slot = atomicAdd(state + DOUBTFUL, 1u);
        if (slot < room) {
            doubtful[2 * slot] = number;
            doubtful[2 * slot + 1] = place;
        }
    }
}

extern "C" __global__ void digits_check(const unsigned char* closes, unsigned int count, unsigned int depth,
                                        unsigned int* state) {
    const unsigned int number = blockIdx.x * blockDim.x + threadIdx.x;
    if (number >= count || state[REFUSED]) return;
    unsigned int level = 0;
    while (level < depth && (number + 1) % state[FIRST + level + 1] == 0) ++level;
    if (level != closes[number]) state[REFUSED] = 1;
}

// amends: pairs of a number's index and its bits.
extern "C" __global__ void digits_amend(const unsigned int* amends, unsigned int count, unsigned int* values) {
    const unsigned int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) values[amends[2 * at]] = amends[2 * at + 1];
}
"""
SOURCE: Final = ROUNDED + _CONSTANTS + _KERNELS


class Parsed(NamedTuple):
    """An array on the device, and how many of its numbers the host had to read."""

    values: Any
    doubtful: int


def no_lap() -> None:
    """Nobody takes the time."""


class Parser:
    """Arrays of numbers to FP32 on the current device and stream."""

    def __init__(self, xp: Any) -> None:
        self._xp = xp
        self._module = xp.RawModule(code=SOURCE, options=("-std=c++17",))
        names = ("mark", "locate", "convert", "check", "amend")
        self._kernels = {name: self._module.get_function(f"digits_{name}") for name in names}

    def parse(self, body: Any, lap: Callable[[], None] = no_lap) -> Parsed | None:
        """The array that a body is, all of it: uint8 on the host, not changed meanwhile. None if the host has to look.

        `lap` is called five times: before and after the copy, after what counts the numbers, when the host knows their
        count, and after the other kernels. Finished when it returns.
        """
        xp = self._xp
        head = _HEAD.match(body)
        depth = head.group().count(b"[") if head else 0
        if not head or not 0 < depth <= LEVELS or body.nbytes >= MAX_BYTES:
            return None
        bytes_, words = np.uint32(body.nbytes), body.nbytes // WORD + 1
        text = xp.empty(words * WORD, np.uint8)
        starts, counts = xp.empty(words, np.uint32), xp.empty(words, np.int32)
        state = xp.empty(_FIRST + LEVELS + 1, np.uint32)
        lap()
        to_device(xp, text, body)
        lap()
        self._run("mark", words, text, bytes_, np.uint32(words), starts, counts, state)
        sums = xp.cumsum(counts, dtype=np.int32)
        lap()
        count = int(xp.asnumpy(sums[-1:])[0])
        if not count:
            return None
        lap()
        places, values = xp.empty(count, np.uint32), xp.empty(count, np.uint32)
        closes = xp.empty(count, np.uint8)
        room = 1024 + count // 16
        doubtful = xp.empty(2 * room, np.uint32)
        self._run("locate", words, starts, sums, np.uint32(words), places)
        sizes = (np.uint32(count), np.uint32(head.end()), np.uint32(depth))
        results = (values, closes, doubtful, np.uint32(room), state)
        self._run("convert", count, text, bytes_, places, *sizes, *results)
        self._run("check", count, closes, np.uint32(count), np.uint32(depth), state)
        lap()
        facts = [int(fact) for fact in xp.asnumpy(state)]
        if facts[_REFUSED] or facts[_DOUBTFUL] > room:
            return None
        if facts[_DOUBTFUL] and not self._amend(body, values, doubtful[: 2 * facts[_DOUBTFUL]]):
            return None
        return Parsed(values.view(np.float32).reshape(_shape(facts, depth)), facts[_DOUBTFUL])

    def _amend(self, body: Any, values: Any, doubtful: Any) -> bool:
        """Read the doubtful ones here. Whether all are finite doubles."""
        pairs = self._xp.asnumpy(doubtful).reshape(-1, 2)
        tokens = [_NUMBER.match(body, int(place)) for place in pairs[:, 1]]
        doubles = np.array([float(token.group()) for token in tokens if token])
        if len(doubles) != len(pairs) or not np.isfinite(doubles).all():
            return False
        with np.errstate(over="ignore"):
            pairs[:, 1] = doubles.astype(np.float32).view(np.uint32)
        self._run("amend", len(pairs), self._xp.asarray(pairs.reshape(-1)), np.uint32(len(pairs)), values)
        self._xp.cuda.get_current_stream().synchronize()
        return True

    def _run(self, name: str, threads: int, *arguments: Any) -> None:
        self._kernels[name]((-(-threads // THREADS),), (THREADS,), arguments)


def _shape(facts: list[int], depth: int) -> tuple[int, ...]:
    """How many numbers an array of each level holds -> the sizes, outermost first."""
    held = [1, *facts[_FIRST + 1 : _FIRST + 1 + depth]]
    return tuple(held[level + 1] // held[level] for level in reversed(range(depth)))


def to_device(xp: Any, there: Any, here: Any) -> None:
    """The bytes of an array of the host to the front of one of the device, in the current stream's order."""
    runtime, stream = xp.cuda.runtime, xp.cuda.get_current_stream().ptr
    runtime.memcpyAsync(there.data.ptr, here.ctypes.data, here.nbytes, runtime.memcpyHostToDevice, stream)
