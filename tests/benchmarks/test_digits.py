"""The parser of number arrays for a GPU: its kernels compiled as C++ for this machine's processor, run thread by thread
behind the stand-in for CuPy, and held against json and NumPy bit by bit."""

import ctypes
import json
import random
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiled_helpers import needs
from cuda_stand_in import CUDA, compiled
from fake_cuda import Cupy, orders

from benchmarks import digits
from benchmarks.digits import BODIES, Contest, Line, make_body, report, verdict, wanted
from benchmarks.digits_cuda import LEVELS, ROUNDED, SOURCE, Parser

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler here")
needs_scanner = needs("_numbers")

HOST = """
#include <cmath>
static inline unsigned int rounded(double value) {
    const float nearest = (float)value;
    unsigned int bits;
    std::memcpy(&bits, &nearest, 4);
    return bits;
}
static inline int __popc(unsigned int bits) { return __builtin_popcount(bits); }
static inline int __ffs(int bits) { return __builtin_ffs(bits); }
static inline unsigned int atomicAdd(unsigned int* at, unsigned int more) { return (*at += more) - more; }
static inline void atomicMin(unsigned int* at, unsigned int other) { if (other < *at) *at = other; }
"""
SIGNATURE = re.compile(r'extern "C" __global__ void (\w+)\(([^)]*)\)')
POINTERS = {"unsigned char*": np.uint8, "unsigned int*": np.uint32, "int*": np.int32}


class Module:
    """cupy.RawModule: a launch happens when its turn comes on the stream, with arguments of the declared types."""

    def __init__(self, world: Any, folder: Path, code: str) -> None:
        self._world = world
        assert ROUNDED in code
        self._parameters = {
            name: [each.replace("const ", "").strip().rsplit(maxsplit=1)[0] for each in parameters.split(",")]
            for name, parameters in SIGNATURE.findall(code)
        }
        launches = "".join(self._launch(name, parameters) for name, parameters in SIGNATURE.findall(code))
        self._library = compiled(CUDA + HOST + code.replace(ROUNDED, "") + launches, folder)

    def _launch(self, name: str, parameters: str) -> str:
        names = ", ".join(each.split()[-1] for each in parameters.split(","))
        return f"""
        extern "C" void launch_{name}(unsigned int grid, unsigned int block, {parameters}) {{
            blockDim = {{block, 1}};
            for (blockIdx.x = 0; blockIdx.x < grid; ++blockIdx.x)
                for (threadIdx.x = 0; threadIdx.x < block; ++threadIdx.x) {name}({names});
        }}"""

    def get_function(self, name: str) -> Any:
        function, declared = self._library[f"launch_{name}"], self._parameters[name]

        def run(grid: tuple[int], block: tuple[int], arguments: tuple[Any, ...]) -> None:
            values = [ctypes.c_uint(grid[0]), ctypes.c_uint(block[0])]
            for given, kind in zip(arguments, declared, strict=True):
                if kind == "unsigned int":
                    assert type(given) is np.uint32
                    values.append(ctypes.c_uint(int(given)))
                else:
                    assert given.dtype == POINTERS[kind]
                    assert given.flags.c_contiguous
                    values.append(ctypes.c_void_p(given.data.ptr))
            self._world.enqueue(self._world.current, ("do", lambda: function(*values)))

        return run


