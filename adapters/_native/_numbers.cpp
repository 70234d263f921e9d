// Arrays of numbers between JSON text and machine numbers, without the interpreter lock.
//
// A JSON tensor is megabytes of digits. `scan` reads one array of them in a single pass: brackets, commas and number
// grammar are checked while the digits are added up, and the shape falls out of the brackets. It says nothing about
// what it does not take; the caller then goes its other way, which words every error. So whatever is in doubt may be
// refused here, and nothing that is accepted may be wrong.
//
// A decimal number is a whole number of up to 19 digits, w, times a power of ten, 10^q. `POWERS` holds the leading 64
// bits of 10^q, a little too low; the product with w is then known to 3 units of its own 64 bits, of which a double
// keeps 53. Unless the rest lies within these 3 units of a half, the double nearest to the product is the nearest to
// the number. The few in a thousand that lie there, more digits, and extreme exponents go to std::from_chars, which is
// exact for all.
//
// Bounds: no byte is read before it is known to lie within the text; near its ends digits are taken one by one. A
// number takes two bytes at least, so there are never more than half as many numbers as bytes, and room for them grows
// by doubling.

#include "_extension.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <type_traits>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#if !defined(__SIZEOF_INT128__)
#error "needs a compiler with 128-bit integers"
#endif
#if !defined(__cpp_lib_to_chars) || (defined(_GLIBCXX_RELEASE) && _GLIBCXX_RELEASE < 12)
#error "needs a standard library that reads and writes floating numbers exactly, such as libstdc++ 12"
#endif

