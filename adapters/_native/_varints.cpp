// Arrays of protobuf's variable-length integers, without the interpreter lock: what varints.py says, at the speed of the
// machine.
//
// Bounds: `decode` reads no byte behind the last one, which is known to end a number, and writes as many numbers as
// there are such bytes. `encode` measures all numbers before it writes the first.

#include "_extension.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace {

constexpr int LAST_SHIFT = 63;  // of the tenth byte

std::size_t width_of(std::uint64_t number) {
    return static_cast<std::size_t>((63 - __builtin_clzll(number | 1)) / 7 + 1);
}

// A number of the array as 64 bits: a negative one has all the upper bits.
template <typename T>
std::uint64_t load(const char* from) {
    T number;
    std::memcpy(&number, from, sizeof(T));
    return static_cast<std::uint64_t>(static_cast<std::int64_t>(number));
}

template <>
std::uint64_t load<std::uint64_t>(const char* from) {
    std::uint64_t number;
    std::memcpy(&number, from, sizeof(number));
    return number;
}

template <typename T>
std::size_t measure(const char* from, std::size_t count) {
    std::size_t size = 0;
    for (std::size_t at = 0; at < count; ++at) size += width_of(load<T>(from + at * sizeof(T)));
    return size;
}

template <typename T>
void write(const char* from, std::size_t count, unsigned char* to) {
    for (std::size_t at = 0; at < count; ++at) {
        std::uint64_t number = load<T>(from + at * sizeof(T));
        while (number >= 0x80) {
            *to++ = static_cast<unsigned char>(number | 0x80);
            number >>= 7;
        }
        *to++ = static_cast<unsigned char>(number);
    }
}

template <typename T>
PyObject* encode_as(const Py_buffer& numbers) {
    if (numbers.len % static_cast<Py_ssize_t>(sizeof(T))) {
        PyErr_SetString(PyExc_ValueError, "not a whole number of integers");
        return nullptr;
    }
    const auto* const from = static_cast<const char*>(numbers.buf);
    const std::size_t count = static_cast<std::size_t>(numbers.len) / sizeof(T);
    const bool is_long = numbers.len >= WORTH_A_LOCK;
    PyThreadState* saved = is_long ? PyEval_SaveThread() : nullptr;
    const std::size_t size = measure<T>(from, count);
    if (saved) PyEval_RestoreThread(saved);
    PyObject* const result = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size));
    if (!result) return nullptr;
    auto* const to = reinterpret_cast<unsigned char*>(PyBytes_AsString(result));
    saved = is_long ? PyEval_SaveThread() : nullptr;
    write<T>(from, count, to);
    if (saved) PyEval_RestoreThread(saved);
    return result;
}

PyObject* encode_kind(const Py_buffer& numbers, const char* kind) {
    if (!std::strcmp(kind, "u1")) return encode_as<std::uint8_t>(numbers);
    if (!std::strcmp(kind, "u2")) return encode_as<std::uint16_t>(numbers);
    if (!std::strcmp(kind, "u4")) return encode_as<std::uint32_t>(numbers);
    if (!std::strcmp(kind, "u8")) return encode_as<std::uint64_t>(numbers);
    if (!std::strcmp(kind, "i1")) return encode_as<std::int8_t>(numbers);
    if (!std::strcmp(kind, "i2")) return encode_as<std::int16_t>(numbers);
    if (!std::strcmp(kind, "i4")) return encode_as<std::int32_t>(numbers);
    if (!std::strcmp(kind, "i8")) return encode_as<std::int64_t>(numbers);
    PyErr_SetString(PyExc_ValueError, "no kind of integer");
    return nullptr;
}

PyObject* encode(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    if (!are_as_many(count, 2, "encode takes 2 arguments: numbers, kind")) return nullptr;
    const char* const kind = PyUnicode_AsUTF8AndSize(arguments[1], nullptr);
    if (!kind) return nullptr;
    return with_bytes(arguments[0], [&](const Py_buffer& numbers) { return encode_kind(numbers, kind); });
}

std::size_t count_ends(const unsigned char* from, std::size_t size) {
    std::size_t count = 0;
    for (std::size_t at = 0; at < size; ++at) count += from[at] < 0x80;
    return count;
}

// Whether every number has ten bytes at most; the last byte ends one.
bool read(const unsigned char* from, std::size_t count, char* to) {
    for (std::size_t at = 0; at < count; ++at) {
        std::uint64_t digit = *from++;
        std::uint64_t number = digit & 0x7F;
        for (int shift = 7; digit >= 0x80; shift += 7) {
            if (shift > LAST_SHIFT) return false;
            digit = *from++;
            number |= (digit & 0x7F) << shift;
        }
        std::memcpy(to + at * sizeof(number), &number, sizeof(number));
    }
    return true;
}

PyObject* decode_buffer(const Py_buffer& data) {
    const auto* const from = static_cast<const unsigned char*>(data.buf);
    const auto size = static_cast<std::size_t>(data.len);
    if (size && from[size - 1] >= 0x80) Py_RETURN_NONE;
    const bool is_long = data.len >= WORTH_A_LOCK;
    PyThreadState* saved = is_long ? PyEval_SaveThread() : nullptr;
    const std::size_t count = count_ends(from, size);
    if (saved) PyEval_RestoreThread(saved);
    PyObject* const result =
        PyByteArray_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(count * sizeof(std::uint64_t)));
    if (!result) return nullptr;
    char* const to = PyByteArray_AsString(result);
    saved = is_long ? PyEval_SaveThread() : nullptr;
    const bool is_right = read(from, count, to);
    if (saved) PyEval_RestoreThread(saved);
    if (is_right) return result;
    Py_DecRef(result);
    Py_RETURN_NONE;
}

PyObject* decode(PyObject*, PyObject* argument) {
    return with_bytes(argument, decode_buffer);
}

PyMethodDef METHODS[] = {
    {"encode", FAST(encode),
     "encode(numbers, kind) -> bytes.\n\n"
     "`numbers` is a buffer of little-endian integers, whose `kind` is u1, u2, u4, u8, i1, i2, i4 or i8."},
    {"decode", decode, METH_O,
     "decode(data) -> a bytearray of uint64, the lowest 64 bits of each number.\n\n"
     "None where the last number does not end, or one has more than ten bytes."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "tensorgate.adapters._native._varints", "Arrays of variable-length integers.", 0, METHODS,
    nullptr, nullptr, nullptr, nullptr,
};

}  // namespace

PyMODINIT_FUNC PyInit__varints() { return PyModuleDef_Init(&MODULE); }