class Device(Cupy):
    """The stand-in, with kernels from texts, and copies from ordinary memory, which is read at once."""

    def __init__(self, folder: Path, order: str | int = "lazy") -> None:
        super().__init__(order)
        self._folder = folder
        self._from_pinned = self.cuda.runtime.memcpyAsync
        self.cuda.runtime.memcpyAsync = self._copy

    def RawModule(self, code: str, options: tuple[str, ...]) -> Module:  # noqa: N802 - CuPy's name
        assert options == ("-std=c++17",)
        return Module(self.world, self._folder, code)

    def _copy(self, target: int, source: int, nbytes: int, kind: int, stream: int) -> None:
        if any(block.has(source, nbytes) for block in self.world.blocks):
            self._from_pinned(target, source, nbytes, kind, stream)
            return
        now = ctypes.string_at(source, nbytes)
        self.world.enqueue(self.world.streams[stream - 1], ("do", lambda: ctypes.memmove(target, now, nbytes)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture
def gpu(folder: Path) -> Device:
    return Device(folder)


@pytest.fixture
def parser(gpu: Device) -> Parser:
    return Parser(gpu)


def bits(array: Any) -> Any:
    return array.view(np.uint32)


def read(parser: Parser, text: str | bytes) -> tuple[Any, int] | None:
    """-> array, and how many numbers the host read"""
    body = text.encode() if isinstance(text, str) else text
    parsed = parser.parse(np.frombuffer(body, np.uint8))
    return None if parsed is None else (parsed.values.get(), parsed.doubtful)


def assert_same(parser: Parser, text: str | bytes) -> int:
    """-> how many numbers the host read"""
    got, want = read(parser, text), wanted(text if isinstance(text, bytes) else text.encode())
    assert got is not None, text[:200]
    assert got[0].shape == want.shape
    np.testing.assert_array_equal(bits(got[0]), bits(want))
    return got[1]


ODD = """
0 -0 0.0 -0.0 0e5 -0e5 0.000 -0E-7 0e999999 -0.0e-999999 1 -1 9 10 1.5 -1.5 1e0 1E0 1e+0 1e-0 1e00005 0.1 -0.1 100
1e22 1e23 16777215 16777216 16777217 16777218 16777219 33554431 33554433 -16777217 16777217.0 167772170e-1 1677721.7e1
9007199254740991 9007199254740992 9007199254740993 9007199254740993.0 90071992547409930e-1 18446744073709551615
18446744073709551616 99999999999999999999 123456789012345678901234567890 1000000000000000000000000000000000000
0.30000001192092896 0.3 3.299999952316284 3.4028234663852886e+38 3.4028235e38 3.4028235677973366e38 3.5e38 1e39 -1e39
1e300 3.40282356779733661637539395458142568447e38 3.40282356779733661637539395458142568448e38 1.7976931348623157e308
1.1754943508222875e-38 1.17549435e-38 1.1754942807573643e-38 1.401298464324817e-45 -1.401298464324817e-45
7.006492321624085e-46 7.006492321624086e-46 7e-46 7.1e-46 2.1019476964872256e-45 1e-50 1e-64 1e-65 1e-66 1e-100 5e-324
-1e-320 1.00000005960464477539062 1.000000059604644775390625 1.00000005960464477539063
1.000000059604644775390625000000000000000001 0.00000000000000000000000000000000000000000000000000000001e56
0.1234567890123456789 0.12345678901234567890123456789 1000000059604644775390625e-24 1000000178813934326171875e-24
123456789.123456789e-5 8388608.5 8388609.5 8388607.75 12345678901234567890e-20 1234567890123456789
12345678901234567891 0.0000001234567890123456789012345 4503599627370496.5
"""


@needs_compiler
@pytest.mark.parametrize("between", [",", ", ", " ,\n\t  ", "\r\n,"])
def test_odd_numbers(between: str, parser: Parser) -> None:
    assert_same(parser, f"[{between.join(ODD.split())}]")


@needs_compiler
def test_each_alone(parser: Parser) -> None:
    """There is no other number whose value it might have got."""
    for token in ODD.split():
        assert_same(parser, f"[{token}]")


@needs_compiler
def test_as_many_zeros_and_digits_as_one_likes(parser: Parser) -> None:
    zeros = "0" * 150_000
    assert_same(parser, f"[0.{zeros}1e150001, 1{zeros}e-150000, 1.{zeros}1, {'9' * 300}e-299, -0.{zeros}]")
    assert read(parser, f"[0.{zeros[:100_010]}1e1000001]") is None


@needs_compiler
def test_values_of_every_size(parser: Parser) -> None:
    """Of random bits, as doubles that equal them, in nine digits, and in as few as tell them apart."""
    numbers = np.random.default_rng(6).integers(0, 1 << 32, 60_000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    numbers = numbers[np.isfinite(numbers)]
    assert assert_same(parser, json.dumps(numbers.tolist())) == 0
    assert assert_same(parser, f"[{','.join(f'{number:.8e}' for number in numbers.tolist())}]") == 0
    assert assert_same(parser, f"[{','.join(str(number) for number in numbers)}]".encode()) == 0


@needs_compiler
def test_halfway_between_two_floats_and_next_to_it(parser: Parser) -> None:
    """Where the second rounding decides; what a product of doubles cannot tell is read by the host."""
    chosen = np.random.default_rng(7).integers(1, 0x7F7FFFFF, 6000, dtype=np.uint32)
    low, high = chosen.view(np.float32).astype(float), (chosen + 1).view(np.float32).astype(float)
    half = (low + high) / 2
    near = np.concatenate([half, np.nextafter(half, 0), np.nextafter(half, np.inf)])
    for text, least in [("{!r}", 1000), ("{:.19e}", 1000), ("{:.60e}", 3000)]:
        tokens = [text.format(number) for number in near.tolist()]
        parts = [f"[{','.join(tokens[at : at + 1000])}]" for at in range(0, len(tokens), 1000)]
        assert sum(assert_same(parser, part) for part in parts) > least


@needs_compiler
def test_random_texts(parser: Parser) -> None:
    rng = random.Random(8)  # noqa: S311 - guards nothing

    def token() -> str:
        whole = str(rng.randrange(10 ** rng.randint(1, 22)))
        fraction = "." + "".join(rng.choices("0123456789", k=rng.randint(1, 22))) if rng.random() < 0.7 else ""
        power = rng.choice("eE") + rng.choice(["", "+", "-"]) + str(rng.randint(0, 45)) if rng.random() < 0.5 else ""
        return rng.choice(["", "-"]) + whole + fraction + power

    for _ in range(20):
        assert_same(parser, rng.choice([",", ", "]).join(token() for _ in range(2000)).join("[]"))


SHAPES = [(1,), (7,), (1, 1), (3, 1), (1, 3), (2, 3, 4), (1, 5, 5, 3), (4, 1, 1, 1), (2, 2, 2, 2, 2), (300, 2)]


@needs_compiler
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("indent", [None, 1])
def test_shapes(shape: tuple[int, ...], indent: int | None, parser: Parser) -> None:
    numbers = np.random.default_rng(9).standard_normal(shape, np.float32)
    assert_same(parser, f" {json.dumps(numbers.tolist(), indent=indent)}\n")


@needs_compiler
def test_bodies_that_end_anywhere_in_a_word(parser: Parser) -> None:
    for length in range(1, 140):
        assert_same(parser, "[" + "1" * (length % 35 + 1) + " " * (length // 3) + ", 25" + " " * (length % 7) + "]")


REFUSED = """
[] [[]] [[],[]] [[1],[]] [[],[1]] [1,[2]] [[1],2] [[1,2],[3]] [[1],[2,3]] [[[1],[2]],[[3]]] [[[1]],[[2],[3]]]
[[1,2,3],[4,5],[6]] [[[1,2],[3,4]],[[5,6,7,8]]] [[[1,2,3,4]],[[5,6],[7,8]]] [[1]],[2]] [[1],[[2]]] [1]] [[1] [1 1 [1,]
[,1] [1,,2] [1][2] [1],[2] [[1][2]] [[1],,[2]] [[1],[2],] [1}x ]1[ {} 1 [1}x [01] [-01] [1.] [.5] [-.5] [+1] [--1]
[1-2] [1e] [1e+] [1e5.0] [1.e5] [1.5.2] [1e5e5] [e5] [-] [-e5] [0x10] [1/2] [NaN] [Infinity] [-Infinity] [null] [true]
[false] ["1"] [1,"2"] [1,{"a":2}] [1,2]3 [1;2] [1_000] [1a] [1\xb2] [1.0f] [1e400] [-1e400] [1,2,1e309]
"""


@needs_compiler
@pytest.mark.parametrize(
    "text", [*REFUSED.split(), "[1 2]", "[1, -]", "[- 1]", "[1. 5]", "[1\0]", "[1]\0", "[1\f]", "\x00[1]", ""]
)
def test_what_is_for_the_host(text: str, parser: Parser) -> None:
    assert read(parser, text) is None


@needs_compiler
def test_as_deep_as_there_are_levels(parser: Parser) -> None:
    assert_same(parser, "[" * LEVELS + "1" + "]" * LEVELS)
    assert read(parser, "[" * (LEVELS + 1) + "1" + "]" * (LEVELS + 1)) is None
    assert read(parser, "[" * 1000) is None


@needs_compiler
def test_one_byte_changed(parser: Parser) -> None:
    """Either both take it, and agree, or the host has to look."""
    rng = random.Random(10)  # noqa: S311 - guards nothing
    text = json.dumps(np.random.default_rng(10).standard_normal((3, 4, 2)).astype(np.float32).tolist())
    taken = 0
    for _ in range(1500):
        at = rng.randrange(len(text))
        changed = text[:at] + rng.choice("0159.,-+eE[] ]x") + text[at + 1 :]
        got = read(parser, changed)
        if got is not None:
            taken += 1
            want = wanted(changed.encode())
            assert got[0].shape == want.shape, changed
            np.testing.assert_array_equal(bits(got[0]), bits(want), changed)
    assert 300 < taken < 1200


@needs_compiler
def test_more_in_doubt_than_there_is_room(parser: Parser) -> None:
    """All of them exactly between two floats, in more digits than 53 bits: the host reads the body itself."""
    assert read(parser, json.dumps(["x"] * 3000).replace('"x"', "1.000000059604644775390625")) is None
    assert assert_same(parser, json.dumps(["x"] * 1000).replace('"x"', "1.000000059604644775390625")) == 1000


@needs_compiler
@needs_scanner
@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize("order", [*orders()])
def test_the_contenders_agree(kind: str, order: str | int, folder: Path) -> None:
    gpu = Device(folder, order)
    body = make_body(kind, 0.06)
    line = Contest(kind, body, gpu, Parser(gpu)).measure(1)
    assert line.kind == kind
    assert 0.04 < line.megabytes < 0.08
    assert line.on_host == 0
    assert min(line[3:10]) > 0


@needs_compiler
@needs_scanner
def test_a_wrong_bit_is_a_failure(
    gpu: Device, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(digits, "SAMPLE", 100)
    options = digits.parse(["--megabytes", "0.01", "--rounds", "1"])
    assert digits.run(options, gpu) == []
    monkeypatch.setattr(
        "benchmarks.digits_cuda.SOURCE",
        SOURCE.replace("values[number] = bits", "values[number] = bits ^ (number == 7)"),
    )
    failed = digits.run(options, gpu)
    assert len(failed) == len(BODIES)
    assert all("gpu: 1 numbers of" in each and "number 7" in each for each in failed)
    assert "does not win" in capsys.readouterr().out


def test_no_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(digits, "cuda_devices", lambda: 0)
    assert digits.main([]) == 2
    said = capsys.readouterr().out
    assert said.startswith("FAILED: there is no GPU")
    assert said.count("\n") == 1


def test_the_table_and_its_verdict() -> None:
    lost = Line("widened", 0.3, 15_000, 300.0, 320.0, 400.0, 310.0, 20.0, 30.0, 40.0, 0.0)
    even = Line("image", 3.0, 150_000, 3000.0, 3100.0, 1000.0, 500.0, 60.0, 40.0, 50.0, 0.25)
    won = Line("image", 20.0, 1_000_000, 20_000.0, 21_000.0, 4000.0, 1000.0, 400.0, 100.0, 100.0, 0.0)
    _, first, second, _ = report([lost, even, won]).splitlines()
    assert first.split()[-3:] == ["0.75", "0.97", "0.0000"]
    assert second.split()[-3:] == ["3.00", "6.00", "0.2500"]
    said = verdict([(0.3, [lost]), (3.0, [even]), (20.0, [won])])
    assert "ordinary memory the GPU wins from 3 MB on, 3.0 to 5.0 times as fast" in said
    assert "already the GPU wins from 3 MB on, 6.0 to 20.0 times as fast" in said
    assert "does not win at the largest size" in verdict([(3.0, [even]), (20.0, [won, lost])])
    assert "wins from 20 MB on" in verdict([(3.0, []), (20.0, [won])])