namespace {

using std::int64_t;
using std::uint64_t;
__extension__ using uint128_t = unsigned __int128;

constexpr int MAX_DIMENSIONS = 64;  // NumPy's
constexpr uint64_t TEN_TO_19 = 10'000'000'000'000'000'000u;
constexpr uint64_t LEAST_INT64 = uint64_t{1} << 63;  // its magnitude

// ------------------------------------------------------------------------------------------------------ powers of ten

struct Power {
    uint64_t bits;  // from 2^63 on; 10^q lies between bits and bits + 1.001, times 2^exponent
    int exponent;
};

// Of w * 10^q with 1 <= w < 2^64 and q in this range, the double is neither subnormal nor infinite.
constexpr int LEAST_POWER = -300, MOST_POWER = 288;

// Each power is made from its neighbour in 128 bits. Every step cuts off less than 2^-123 of the value, so even after
// 300 of them the leading 64 bits are off by one in the last place at most, and always downward.
constexpr std::array<Power, MOST_POWER - LEAST_POWER + 1> make_powers() {
    constexpr uint128_t top = uint128_t{1} << 127;
    std::array<Power, MOST_POWER - LEAST_POWER + 1> powers{};
    uint128_t bits = top;
    int exponent = -63;
    for (int q = 0; q <= MOST_POWER; ++q) {
        powers[q - LEAST_POWER] = {static_cast<uint64_t>(bits >> 64), exponent};
        bits = (bits >> 3) * 5;
        exponent += 4;
        for (; !(bits & top); --exponent) bits <<= 1;
    }
    bits = top;
    exponent = -63;
    for (int q = -1; q >= LEAST_POWER; --q) {
        bits /= 5;
        exponent -= 1;
        for (; !(bits & top); --exponent) bits <<= 1;
        powers[q - LEAST_POWER] = {static_cast<uint64_t>(bits >> 64), exponent};
    }
    return powers;
}

constexpr auto POWERS = make_powers();

// w * 10^q, w not 0 -> the nearest double, or false where three units may decide.
inline bool nearest_double(uint64_t w, int64_t q, bool minus, double& value) {
    if (q < LEAST_POWER || q > MOST_POWER) return false;
    const Power power = POWERS[static_cast<std::size_t>(q - LEAST_POWER)];
    const int zeros = __builtin_clzll(w);
    const uint64_t product = static_cast<uint64_t>((uint128_t{w << zeros} * power.bits) >> 64);  // from 2^62 on
    const int spare = 10 + static_cast<int>(product >> 63);
    const uint64_t half = uint64_t{1} << (spare - 1);
    const uint64_t rest = product & (2 * half - 1);
    if (half - rest < 3) return false;
    const uint64_t mantissa = (product >> spare) + (rest > half);  // with its leading 1; 2^53 carries into the exponent
    const int exponent = spare + 64 + power.exponent - zeros;
    const uint64_t pattern = (static_cast<uint64_t>(exponent + 52 + 1022 + (minus << 11)) << 52) + mantissa;
    std::memcpy(&value, &pattern, sizeof value);
    return true;
}

// ------------------------------------------------------------------------------------------------------------- digits

constexpr std::array<uint64_t, 25> make_tens() {
    std::array<uint64_t, 25> tens{};
    uint64_t power = 1;
    for (uint64_t& ten : tens) {
        ten = power;
        power *= 10;
    }
    return tens;
}

constexpr auto TENS = make_tens();

// What may be read.
struct Text {
    const char* begin;
    const char* end;
};

inline bool is_digit(char c) { return static_cast<unsigned char>(c - '0') < 10; }

// Eight digits, one a byte, the first in the lowest byte -> their value: neighbours are joined to pairs, fours, all.
inline uint64_t joined(uint64_t digits) {
    digits = (digits * 10 + (digits >> 8)) & 0x00FF00FF00FF00FF;
    digits = (digits * 100 + (digits >> 16)) & 0x0000FFFF0000FFFF;
    return (digits * 10000 + (digits >> 32)) & 0xFFFFFFFF;
}

#if defined(__SSE2__)

inline __m128i sixteen_bytes(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }

// Which of 16 bytes are no digits, a bit each.
inline unsigned no_digits(__m128i values) {
    const __m128i digits = _mm_cmpeq_epi8(_mm_min_epu8(values, _mm_set1_epi8(9)), values);
    return static_cast<unsigned>(_mm_movemask_epi8(digits)) ^ 0xFFFF;
}

// Sixteen bytes of 0 to 9 -> their value.
inline uint64_t joined(__m128i digits) {
    const __m128i tens = _mm_mullo_epi16(_mm_and_si128(digits, _mm_set1_epi16(0xFF)), _mm_set1_epi16(10));
    const __m128i pairs = _mm_add_epi16(tens, _mm_srli_epi16(digits, 8));
    const __m128i fours = _mm_madd_epi16(pairs, _mm_set1_epi32(100 | 1 << 16));
    const __m128i eights = _mm_madd_epi16(_mm_packs_epi32(fours, fours), _mm_set1_epi32(10000 | 1 << 16));
    uint64_t halves;
    _mm_storel_epi64(reinterpret_cast<__m128i*>(&halves), eights);
    return (halves & 0xFFFFFFFF) * TENS[8] + (halves >> 32);
}

// Up to 23 digits -> behind them; null if there are more. 16 bytes before `p` and 24 from there on may be read.
//
// The length of the next number is hard to foretell, so there is one branch: to sixteen digits or fewer. Fewer are
// loaded again so as to end with the last digit, and what comes before the first is cut off.
inline const char* read_at_once(const char* p, uint64_t& w) {
    static constexpr signed char KEPT[32] = {0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,
                                             -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
    const __m128i zeros = _mm_set1_epi8('0');
    const __m128i ahead = _mm_sub_epi8(sixteen_bytes(p), zeros);
    const int count = __builtin_ctz(no_digits(ahead) | 0x10000);
    if (count < 16) {
        const __m128i values = _mm_sub_epi8(sixteen_bytes(p + count - 16), zeros);
        w = w * TENS[static_cast<std::size_t>(count)] + joined(_mm_and_si128(values, sixteen_bytes(KEPT + count)));
        return p + count;
    }
    uint64_t bytes;
    std::memcpy(&bytes, p + 16, 8);
    bytes ^= 0x3030303030303030;
    // The lowest of these bits marks the first byte above 9: a carry out of a byte only reaches higher ones.
    const uint64_t others = ((bytes + 0x7676767676767676) | bytes) & 0x8080808080808080;
    if (!others) return nullptr;
    const int more = __builtin_ctzll(others) / 8;
    w = (w * TENS[16] + joined(ahead)) * TENS[static_cast<std::size_t>(more)] + joined(bytes << (8 * (7 - more)) << 8);
    return p + 16 + more;
}

#endif

// Append the digits at `p` to w, modulo 2^64 -> behind them.
inline const char* read_digits(const char* p, Text text, uint64_t& w) {
#if defined(__SSE2__)
    if (p - text.begin >= 16 && text.end - p >= 24) {
        if (const char* const behind = read_at_once(p, w)) return behind;
    }
#endif
    for (; p < text.end && is_digit(*p); ++p) w = w * 10 + static_cast<uint64_t>(*p - '0');
    return p;
}

// ------------------------------------------------------------------------------------------------------------ numbers

// The digits of a whole number at `p`, which has no needless 0 in front -> behind them, or null.
inline const char* read_whole(const char* p, Text text, uint64_t& w) {
    if (p == text.end || !is_digit(*p)) return nullptr;
    const char first = *p++;
    w = static_cast<uint64_t>(first - '0');
    if (p == text.end || !is_digit(*p)) return p;
    return first == '0' ? nullptr : read_digits(p, text, w);
}

// Digits of an exponent with its sign, added to q -> behind them, or null. What is beyond all reason is left large.
inline const char* read_exponent(const char* p, Text text, int64_t& q) {
    const bool minus = p < text.end && *p == '-';
    p += p < text.end && (*p == '-' || *p == '+');
    if (p == text.end || !is_digit(*p)) return nullptr;
    int64_t exponent = 0;
    for (; p < text.end && is_digit(*p); ++p) {
        if (exponent < 10'000'000'000'000'000) exponent = exponent * 10 + (*p - '0');
    }
    q += minus ? -exponent : exponent;
    return p;
}

// Digits from the first that is not 0 on, in a text of digits and perhaps a point.
inline std::ptrdiff_t significant(const char* p, const char* end) {
    while (p < end && (*p == '0' || *p == '.')) ++p;
    std::ptrdiff_t count = 0;
    for (; p < end; ++p) count += *p != '.';
    return count;
}

inline const char* read_exactly(const char* token, const char* p, double& value) {
    const auto [read, error] = std::from_chars(token, p, value);
    return error == std::errc() && read == p && std::isfinite(value) ? p : nullptr;
}

// The number at `p`, where there is a byte -> behind it, or null. A whole 0 has no sign, as integers have none.
inline const char* read_double(const char* p, Text text, double& value) {
    const char* const token = p;
    bool minus = false;
    if (*p == '-') {  // a branch, so that the address of the first digit need not wait for this byte
        minus = true;
        ++p;
    }
    const char* const digits = p;
    uint64_t w;
    p = read_whole(p, text, w);
    if (!p) return nullptr;
    int64_t q = 0;
    bool whole = true;
    if (p < text.end && *p == '.') {
        const char* const fraction = ++p;
        p = read_digits(p, text, w);
        if (p == fraction) return nullptr;
        q = fraction - p;
        whole = false;
    }
    const char* const last = p;
    if (p < text.end && (*p == 'e' || *p == 'E')) {
        p = read_exponent(p + 1, text, q);
        if (!p) return nullptr;
        whole = false;
    }
    if (last - digits > 19 && significant(digits, last) > 19) return read_exactly(token, p, value);
    if (!w) {
        value = minus && !whole ? -0.0 : 0.0;
        return p;
    }
    return nearest_double(w, q, minus, value) ? p : read_exactly(token, p, value);
}

inline const char* read_number(const char* p, Text text, double& value) { return read_double(p, text, value); }

inline const char* read_number(const char* p, Text text, float& value) {
    double wide;
    p = read_double(p, text, wide);
    if (p) value = static_cast<float>(wide);  // rounds once more; what is too large becomes infinite
    return p;
}

inline const char* read_number(const char* p, Text text, int64_t& value) {
    const bool minus = *p == '-';
    p += minus;
    const char* const digits = p;
    uint64_t w;
    p = read_whole(p, text, w);
    if (!p || p - digits > 19 || w > LEAST_INT64 - !minus) return nullptr;
    value = static_cast<int64_t>(minus ? 0 - w : w);
    return p;
}

inline const char* read_number(const char* p, Text text, uint64_t& value) {
    const bool minus = *p == '-';
    p += minus;
    const char* const digits = p;
    p = read_whole(p, text, value);
    if (!p || (minus && value)) return nullptr;
    const std::ptrdiff_t count = p - digits;
    if (count < 20) return p;
    return count == 20 && *digits == '1' && value >= TEN_TO_19 ? p : nullptr;  // else it was more than 2^64
}

// ------------------------------------------------------------------------------------------------------------- arrays

// A bytearray that grows. `saved` is the thread's state while the interpreter lock is given away.
class Output {
  public:
    Output(std::size_t capacity, std::size_t most, std::size_t width)
        : width_(width), capacity_(capacity), most_(most),
          bytes_(PyByteArray_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(capacity * width))) {}
    ~Output() { Py_XDECREF(bytes_); }
    Output(const Output&) = delete;
    Output& operator=(const Output&) = delete;

    bool failed() const { return !bytes_; }
    void* begin() const { return PyByteArray_AsString(bytes_); }
    std::size_t capacity() const { return capacity_; }

    bool grow() {
        if (saved) PyEval_RestoreThread(saved);
        capacity_ = capacity_ < most_ / 2 ? capacity_ * 2 : most_;
        const bool grown = resize(capacity_);
        if (saved) saved = PyEval_SaveThread();
        return grown;
    }

    // The finished object, a new reference, or null with an exception.
    PyObject* take(std::size_t count) {
        if (!resize(count)) return nullptr;
        PyObject* const bytes = bytes_;
        bytes_ = nullptr;
        return bytes;
    }

    PyThreadState* saved = nullptr;

  private:
    bool resize(std::size_t count) {
        if (PyByteArray_Resize(bytes_, static_cast<Py_ssize_t>(count * width_)) == 0) return true;
        Py_CLEAR(bytes_);
        return false;
    }

    const std::size_t width_;
    std::size_t capacity_;
    const std::size_t most_;
    PyObject* bytes_;
};

inline const char* skip_space(const char* p, const char* end) {
    while (p < end && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t')) ++p;
    return p;
}

// What the brackets have said so far. Levels count from 1; every array of a level has the length of the first.
class Shape {
  public:
    bool open() {
        if (depth == MAX_DIMENSIONS || (rank && depth == rank)) return false;
        counts_[++depth] = 0;
        return true;
    }

    // `more` numbers stand at this depth, where all the others stand.
    bool add_numbers(Py_ssize_t more) {
        if (rank && rank != depth) return false;
        rank = depth;
        counts_[depth] += more;
        return true;
    }

    bool close() {
        if (!counts_[depth] && !add_numbers(0)) return false;  // an empty array is one of no numbers
        if (sizes_[depth] < 0) sizes_[depth] = counts_[depth];
        if (sizes_[depth] != counts_[depth]) return false;
        ++counts_[--depth];
        return true;
    }

    PyObject* tuple() const {
        PyObject* const sizes = PyTuple_New(rank);
        for (int level = 0; sizes && level < rank; ++level) {
            PyObject* const size = PyLong_FromSsize_t(sizes_[level + 1]);
            if (!size || PyTuple_SetItem(sizes, level, size) < 0) {
                Py_DECREF(sizes);
                return nullptr;
            }
        }
        return sizes;
    }

    int depth = 0;
    int rank = 0;  // 0: not known yet

  private:
    static constexpr std::array<Py_ssize_t, MAX_DIMENSIONS + 1> unknown() {
        std::array<Py_ssize_t, MAX_DIMENSIONS + 1> sizes{};
        for (Py_ssize_t& size : sizes) size = -1;
        return sizes;
    }

    std::array<Py_ssize_t, MAX_DIMENSIONS + 1> counts_{};
    std::array<Py_ssize_t, MAX_DIMENSIONS + 1> sizes_ = unknown();
};

template <class Number>
class Scanner {
  public:
    Scanner(Text text, Output& output) : text_(text), output_(output) { place(0); }

    // The array that begins at `p` -> behind it, or null, also where the output could not grow.
    const char* read(const char* p) {
        for (;;) {
            p = skip_space(p, text_.end);
            if (p == text_.end) return nullptr;
            if (*p == '[') {
                if (!shape.open()) return nullptr;
                p = skip_space(p + 1, text_.end);
                if (p == text_.end || *p != ']') continue;
            } else {
                p = read_run(p);
                if (!p) return nullptr;
            }
            for (p = skip_space(p, text_.end); p < text_.end && *p == ']'; p = skip_space(p, text_.end)) {
                if (!shape.close()) return nullptr;
                ++p;
                if (!shape.depth) return p;
            }
            if (p == text_.end || *p != ',') return nullptr;
            ++p;
        }
    }

    std::size_t count() const { return static_cast<std::size_t>(next_ - first_); }

    Shape shape;

  private:
    // Numbers with nothing but a comma, or comma and space, between them -> behind the last.
    const char* read_run(const char* p) {
        const std::size_t before = count();
        for (;;) {
            if (next_ == stop_ && !grow()) return nullptr;
            p = read_number(p, text_, *next_);
            if (!p) return nullptr;
            ++next_;
            if (p == text_.end || *p != ',') break;
            const char* following = p + 1;
            if (following < text_.end && *following == ' ') ++following;
            if (following == text_.end || !(is_digit(*following) || *following == '-')) break;
            p = following;
        }
        return shape.add_numbers(static_cast<Py_ssize_t>(count() - before)) ? p : nullptr;
    }

    bool grow() {
        const std::size_t used = count();
        if (!output_.grow()) return false;
        place(used);
        return true;
    }

    void place(std::size_t used) {
        first_ = static_cast<Number*>(output_.begin());
        next_ = first_ + used;
        stop_ = first_ + output_.capacity();
    }

    const Text text_;
    Output& output_;
    Number* first_;
    Number* next_;
    Number* stop_;
};

// ---------------------------------------------------------------------------------------------------------- documents

// Behind the string whose opening quote stands before `p`, or the end of a text in which it does not end.
inline const char* skip_string(const char* p, const char* end) {
    for (; p < end && *p != '"'; ++p) {
        if (*p == '\\' && ++p == end) return end;
    }
    return p < end ? p + 1 : end;
}

// The greatest nesting of brackets outside strings; a string that does not end hides the rest.
Py_ssize_t deepest(const char* p, const char* const end) {
    Py_ssize_t depth = 0, most = 0;
    while (p < end) {
        switch (*p++) {
            case '[':
            case '{':
                if (++depth > most) most = depth;
                break;
            case ']':
            case '}': --depth; break;
            case '"': p = skip_string(p, end); break;
            default: break;
        }
    }
    return most;
}

inline const char* skip_digits(const char* p, const char* end) {
    while (p < end && is_digit(*p)) ++p;
    return p;
}

// A number that every reader of JSON takes for a double at least -> behind it, or null: neither long nor extreme.
inline const char* skip_number(const char* p, const char* end) {
    constexpr std::ptrdiff_t most_digits = 200, most_of_exponent = 2;
    const char* const token = p;
    if (p < end && *p == '-') ++p;
    if (p == end || !is_digit(*p)) return nullptr;
    p = *p == '0' ? p + 1 : skip_digits(p, end);
    if (p < end && *p == '.') {
        const char* const fraction = p + 1;
        p = skip_digits(fraction, end);
        if (p == fraction) return nullptr;
    }
    if (p - token > most_digits) return nullptr;
    if (p < end && (*p == 'e' || *p == 'E')) {
        ++p;
        if (p < end && (*p == '-' || *p == '+')) ++p;
        const char* const exponent = p;
        p = skip_digits(p, end);
        if (p == exponent || p - exponent > most_of_exponent) return nullptr;
    }
    return p;
}

// The array at `p` of numbers, or of such arrays, none of them empty -> behind it, or null; `seen` is then how far it
// might have been one.
const char* skip_array(const char* p, const char* end, const char*& seen) {
    int depth = 0;
    for (;;) {
        p = skip_space(p, end);
        seen = p;
        if (p == end) return nullptr;
        if (*p == '[') {
            if (++depth > MAX_DIMENSIONS) return nullptr;
            ++p;
            continue;
        }
        p = skip_number(p, end);
        if (!p) return nullptr;
        for (p = skip_space(p, end); p < end && *p == ']'; p = skip_space(p, end)) {
            ++p;
            if (!--depth) return p;
        }
        seen = p;
        if (p == end || *p != ',') return nullptr;
        ++p;
    }
}

// Where a text has arrays of nothing but numbers that are long: no more of them than there is room for.
struct LongArrays {
    struct Place {
        Py_ssize_t begin;
        Py_ssize_t end;
    };

    explicit LongArrays(std::size_t most) : places(static_cast<Place*>(std::malloc((most + 1) * sizeof(Place)))) {}
    ~LongArrays() { std::free(places); }
    LongArrays(const LongArrays&) = delete;
    LongArrays& operator=(const LongArrays&) = delete;

    // `least` bytes are long, so the text has room for fewer than one more than its size by that. What has been looked
    // at as a part of an array that was none is not looked at again.
    void find(Text text, Py_ssize_t least) {
        const char* seen = text.begin;
        for (const char* p = text.begin; p < text.end;) {
            if (*p == '"') {
                p = skip_string(p + 1, text.end);
            } else if (*p != '[' || p < seen) {
                ++p;
            } else if (const char* const behind = skip_array(p, text.end, seen)) {
                if (behind - p >= least) places[count++] = {p - text.begin, behind - text.begin};
                p = behind;
            } else {
                ++p;
            }
        }
    }

    Place* const places;
    std::size_t count = 0;
};

// --------------------------------------------------------------------------------------------------------------- text
//
// Six significant digits if they read back as the same number, else as many as always do: 9 for float, 17 for double.
//
// All of them are found first, as a whole number: of a float by one multiplication in double, which is less than 3e-7
// off; of a double, and of a float where that may decide, in 128 bits. There the number is m * 2^e, m with its top bit
// set; m times POWERS[q] is known to a little over 2^64 units of its 128 bits, and q is chosen so that its whole part
// has all the digits.
//
// Six of them are the same number rounded once more, and read back only if they lie next to it: within half the
// distance to the next float or double. That are fewer than NEAR units of the last digit, so most numbers need no trial.
// Where what is not known may decide, std::to_chars, which is exact, writes the text.

constexpr int WIDEST = 24;  // -1.2345678901234567e-308
constexpr int OVERRUN = 48;  // bytes behind a number that may be written to, and mean nothing
constexpr int FEW_DIGITS = 6;
constexpr uint128_t UNKNOWN = (uint128_t{1} << 62) + (uint128_t{1} << 58);  // in units of the product without two bits

template <class Float>
constexpr int ENOUGH_DIGITS = sizeof(Float) == 4 ? 9 : 17;

template <class Float>
constexpr uint64_t NEAR = sizeof(Float) == 4 ? 64 : 16;  // 10^9 / 2^24 and 10^17 / 2^53, and some

// The doubles nearest to powers of ten; up to 10^22 they are these powers.
constexpr int EXACT_TEN = 22, MOST_TEN = 45;
constexpr std::array<double, 2 * MOST_TEN + 1> DOUBLE_TENS = {
    1e-45, 1e-44, 1e-43, 1e-42, 1e-41, 1e-40, 1e-39, 1e-38, 1e-37, 1e-36, 1e-35, 1e-34, 1e-33, 1e-32, 1e-31, 1e-30,
    1e-29, 1e-28, 1e-27, 1e-26, 1e-25, 1e-24, 1e-23, 1e-22, 1e-21, 1e-20, 1e-19, 1e-18, 1e-17, 1e-16, 1e-15, 1e-14,
    1e-13, 1e-12, 1e-11, 1e-10, 1e-9,  1e-8,  1e-7,  1e-6,  1e-5,  1e-4,  1e-3,  1e-2,  1e-1,  1e0,   1e1,   1e2,
    1e3,   1e4,   1e5,   1e6,   1e7,   1e8,   1e9,   1e10,  1e11,  1e12,  1e13,  1e14,  1e15,  1e16,  1e17,  1e18,
    1e19,  1e20,  1e21,  1e22,  1e23,  1e24,  1e25,  1e26,  1e27,  1e28,  1e29,  1e30,  1e31,  1e32,  1e33,  1e34,
    1e35,  1e36,  1e37,  1e38,  1e39,  1e40,  1e41,  1e42,  1e43,  1e44,  1e45};

inline double double_ten(int exponent) { return DOUBLE_TENS[static_cast<std::size_t>(exponent + MOST_TEN)]; }

// A decimal number of which `count` digits are wanted: `digits` has them and zeros up to 9 or 17, the first one standing
// for itself times 10^exponent.
struct Decimal {
    uint64_t digits;
    int count;
    int exponent;
};

// Whether six digits, the first for itself times 10^exponent, are read back as the number that they were made of;
// `unsure` if that cannot be told here.
template <class Float>
inline bool reads_back(uint64_t six, int exponent, Float value, bool& unsure) {
    const int power = exponent - (FEW_DIGITS - 1);
    double back;
    unsure = false;
    if (power <= 0 && power >= -EXACT_TEN) {
        back = static_cast<double>(six) / double_ten(-power);  // of two exact doubles: the nearest to the number
    } else {
        unsure = !nearest_double(six, power, false, back);
    }
    return !unsure && static_cast<Float>(back) == value;
}

// All digits of a number, `whole`, to what is to be written; false if that cannot be told here. `up`: the next whole
// number is nearer. The last digit of `whole` may be one too small where it ends in nines or zeros.
template <class Float>
inline bool choose(uint64_t whole, bool up, int exponent, Float value, Decimal& decimal) {
    constexpr int count = ENOUGH_DIGITS<Float>;
    constexpr uint64_t most = TENS[count], part = TENS[count - FEW_DIGITS];
    const uint64_t below = whole % part;
    if (below < NEAR<Float> || below > part - NEAR<Float>) {
        uint64_t six = whole / part + (below >= part / 2);
        int first = exponent;
        if (six == TENS[FEW_DIGITS]) {
            six /= 10;
            ++first;
        }
        bool unsure;
        if (reads_back(six, first, value, unsure)) {
            decimal = {six * part, FEW_DIGITS, first};
            return true;
        }
        if (unsure) return false;
    }
    decimal = {whole + up, count, exponent};
    if (decimal.digits == most) decimal = {most / 10, count, exponent + 1};
    return true;
}

// A positive number -> its decimal; false if that cannot be told here.
template <class Float>
bool to_decimal(Float value, Decimal& decimal) {
    constexpr int count = ENOUGH_DIGITS<Float>;
    constexpr uint64_t most = TENS[count];
    uint64_t pattern;
    const double wide = value;
    std::memcpy(&pattern, &wide, sizeof pattern);
    const int power_of_two = static_cast<int>(pattern >> 52) - 1023;
    if (power_of_two < (sizeof(Float) == 4 ? -126 : -900)) return false;  // subnormal: its neighbours are far; or nearly
    const uint64_t m = pattern << 11 | uint64_t{1} << 63;

    int exponent = (power_of_two * 315653) >> 20;  // the logarithm to base 10, rounded down: right or 1 too small
    uint128_t product;
    int shift;
    for (;; ++exponent) {
        const Power power = POWERS[static_cast<std::size_t>(count - 1 - exponent - LEAST_POWER)];
        product = uint128_t{m} * power.bits >> 2;
        shift = 61 - power_of_two - power.exponent;
        if (product >> shift < most) break;
    }
    const uint128_t one = uint128_t{1} << shift;
    const auto whole = static_cast<uint64_t>(product >> shift);
    const uint128_t rest = product & (one - 1);
    if (whole < most / 10 || (rest <= one / 2 && rest + UNKNOWN >= one / 2)) return false;
    return choose(whole, rest > one / 2, exponent, value, decimal);
}

// The same for a float, by one multiplication in double.
inline bool to_decimal_quickly(float value, Decimal& decimal) {
    std::uint32_t pattern;
    std::memcpy(&pattern, &value, sizeof pattern);
    const int power_of_two = static_cast<int>(pattern >> 23) - 127;
    if (power_of_two < -120) return false;  // beyond the table
    const double wide = value;
    int exponent = (power_of_two * 315653) >> 20;  // right or 1 too small
    exponent += wide >= double_ten(exponent + 1);
    const double product = wide * double_ten(8 - exponent);
    const auto whole = static_cast<int64_t>(product);
    const double rest = product - static_cast<double>(whole);
    constexpr double unknown = 1e-6;
    if (whole < 100'000'000 || whole > 999'999'999 || std::fabs(rest - 0.5) < unknown) return false;
    return choose(static_cast<uint64_t>(whole), rest > 0.5, exponent, value, decimal);
}

inline bool find_decimal(float value, Decimal& decimal) {
    return to_decimal_quickly(value, decimal) || to_decimal(value, decimal);
}

inline bool find_decimal(double value, Decimal& decimal) { return to_decimal(value, decimal); }

// A number of eight digits -> these, one a byte, the first in the lowest byte: halved, halved again, and again.
inline uint64_t eight_digits(uint64_t number) {
    const uint64_t fours = number / 10'000 | number % 10'000 << 32;
    uint64_t high = fours * 10486 >> 20 & 0x0000007F0000007F;  // a hundredth
    const uint64_t pairs = (fours - high * 100) << 16 | high;
    high = pairs * 103 >> 10 & 0x000F000F000F000F;  // a tenth
    return (pairs - high * 10) << 8 | high;
}

// The digits of a whole number that has 9 or 17 of them. `count` leaves zeros at the end out; `first_eight` has them as
// text, the first in the lowest byte; `write` writes them all, and up to seven more zeros.
template <int most>
class Digits;

#if defined(__SSE2__)

// Two numbers of eight digits each -> these, one a byte, found as eight_digits does it.
inline __m128i sixteen_digits(uint64_t high, uint64_t low) {
    const __m128i eights = _mm_set_epi64x(static_cast<int64_t>(low), static_cast<int64_t>(high));
    const __m128i quotients = _mm_srli_epi64(_mm_mul_epu32(eights, _mm_set1_epi64x(0xD1B71759)), 45);
    const __m128i rests = _mm_sub_epi64(eights, _mm_mul_epu32(quotients, _mm_set1_epi64x(10'000)));
    const __m128i fours = _mm_or_si128(quotients, _mm_slli_epi64(rests, 32));
    const __m128i hundreds = _mm_srli_epi16(_mm_mulhi_epu16(fours, _mm_set1_epi16(5243)), 3);
    const __m128i below = _mm_sub_epi16(fours, _mm_mullo_epi16(hundreds, _mm_set1_epi16(100)));
    const __m128i pairs = _mm_or_si128(hundreds, _mm_slli_epi32(below, 16));
    const __m128i tens = _mm_srli_epi16(_mm_mullo_epi16(pairs, _mm_set1_epi16(103)), 10);
    const __m128i ones = _mm_sub_epi16(pairs, _mm_mullo_epi16(tens, _mm_set1_epi16(10)));
    return _mm_or_si128(tens, _mm_slli_epi16(ones, 8));
}

// The last of sixteen that is no zero, from 1 on; 0 if all are.
inline int without_zeros(__m128i digits) {
    const int zeros = _mm_movemask_epi8(_mm_cmpeq_epi8(digits, _mm_setzero_si128()));
    return 31 - __builtin_clz((static_cast<unsigned>(zeros) ^ 0xFFFF) << 1 | 1);
}

inline uint64_t first_half(__m128i digits) {
    uint64_t half;
    _mm_storel_epi64(reinterpret_cast<__m128i*>(&half), digits);
    return half;
}

inline void write_sixteen(char* out, __m128i digits) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm_or_si128(digits, _mm_set1_epi8('0')));
}

template <>
class Digits<9> {
  public:
    explicit Digits(uint64_t number)
        : digits_(_mm_srli_si128(sixteen_digits(number / TENS[8], number % TENS[8]), 7)) {}

    int count() const { return without_zeros(digits_); }
    uint64_t first_eight() const { return first_half(digits_) | 0x3030303030303030; }
    void write(char* out) const { write_sixteen(out, digits_); }

  private:
    const __m128i digits_;
};

template <>
class Digits<17> {
  public:
    explicit Digits(uint64_t number)
        : first_(number / TENS[16]), others_(sixteen_digits(number / TENS[8] % TENS[8], number % TENS[8])) {}

    int count() const { return without_zeros(others_) + 1; }
    uint64_t first_eight() const { return (first_half(others_) << 8 | first_) | 0x3030303030303030; }

    void write(char* out) const {
        *out = static_cast<char>('0' + first_);
        write_sixteen(out + 1, others_);
    }

  private:
    const uint64_t first_;
    const __m128i others_;
};

#else

template <int most>
class Digits {
  public:
    explicit Digits(uint64_t number)
        : first_(number / TENS[most - 1]), middle_(most == 17 ? eight_digits(number / TENS[8] % TENS[8]) : 0),
          last_(eight_digits(number % TENS[8])) {}

    int count() const {
        if (last_) return most - __builtin_clzll(last_) / 8;
        return middle_ ? most - 8 - __builtin_clzll(middle_) / 8 : 1;
    }

    uint64_t first_eight() const { return ((most == 17 ? middle_ : last_) << 8 | first_) | 0x3030303030303030; }

    void write(char* out) const {
        *out++ = static_cast<char>('0' + first_);
        if constexpr (most == 17) out = write_eight(out, middle_);
        write_eight(out, last_);
    }

  private:
    static char* write_eight(char* out, uint64_t eight) {
        eight |= 0x3030303030303030;
        std::memcpy(out, &eight, sizeof eight);
        return out + sizeof eight;
    }

    const uint64_t first_;
    const uint64_t middle_;
    const uint64_t last_;
};

#endif

// How the first eight bytes of a number without exponent follow from its first eight digits: some of these, then what
// is constant, then the others, moved.
struct Layout {
    uint64_t before;
    uint64_t constant;
    uint64_t behind;
    int move;  // bits
    int zeros;  // between the point and the first digit, and the one before the point
    int least;  // digits that are written
};

constexpr int LEAST_LAID = -6, MOST_LAID = 6;

constexpr std::array<Layout, MOST_LAID - LEAST_LAID + 1> make_layouts() {
    std::array<Layout, MOST_LAID - LEAST_LAID + 1> layouts{};
    for (int exponent = LEAST_LAID; exponent <= MOST_LAID; ++exponent) {
        Layout& layout = layouts[static_cast<std::size_t>(exponent - LEAST_LAID)];
        if (exponent < 0) {
            const int move = 8 * (1 - exponent);
            const uint64_t zeros = 0x3030303030302E30;  // 0.000000
            layout = {0, zeros & ((uint64_t{1} << move) - 1), ~uint64_t{0}, move, -exponent, 0};
        } else {
            const int whole = 8 * (exponent + 1);
            const uint64_t before = (uint64_t{1} << whole) - 1;
            layout = {before, uint64_t{'.'} << whole, ~before << 8, 8, 0, exponent + 2};
        }
    }
    return layouts;
}

constexpr auto LAYOUTS = make_layouts();

// At least one digit before and behind the point -> behind the last that is not 0. The exponent is from -6 to most - 1.
// Some more bytes are written.
template <int most>
inline char* write_fixed(char* out, const Digits<most>& digits, int exponent) {
    const int count = digits.count();
    if (exponent <= MOST_LAID) {  // without more branches: exponents are hard to foretell
        const Layout& layout = LAYOUTS[static_cast<std::size_t>(exponent - LEAST_LAID)];
        const uint64_t eight = digits.first_eight();
        const uint64_t begin = (eight & layout.before) | layout.constant | ((eight << layout.move) & layout.behind);
        char* const tail = out + 1 + layout.zeros;
        digits.write(tail);
        std::memcpy(out, &begin, sizeof begin);
        return tail + (count > layout.least ? count : layout.least);
    }
    const int whole = exponent + 1;
    out[most + 1] = '0';
    digits.write(out + 1);
    for (int at = 0; at < whole; ++at) out[at] = out[at + 1];
    out[whole] = '.';
    return out + 1 + (count > whole ? count : whole + 1);
}

// In `least` digits or more.
inline char* write_exponent(char* out, int exponent, int least) {
    *out++ = 'e';
    *out++ = exponent < 0 ? '-' : '+';
    const int size = exponent < 0 ? -exponent : exponent;
    if (size >= 100) *out++ = static_cast<char>('0' + size / 100);
    if (size >= 10 || least > 1) *out++ = static_cast<char>('0' + size / 10 % 10);
    *out++ = static_cast<char>('0' + size % 10);
    return out;
}

// 1.5e-07, 1e+16, the exponent in `least` digits or more; up to OVERRUN bytes are written behind what counts.
template <int most>
inline char* write_scientific(char* out, const Digits<most>& digits, int exponent, int least = 2) {
    const int count = digits.count();
    digits.write(out + 1);
    out[0] = out[1];
    out[1] = '.';
    return write_exponent(out + count + (count > 1), exponent, least);
}

// As %g writes it, and with a point in any case. Up to OVERRUN bytes are written behind what counts.
template <int most>
inline char* write_decimal(char* out, const Decimal& decimal) {
    const Digits<most> digits(decimal.digits);
    const int exponent = decimal.exponent;
    if (exponent >= -4 && exponent < decimal.count) return write_fixed(out, digits, exponent);
    return write_scientific(out, digits, exponent);
}

template <class Float>
char* write_exactly(char* out, Float value) {
    char* end = std::to_chars(out, out + WIDEST, value, std::chars_format::general, FEW_DIGITS).ptr;
    double back = 0;
    const auto read = std::from_chars(out, end, back);
    if (read.ec != std::errc() || static_cast<Float>(back) != value) {
        end = std::to_chars(out, out + WIDEST, value, std::chars_format::general, ENOUGH_DIGITS<Float>).ptr;
    }
    for (const char* at = out; at < end; ++at) {
        if (*at == '.' || *at == 'e') return end;
    }
    *end++ = '.';
    *end++ = '0';
    return end;
}

template <std::size_t size>
char* write_word(char* out, const char (&word)[size]) {
    std::memcpy(out, word, size - 1);
    return out + (size - 1);
}

// At most WIDEST bytes that count -> behind them.
template <class Float>
inline char* write_number(char* out, Float value) {
    if (std::isnan(value)) return write_word(out, "NaN");
    *out = '-';  // without a branch: signs are hard to foretell
    out += std::signbit(value);
    value = std::fabs(value);
    if (std::isinf(value)) return write_word(out, "Infinity");
    if (value == 0) return write_word(out, "0.0");
    Decimal decimal;
    return find_decimal(value, decimal) ? write_decimal<ENOUGH_DIGITS<Float>>(out, decimal) : write_exactly(out, value);
}

// Rows of numbers written into one piece of memory, and where each row ends.
class Rows {
  public:
    Rows(std::size_t numbers, std::size_t columns, const char* between, std::size_t width)
        : rows_(numbers / columns), columns_(columns), between_(between), width_(width),
          text_(static_cast<char*>(std::malloc(numbers * (WIDEST + 2 + width) + OVERRUN))),
          ends_(static_cast<char**>(std::malloc((rows_ + 1) * sizeof(char*)))) {}
    ~Rows() {
        std::free(text_);
        std::free(ends_);
    }
    Rows(const Rows&) = delete;
    Rows& operator=(const Rows&) = delete;

    bool failed() const { return !text_ || !ends_; }

    template <class Float>
    void write(const char* numbers) {
        char* out = text_;
        for (std::size_t row = 0; row < rows_; ++row) {
            for (std::size_t column = 0; column < columns_; ++column, numbers += sizeof(Float)) {
                if (column) {
                    std::memcpy(out, between_, width_);
                    out += width_;
                }
                Float value;
                std::memcpy(&value, numbers, sizeof value);
                out = write_number(out, value);
            }
            ends_[row] = out;
        }
    }

    PyObject* list() const {
        return make_list(rows_, [this](std::size_t row) {
            const char* const begin = row ? ends_[row - 1] : text_;
            return PyUnicode_FromStringAndSize(begin, ends_[row] - begin);
        });
    }

  private:
    const std::size_t rows_;
    const std::size_t columns_;
    const char* const between_;
    const std::size_t width_;
    char* const text_;
    char** const ends_;
};

// ------------------------------------------------------------------------------- float32 as text that reads back as it

// Nine significant digits are known to half a unit of the ninth, 5e-9 of the number at most; the nearest other float32
// is 6e-8 away, so a reader that rounds to nearest finds the number again, and one multiplication in double, 1e-16 off,
// is exact enough. Trailing zeros are left out; what is very small or large is written by std::to_chars.

constexpr int BRIEF_WIDEST = 28;
constexpr float LEAST_BRIEF = 1e-5F, MOST_BRIEF = 1e8F;

// 10^8 <= result < 10^9, and the exponent of its first digit.
uint64_t nine_digits(double value, int& exponent) {
    exponent = 0;
    if (value >= 1) {
        while (value >= double_ten(exponent + 1)) ++exponent;
    } else {
        while (value * double_ten(-exponent) < 1) --exponent;
    }
    const auto digits = static_cast<uint64_t>(value * double_ten(8 - exponent) + 0.5);
    if (digits < 1'000'000'000) return digits;
    ++exponent;
    return 100'000'000;
}

// At most BRIEF_WIDEST bytes -> behind them.
char* write_brief(char* out, float value) {
    if (std::isnan(value)) return write_word(out, "NaN");
    *out = '-';
    out += std::signbit(value);
    value = std::fabs(value);
    if (std::isinf(value)) return write_word(out, "Infinity");
    if (value == 0) return write_word(out, "0.0");
    if (value < LEAST_BRIEF || value >= MOST_BRIEF) {
        return std::to_chars(out, out + BRIEF_WIDEST - 1, value, std::chars_format::scientific).ptr;
    }
    int exponent;
    const Digits<9> digits(nine_digits(value, exponent));
    return write_fixed(out, digits, exponent);
}

PyObject* format_all(const Py_buffer& numbers) {
    const auto bytes = static_cast<std::size_t>(numbers.len);
    if (bytes % sizeof(float)) {
        PyErr_SetString(PyExc_ValueError, "not float32");
        return nullptr;
    }
    const std::size_t count = bytes / sizeof(float);
    char* const text = static_cast<char*>(std::malloc(count * (BRIEF_WIDEST + 1) + 2));
    if (!text) return PyErr_NoMemory();
    PyThreadState* const saved = numbers.len >= WORTH_A_LOCK ? PyEval_SaveThread() : nullptr;
    const char* from = static_cast<const char*>(numbers.buf);
    char* out = text;
    *out++ = '[';
    for (std::size_t at = 0; at < count; ++at, from += sizeof(float)) {
        if (at) *out++ = ',';
        float value;
        std::memcpy(&value, from, sizeof value);
        out = write_brief(out, value);
    }
    *out++ = ']';
    if (saved) PyEval_RestoreThread(saved);
    PyObject* const result = PyBytes_FromStringAndSize(text, out - text);
    std::free(text);
    return result;
}

// --------------------------------------------------------------------------------- the shortest text, as Python has it
//
// Of all decimals that a reader rounds to the number, c * 2^q, those with the fewest digits, and of these the nearest:
// half of the distance to each neighbour is open to choice, 2^q in all. With 10^k the largest power of ten that is not
// above 2^q, two multiples of 10^(k+1) never lie there, and one multiple of 10^k at least does. So it is the one of the
// former, or else the nearest of the latter, the even one of two.
//
// The number in units of 10^k is c * POWERS[-k], and half a distance POWERS[-k] itself where c was doubled. Of both, 60
// bits behind the point are kept. That is exact up to 10^25, as 5^25 has 59 bits; beyond, both are a little too low,
// and where that may decide, std::to_chars, which is exact, finds the digits.

constexpr int MOST_EXACT_POWER = 25;
constexpr int POINT = 60;
constexpr int LEAST_FIXED = -4, MOST_FIXED = 15;  // exponents that Python writes as zeros

template <class Float>
constexpr int MANTISSA_BITS = sizeof(Float) == 4 ? 23 : 52;

// The exponent of the largest power of ten that is not above 2^q, |q| up to 2620.
inline int floor_log10(int q) { return (q * 315653) >> 20; }

// A decimal with 9 or 17 digits, the last ones zeros where fewer do; the first stands for itself times 10^exponent.
struct Shortest {
    uint64_t digits;
    int exponent;
};

// c * 2^q in units of 10^k: `whole` and, in 2^-POINT, `rest`; half of 2^q is `half` 2^-POINT.
struct Scaled {
    uint64_t whole;
    uint64_t rest;
    uint64_t half;
    uint64_t unknown;  // what whole and rest, or half, may be too low by, in 2^-POINT
};

inline Scaled scale(uint64_t c, int q, int k) {
    const Power power = POWERS[static_cast<std::size_t>(-k - LEAST_POWER)];
    const int left = 63 + q + power.exponent;  // 0 to 3, as 1 <= 2^q / 10^k < 10
    const uint64_t doubled = c << (left + 1);  // up to 57 bits
    const uint128_t product = uint128_t{doubled} * power.bits;
    const bool exact = k <= 0 && -k <= MOST_EXACT_POWER;
    return {static_cast<uint64_t>(product >> 64), static_cast<uint64_t>(product) >> (64 - POINT),
            power.bits >> (64 - POINT - left), exact ? 0 : (doubled >> (64 - POINT - 1)) + 2};
}

// Whether two values that are not known better than this may be equal or the other way round.
inline bool may_decide(uint64_t one, uint64_t other, uint64_t unknown) {
    return (one > other ? one - other : other - one) <= unknown + 2;
}

// Without a branch, as what is asked here is hard to foretell.
inline uint64_t either(bool first, uint64_t one, uint64_t other) {
    return other ^ ((one ^ other) & (0 - uint64_t{first}));
}

// A positive number -> its shortest decimal; false if that cannot be told here.
template <class Float>
inline bool to_shortest(Float value, Shortest& shortest) {
    constexpr int bits = MANTISSA_BITS<Float>, most = ENOUGH_DIGITS<Float>;
    constexpr uint64_t implicit = uint64_t{1} << bits, unit = uint64_t{1} << POINT;
    std::conditional_t<sizeof(Float) == 4, std::uint32_t, uint64_t> pattern;
    std::memcpy(&pattern, &value, sizeof pattern);
    const uint64_t fraction = pattern & (implicit - 1);
    const int biased = static_cast<int>(pattern >> bits);
    const int q = biased - (sizeof(Float) == 4 ? 127 : 1023) - bits;
    const int k = floor_log10(q);
    if (!biased || -k > MOST_POWER) return false;  // subnormal, or nearly

    const auto [whole, rest, full_half, unknown] = scale(fraction | implicit, q, k);
    const uint64_t tens = whole / 10 * 10;
    const uint64_t below = (whole - tens) << POINT | rest;  // from that many tens to the number
    const uint64_t above = 10 * unit - below;
    const uint64_t half = fraction ? full_half : full_half / 2;  // a power of two's lower neighbour is only half as far
    const bool odd = fraction & 1;  // then a reader rounds what lies in the middle to the neighbours
    const bool is_below = below + odd <= half, is_above = above + odd <= half;
    if (!fraction && !is_below && !is_above) return false;
    if (unknown && (may_decide(below, half, unknown) || may_decide(above, half, unknown) ||
                    may_decide(rest, unit / 2, unknown))) {
        return false;
    }
    const bool up = rest + (whole & 1) > unit / 2;
    // There are 7 to 9 digits, or 16 or 17.
    const uint64_t digits = either(is_below || is_above, tens + (is_above ? 10 : 0), whole + up);
    int missing = digits < TENS[most - 1];
    if (sizeof(Float) == 4) missing += digits < TENS[most - 2];
    shortest = {digits * TENS[static_cast<std::size_t>(missing)], k + most - 1 - missing};
    return true;
}

// The same for all positive numbers.
template <class Float>
Shortest to_shortest_exactly(Float value) {
    char text[WIDEST + OVERRUN];
    const char* const end = std::to_chars(text, text + sizeof text, value, std::chars_format::scientific).ptr;
    Shortest shortest{0, 0};
    int left = ENOUGH_DIGITS<Float>;
    const char* at = text;
    for (; *at != 'e'; ++at) {
        if (*at == '.') continue;
        shortest.digits = shortest.digits * 10 + static_cast<uint64_t>(*at - '0');
        --left;
    }
    shortest.digits *= TENS[static_cast<std::size_t>(left)];
    for (const char* digit = at + 2; digit < end; ++digit) shortest.exponent = shortest.exponent * 10 + (*digit - '0');
    if (at[1] == '-') shortest.exponent = -shortest.exponent;
    return shortest;
}

constexpr int NO_DIGITS = 1000;  // the exponent of 0 and of what is not finite

// Of any number, without its sign.
template <class Float>
inline Shortest find_shortest(Float value) {
    value = std::fabs(value);
    if (!(value > 0 && value <= std::numeric_limits<Float>::max())) return {0, NO_DIGITS};
    Shortest shortest;
    return to_shortest(value, shortest) ? shortest : to_shortest_exactly(value);
}

// What is not finite is a JSON string.
template <class Float>
char* write_special(char* out, Float value) {
    if (std::isnan(value)) return write_word(out, "\"NaN\"");
    if (value == 0) return std::signbit(value) ? write_word(out, "-0.0") : write_word(out, "0.0");
    return value > 0 ? write_word(out, "\"Infinity\"") : write_word(out, "\"-Infinity\"");
}

// A number of more whole digits than are known: zeros stand for the others.
template <int most>
inline char* write_long(char* out, const Digits<most>& digits, int exponent) {
    digits.write(out);
    std::memset(out + most, '0', static_cast<std::size_t>(exponent + 3 - most));
    out[exponent + 1] = '.';
    return out + exponent + 3;
}

// At most WIDEST bytes that count -> behind them.
template <class Float>
inline char* write_python(char* out, Float value, const Shortest& shortest) {
    constexpr int most = ENOUGH_DIGITS<Float>;
    const int exponent = shortest.exponent;
    if (exponent == NO_DIGITS) return write_special(out, value);
    *out = '-';
    out += std::signbit(value);
    const Digits<most> digits(shortest.digits);
    if (exponent >= LEAST_FIXED && exponent < most && exponent <= MOST_FIXED) return write_fixed(out, digits, exponent);
    if (exponent < LEAST_FIXED || exponent > MOST_FIXED) return write_scientific(out, digits, exponent);
    return write_long(out, digits, exponent);
}

// What stands between two numbers: seam 0, or at the end of some innermost arrays the seam of that many.
struct Seams {
    static constexpr std::size_t AT_ONCE = 16;

    struct Seam {
        std::size_t every;  // numbers
        const char* text;
        std::size_t width;
        char padded[AT_ONCE];
    };

    std::size_t count = 0;
    Seam seams[MAX_DIMENSIONS];

    void add(std::size_t every, const char* text, std::size_t width) {
        Seam& seam = seams[count++];
        seam = {every, text, width, {}};
        if (width <= AT_ONCE) std::memcpy(seam.padded, text, width);
    }

    // All that stands between so many numbers.
    std::size_t widths(std::size_t numbers) const {
        std::size_t sum = 0;
        for (std::size_t at = 0; at < count; ++at) sum += numbers / seams[at].every * seams[at].width;
        return sum;
    }

    // Up to AT_ONCE bytes are written behind what counts.
    static char* write(char* out, const Seam& seam) {
        if (seam.width <= AT_ONCE) {
            std::memcpy(out, seam.padded, AT_ONCE);
        } else {
            std::memcpy(out, seam.text, seam.width);
        }
        return out + seam.width;
    }

    // The widest that fits behind the first so many numbers, where a row ends.
    const Seam& behind(std::size_t numbers) const {
        std::size_t at = 1;
        while (at + 1 < count && numbers % seams[at + 1].every == 0) ++at;
        return seams[at];
    }
};

// A row of floats read as Stored and written as Float. The digits of several are found before any of them is written:
// of two short loops a processor does more turns at once than of a long one.
template <class Stored, class Float>
char* write_floats(char* out, const char* from, std::size_t count, const Seams::Seam& seam) {
    constexpr std::size_t several = 32;
    Float values[several];
    Shortest found[several];
    for (std::size_t done = 0; done < count; done += several) {
        const std::size_t some = count - done < several ? count - done : several;
        for (std::size_t at = 0; at < some; ++at, from += sizeof(Stored)) {
            Stored value;
            std::memcpy(&value, from, sizeof value);
            values[at] = static_cast<Float>(value);
            found[at] = find_shortest(values[at]);
        }
        for (std::size_t at = 0; at < some; ++at) {
            if (done + at) out = Seams::write(out, seam);
            out = write_python(out, values[at], found[at]);
        }
    }
    return out;
}

template <class Integer>
char* write_integers(char* out, const char* from, std::size_t count, const Seams::Seam& seam) {
    for (std::size_t at = 0; at < count; ++at, from += sizeof(Integer)) {
        if (at) out = Seams::write(out, seam);
        Integer value;
        std::memcpy(&value, from, sizeof value);
        out = std::to_chars(out, out + WIDEST, int64_t{value}).ptr;
    }
    return out;
}

struct NumberKind {
    char name;
    std::size_t itemsize;
    char* (*write_row)(char* out, const char* from, std::size_t count, const Seams::Seam& seam);
};

constexpr NumberKind NUMBER_KINDS[] = {
    {'f', 4, write_floats<float, float>},     {'d', 8, write_floats<double, double>},
    {'w', 4, write_floats<float, double>},    {'b', 1, write_integers<std::int8_t>},
    {'B', 1, write_integers<std::uint8_t>},   {'h', 2, write_integers<std::int16_t>},
    {'i', 4, write_integers<std::int32_t>},   {'q', 8, write_integers<int64_t>},
};

char* write_all(char* out, const char* from, std::size_t count, const NumberKind& kind, const Seams& seams) {
    const std::size_t row = seams.count > 1 ? seams.seams[1].every : count;
    for (std::size_t done = 0; done < count; done += row, from += row * kind.itemsize) {
        if (done) out = Seams::write(out, seams.behind(done));
        out = kind.write_row(out, from, row, seams.seams[0]);
    }
    return out;
}

const NumberKind* number_kind(const char* name) {
    for (const NumberKind& kind : NUMBER_KINDS) {
        if (name[0] == kind.name && !name[1]) return &kind;
    }
    return nullptr;
}

// ------------------------------------------------------------------------------------------ the shortest text, as orjson

// At most WIDEST bytes that count -> behind them: 0.000001, 1e-7, 123456790.0; null for what is not finite, or so large
// that orjson's versions differ in it.
template <class Float>
inline char* write_json(char* out, Float value) {
    constexpr int most = ENOUGH_DIGITS<Float>;
    constexpr int least_fixed = sizeof(Float) == 4 ? -6 : -5, most_fixed = sizeof(Float) == 4 ? 12 : 15;
    const Shortest shortest = find_shortest(value);
    const int exponent = shortest.exponent;
    if (exponent == NO_DIGITS && value == 0) return write_special(out, value);
    if (exponent > most_fixed) return nullptr;
    *out = '-';
    out += std::signbit(value);
    const Digits<most> digits(shortest.digits);
    if (exponent >= most) return write_long(out, digits, exponent);
    if (exponent >= least_fixed) return write_fixed(out, digits, exponent);
    return write_scientific(out, digits, exponent, 1);
}

// `before`, an array of the numbers, and `after`; None where write_json has no text for one.
template <class Float>
PyObject* write_array(const Py_buffer& before, const Py_buffer& numbers, const Py_buffer& after) {
    const auto count = static_cast<std::size_t>(numbers.len) / sizeof(Float);
    const auto ahead = static_cast<std::size_t>(before.len), behind = static_cast<std::size_t>(after.len);
    constexpr std::size_t kept = 4096;
    const std::size_t room = ahead + behind + count * (WIDEST + 1) + OVERRUN + 2;
    char there[kept];
    char* const text = room <= kept ? there : static_cast<char*>(std::malloc(room));
    if (!text) return PyErr_NoMemory();
    std::memcpy(text, before.buf, ahead);
    char* out = text + ahead;
    *out++ = '[';
    const char* from = static_cast<const char*>(numbers.buf);
    for (std::size_t at = 0; out && at < count; ++at, from += sizeof(Float)) {
        Float value;
        std::memcpy(&value, from, sizeof value);
        if (at) *out++ = ',';
        out = write_json(out, value);
    }
    PyObject* result;
    if (out) {
        *out++ = ']';
        std::memcpy(out, after.buf, behind);
        result = PyBytes_FromStringAndSize(text, out + behind - text);
    } else {
        result = Py_NewRef(Py_None);
    }
    if (text != there) std::free(text);
    return result;
}

// ------------------------------------------------------------------------------------------------------------- module

template <class Number>
PyObject* scan_as(const char* text, Py_ssize_t size, Py_ssize_t start) {
    const auto left = static_cast<std::size_t>(size - start);
    const std::size_t most = left / 2 + 1;
    Output output(left < 1024 ? most : left / 8, most, sizeof(Number));
    if (output.failed()) return nullptr;
    Scanner<Number> scanner({text, text + size}, output);
    if (size - start >= WORTH_A_LOCK) output.saved = PyEval_SaveThread();
    const char* const end = scanner.read(text + start);
    if (output.saved) PyEval_RestoreThread(output.saved);
    output.saved = nullptr;
    if (output.failed()) return nullptr;
    if (!end) Py_RETURN_NONE;
    PyObject* const numbers = output.take(scanner.count());
    PyObject* const shape = numbers ? scanner.shape.tuple() : nullptr;
    if (!shape) {
        Py_XDECREF(numbers);
        return nullptr;
    }
    return Py_BuildValue("(NNn)", numbers, shape, static_cast<Py_ssize_t>(end - text));
}

PyObject* scan_kind(const Py_buffer& text, Py_ssize_t start, const char* kind) {
    const char* const bytes = static_cast<const char*>(text.buf);
    if (start < 0 || start >= text.len || bytes[start] != '[') Py_RETURN_NONE;
    switch (*kind) {
        case 'f': return scan_as<float>(bytes, text.len, start);
        case 'd': return scan_as<double>(bytes, text.len, start);
        case 'i': return scan_as<int64_t>(bytes, text.len, start);
        case 'u': return scan_as<uint64_t>(bytes, text.len, start);
        default: PyErr_Format(PyExc_ValueError, "no such kind: %s", kind); return nullptr;
    }
}

// The numbers of the array that begins at `begin` and ends where the text does, if they are `count` in at most `most`
// dimensions.
template <class Number>
PyObject* read_all(const char* begin, Text text, std::size_t count, int most) {
    const auto room = static_cast<std::size_t>(text.end - begin) / 2 + 1;
    if (count > room) Py_RETURN_NONE;
    Output output(room, room, sizeof(Number));
    if (output.failed()) return nullptr;
    Scanner<Number> scanner(text, output);
    const char* const end = scanner.read(begin);
    if (output.failed()) return nullptr;
    if (end != text.end || scanner.count() != count || scanner.shape.rank > most) Py_RETURN_NONE;
    return output.take(count);
}

bool is_at(const char* place, const Py_buffer& bytes) {
    return std::memcmp(place, bytes.buf, static_cast<std::size_t>(bytes.len)) == 0;
}

PyObject* read_known(const Py_buffer& text, const Py_buffer& before, const Py_buffer& after, PyObject* const* rest) {
    const char* const kind = PyUnicode_AsUTF8AndSize(rest[0], nullptr);
    const Py_ssize_t count = kind ? PyLong_AsSsize_t(rest[1]) : -1;
    const long most = kind ? PyLong_AsLong(rest[2]) : -1;
    if (PyErr_Occurred()) return nullptr;
    const char* const all = static_cast<const char*>(text.buf);
    const char* const end = all + text.len - after.len;
    const bool is_known = before.len < text.len && after.len < text.len - before.len && text.len < WORTH_A_LOCK &&
                          is_at(all, before) && is_at(end, after);
    const char* const begin = all + before.len;
    if (!is_known || *begin != '[' || count < 1) Py_RETURN_NONE;
    const int dimensions = static_cast<int>(most < 0 ? 0 : most > MAX_DIMENSIONS ? MAX_DIMENSIONS : most);
    const auto numbers = static_cast<std::size_t>(count);
    switch (*kind) {
        case 'f': return read_all<float>(begin, {all, end}, numbers, dimensions);
        case 'd': return read_all<double>(begin, {all, end}, numbers, dimensions);
        case 'i': return read_all<int64_t>(begin, {all, end}, numbers, dimensions);
        case 'u': return read_all<uint64_t>(begin, {all, end}, numbers, dimensions);
        default: PyErr_Format(PyExc_ValueError, "no such kind: %s", kind); return nullptr;
    }
}

PyObject* read_between(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    if (!are_as_many(count, 6, "read_between takes 6 arguments: text, before, after, kind, count, most")) return nullptr;
    return with_bytes(arguments[0], [&](const Py_buffer& text) {
        return with_bytes(arguments[1], [&](const Py_buffer& before) {
            return with_bytes(arguments[2], [&](const Py_buffer& after) {
                return read_known(text, before, after, arguments + 3);
            });
        });
    });
}

PyObject* scan(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    if (!are_as_many(count, 3, "scan takes 3 arguments: text, start, kind")) return nullptr;
    const Py_ssize_t start = PyLong_AsSsize_t(arguments[1]);
    if (start == -1 && PyErr_Occurred()) return nullptr;
    const char* const kind = PyUnicode_AsUTF8AndSize(arguments[2], nullptr);
    if (!kind) return nullptr;
    return with_bytes(arguments[0], [&](const Py_buffer& text) { return scan_kind(text, start, kind); });
}

PyObject* write_between(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    if (!are_as_many(count, 4, "write_between takes 4 arguments: before, numbers, after, kind")) return nullptr;
    const char* const kind = PyUnicode_AsUTF8AndSize(arguments[3], nullptr);
    if (!kind) return nullptr;
    return with_bytes(arguments[0], [&](const Py_buffer& before) {
        return with_bytes(arguments[1], [&](const Py_buffer& numbers) {
            return with_bytes(arguments[2], [&](const Py_buffer& after) -> PyObject* {
                if (numbers.len > WORTH_A_LOCK) Py_RETURN_NONE;
                switch (*kind) {
                    case 'f': return write_array<float>(before, numbers, after);
                    case 'd': return write_array<double>(before, numbers, after);
                    default: PyErr_Format(PyExc_ValueError, "no such kind: %s", kind); return nullptr;
                }
            });
        });
    });
}

PyObject* depth_of(const Py_buffer& text) {
    const char* const begin = static_cast<const char*>(text.buf);
    PyThreadState* const saved = text.len >= WORTH_A_LOCK ? PyEval_SaveThread() : nullptr;
    const Py_ssize_t most = deepest(begin, begin + text.len);
    if (saved) PyEval_RestoreThread(saved);
    return PyLong_FromSsize_t(most);
}

PyObject* depth(PyObject*, PyObject* argument) { return with_bytes(argument, depth_of); }

PyObject* find_in(const Py_buffer& text, Py_ssize_t least) {
    if (least < 2) {
        PyErr_SetString(PyExc_ValueError, "no array is shorter than 2 bytes");
        return nullptr;
    }
    LongArrays found(static_cast<std::size_t>(text.len / least));
    if (!found.places) return PyErr_NoMemory();
    const char* const begin = static_cast<const char*>(text.buf);
    PyThreadState* const saved = text.len >= WORTH_A_LOCK ? PyEval_SaveThread() : nullptr;
    found.find({begin, begin + text.len}, least);
    if (saved) PyEval_RestoreThread(saved);
    return make_list(found.count, [&](std::size_t at) {
        return Py_BuildValue("(nn)", found.places[at].begin, found.places[at].end);
    });
}

PyObject* long_arrays(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    if (!are_as_many(count, 2, "long_arrays takes 2 arguments: text, least")) return nullptr;
    const Py_ssize_t least = PyLong_AsSsize_t(arguments[1]);
    if (least == -1 && PyErr_Occurred()) return nullptr;
    return with_bytes(arguments[0], [&](const Py_buffer& text) { return find_in(text, least); });
}

PyObject* format_buffer(const Py_buffer& numbers, const char* kind, Py_ssize_t columns, PyObject* between) {
    const std::size_t itemsize = *kind == 'f' ? sizeof(float) : *kind == 'd' ? sizeof(double) : 0;
    const auto bytes = static_cast<std::size_t>(numbers.len);
    Py_ssize_t width;
    const char* const text = PyUnicode_AsUTF8AndSize(between, &width);
    if (!text) return nullptr;
    if (!itemsize || columns < 1 || bytes % itemsize || bytes / itemsize % static_cast<std::size_t>(columns)) {
        PyErr_SetString(PyExc_ValueError, "not rows of float32 or float64");
        return nullptr;
    }
    if (width > 4096) {
        PyErr_SetString(PyExc_ValueError, "too much between two numbers");
        return nullptr;
    }
    Rows rows(bytes / itemsize, static_cast<std::size_t>(columns), text, static_cast<std::size_t>(width));
    if (rows.failed()) return PyErr_NoMemory();
    PyThreadState* const saved = numbers.len >= WORTH_A_LOCK ? PyEval_SaveThread() : nullptr;
    const char* const from = static_cast<const char*>(numbers.buf);
    itemsize == sizeof(float) ? rows.write<float>(from) : rows.write<double>(from);
    if (saved) PyEval_RestoreThread(saved);
    return rows.list();
}

PyObject* format_rows(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    if (!are_as_many(count, 4, "format_rows takes 4 arguments: numbers, kind, columns, between")) return nullptr;
    const char* const kind = PyUnicode_AsUTF8AndSize(arguments[1], nullptr);
    if (!kind) return nullptr;
    const Py_ssize_t columns = PyLong_AsSsize_t(arguments[2]);
    if (columns == -1 && PyErr_Occurred()) return nullptr;
    return with_bytes(arguments[0], [&](const Py_buffer& numbers) {
        return format_buffer(numbers, kind, columns, arguments[3]);
    });
}

PyObject* format_floats(PyObject*, PyObject* argument) {
    return with_bytes(argument, format_all);
}

// The seams of numbers in this shape, whose texts live as long as `texts`; false with an exception.
bool read_seams(PyObject* shape, PyObject* texts, std::size_t numbers, Seams& seams) {
    if (!PyTuple_Check(shape) || !PyTuple_Check(texts)) {
        PyErr_SetString(PyExc_TypeError, "shape and seams are tuples");
        return false;
    }
    const Py_ssize_t rank = PyTuple_Size(shape);
    if (rank < 1 || rank > MAX_DIMENSIONS || PyTuple_Size(texts) != rank) {
        PyErr_SetString(PyExc_ValueError, "not as many seams as dimensions");
        return false;
    }
    std::size_t every = 1;
    for (Py_ssize_t level = 0; level < rank; ++level) {
        char* text;
        Py_ssize_t width;
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(texts, level), &text, &width) < 0) return false;
        if (width > 4096) {
            PyErr_SetString(PyExc_ValueError, "too much between two numbers");
            return false;
        }
        seams.add(every, text, static_cast<std::size_t>(width));
        const Py_ssize_t size = PyLong_AsSsize_t(PyTuple_GetItem(shape, rank - 1 - level));
        if (size == -1 && PyErr_Occurred()) return false;
        if (size < 1 || static_cast<std::size_t>(size) > numbers / every) break;
        every *= static_cast<std::size_t>(size);
        if (level == rank - 1 && every == numbers) return true;
    }
    PyErr_SetString(PyExc_ValueError, "not the shape of the numbers");
    return false;
}

PyObject* format_kind(const Py_buffer& numbers, const NumberKind& kind, PyObject* shape, PyObject* texts) {
    const auto bytes = static_cast<std::size_t>(numbers.len);
    const std::size_t count = bytes / kind.itemsize;
    Seams seams;
    if (bytes % kind.itemsize) {
        PyErr_SetString(PyExc_ValueError, "not numbers of this kind");
        return nullptr;
    }
    if (!read_seams(shape, texts, count, seams)) return nullptr;
    const std::size_t most = count * WIDEST + seams.widths(count) + OVERRUN;
    Output output(most, most, 1);
    if (output.failed()) return nullptr;
    char* const begin = static_cast<char*>(output.begin());
    PyThreadState* const saved = numbers.len >= WORTH_A_LOCK ? PyEval_SaveThread() : nullptr;
    const char* const end = write_all(begin, static_cast<const char*>(numbers.buf), count, kind, seams);
    if (saved) PyEval_RestoreThread(saved);
    return output.take(static_cast<std::size_t>(end - begin));
}

PyObject* format_nested(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    if (!are_as_many(count, 4, "format_nested takes 4 arguments: numbers, kind, shape, seams")) return nullptr;
    const char* const name = PyUnicode_AsUTF8AndSize(arguments[1], nullptr);
    if (!name) return nullptr;
    const NumberKind* const kind = number_kind(name);
    if (!kind) {
        PyErr_Format(PyExc_ValueError, "no such kind: %s", name);
        return nullptr;
    }
    return with_bytes(arguments[0], [&](const Py_buffer& numbers) {
        return format_kind(numbers, *kind, arguments[2], arguments[3]);
    });
}

PyMethodDef METHODS[] = {
    {"scan", FAST(scan),
     "scan(text, start, kind) -> (numbers, shape, end), or None for all but a rectangular array of numbers.\n\n"
     "Reads the JSON array whose '[' is text[start]. `kind` is f (float32), d (float64), i (int64) or u (uint64);\n"
     "`numbers` is a bytearray of them, row-major and little-endian, and `end` the offset behind the array."},
    {"read_between", FAST(read_between),
     "read_between(text, before, after, kind, count, most) -> the numbers of an array between two known texts, or None.\n\n"
     "A bytearray as scan's, if the array has `count` numbers in at most `most` dimensions; None, too, of long texts."},
    {"write_between", FAST(write_between),
     "write_between(before, numbers, after, kind) -> a flat JSON array between two texts, as bytes, or None.\n\n"
     "`numbers` is a buffer of float32 (kind f) or float64 (kind d). The fewest digits that read back, laid out as\n"
     "orjson does; None where a number is not finite or above 1e13, and for long arrays."},
    {"long_arrays", FAST(long_arrays),
     "long_arrays(text, least) -> where a JSON text has arrays of nothing but numbers, of `least` bytes and more.\n\n"
     "Offsets of where each begins and ends. Numbers are ordinary ones, arrays as deep as NumPy has dimensions."},
    {"depth", depth, METH_O, "depth(text) -> the greatest nesting of a JSON text's brackets, outside its strings."},
    {"format_rows", FAST(format_rows),
     "format_rows(numbers, kind, columns, between) -> a text per row, its numbers joined by `between`.\n\n"
     "`numbers` is a buffer of float32 (kind f) or float64 (kind d). Six significant digits where they read back as\n"
     "the same number, else 9 or 17; whole numbers end in .0; NaN, Infinity and -Infinity are words."},
    {"format_floats", format_floats, METH_O,
     "format_floats(numbers) -> a flat JSON array as bytes, each number in up to nine digits that read back as it.\n\n"
     "`numbers` is a buffer of float32. Whole numbers end in .0; NaN, Infinity and -Infinity are words."},
    {"format_nested", FAST(format_nested),
     "format_nested(numbers, kind, shape, seams) -> the text of all numbers, row-major, as a bytearray.\n\n"
     "`numbers` is a buffer of what `kind` says: f (float32), d (float64), w (float32, written as the doubles that\n"
     "equal them), b, B, h, i or q (integers, as struct has them); one at least. Floats have Python's text, the\n"
     "fewest digits that read back; those that are not finite are strings. seams[0] stands between two numbers of a\n"
     "row, seams[n] where n innermost arrays end at once, so there are as many as dimensions."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "tensorgate.adapters._native._numbers", "Arrays of numbers in JSON text.", 0, METHODS,
    nullptr, nullptr, nullptr, nullptr,
};

}  // namespace

PyMODINIT_FUNC PyInit__numbers() { return PyModuleDef_Init(&MODULE); }
