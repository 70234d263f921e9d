// Lists of texts, written and read without the interpreter lock as far as that goes: what texts.py says, at the speed
// of the machine.
//
// A text is a `bytes` object. Where it lies is looked up with the lock, what it holds is read without it: so nobody
// else may change a list that is handed over. Each call is for a few thousand texts, and the caller's own steps between two
// calls let others have the lock.
//
// What is in doubt about JSON text may be refused here (the caller then goes its other way, which words every error),
// and nothing that is accepted may be wrong.
//
// Bounds: no byte is read before it is known to lie within the text. What is written is measured first.

#include "_extension.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>

namespace {

using std::size_t;
using std::uint32_t;
using std::uint64_t;

constexpr size_t LENGTH_BYTES = 4;  // of a text's length where texts stand one behind the other

// --------------------------------------------------------------------------------------------------------------- bytes

// Eight bytes of which none is a quote, a backslash or a control character, nor other than ASCII.
inline bool are_plain(const char* p) {
    constexpr uint64_t ones = 0x0101010101010101, tops = 0x8080808080808080;
    uint64_t bytes;
    std::memcpy(&bytes, p, sizeof bytes);
    const uint64_t quotes = bytes ^ (ones * '"'), backslashes = bytes ^ (ones * '\\');
    const uint64_t odd = (bytes - ones * 0x20) | (quotes - ones) | (backslashes - ones) | bytes;
    return !(odd & tops);  // a false alarm where a byte borrows from its neighbour, never a false calm
}

inline bool is_ascii(char c) { return static_cast<unsigned char>(c) < 0x80; }

inline bool is_tail(const char* p) { return (static_cast<unsigned char>(*p) & 0xC0) == 0x80; }

// A character that is no ASCII, in UTF-8 -> behind it, or null: overlong ones, surrogates, and what is beyond U+10FFFF.
inline const char* skip_character(const char* p, const char* end) {
    const auto first = static_cast<unsigned char>(*p);
    if (first < 0xC2 || first > 0xF4) return nullptr;
    const std::ptrdiff_t size = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
    if (end - p < size || !is_tail(p + 1)) return nullptr;
    const auto second = static_cast<unsigned char>(p[1]);
    if (first == 0xE0 && second < 0xA0) return nullptr;
    if (first == 0xED && second > 0x9F) return nullptr;
    if (first == 0xF0 && second < 0x90) return nullptr;
    if (first == 0xF4 && second > 0x8F) return nullptr;
    for (std::ptrdiff_t at = 2; at < size; ++at) {
        if (!is_tail(p + at)) return nullptr;
    }
    return p + size;
}

inline const char* skip_space(const char* p, const char* end) {
    while (p < end && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t')) ++p;
    return p;
}

// ------------------------------------------------------------------------------------------------- from lists to bytes

struct Text {
    const char* begin;
    size_t size;
};

// Where the texts of a list lie. The list must be as it is for as long as this is used.
class Texts {
  public:
    explicit Texts(PyObject* list) {
        const Py_ssize_t size = PyList_Size(list);
        if (size < 0) return;
        texts_ = static_cast<Text*>(std::malloc(static_cast<size_t>(size + 1) * sizeof(Text)));
        if (!texts_) {
            PyErr_NoMemory();
            return;
        }
        for (; count_ < size; ++count_) {
            char* begin;
            Py_ssize_t length;
            if (PyBytes_AsStringAndSize(PyList_GetItem(list, count_), &begin, &length) < 0) return;
            texts_[count_] = {begin, static_cast<size_t>(length)};
            size_ += length;
        }
        failed_ = false;
    }
    ~Texts() { std::free(texts_); }
    Texts(const Texts&) = delete;
    Texts& operator=(const Texts&) = delete;

    bool failed() const { return failed_; }
    bool are_long() const { return size_ >= WORTH_A_LOCK; }
    const Text* begin() const { return texts_; }
    const Text* end() const { return texts_ + count_; }

  private:
    Text* texts_ = nullptr;
    Py_ssize_t count_ = 0, size_ = 0;
    bool failed_ = true;
};

struct Measured {
    size_t size;
    bool is_right;
};

// Writer: `measure(text)` and `write(text, to)` without the lock, -> behind what was written.
template <class Writer>
PyObject* write_all(PyObject* list, const Writer& writer) {
    const Texts texts(list);
    if (texts.failed()) return nullptr;
    size_t size = 0;
    bool is_right = true;
    PyThreadState* saved = texts.are_long() ? PyEval_SaveThread() : nullptr;
    for (const Text& text : texts) {
        const Measured measured = writer.measure(text);
        size += measured.size;
        is_right = is_right && measured.is_right;
        if (!is_right) break;
    }
    if (saved) PyEval_RestoreThread(saved);
    if (!is_right) Py_RETURN_NONE;
    PyObject* const result = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size));
    if (!result) return nullptr;
    char* to = PyBytes_AsString(result);
    saved = texts.are_long() ? PyEval_SaveThread() : nullptr;
    for (const Text& text : texts) to = writer.write(text, to);
    if (saved) PyEval_RestoreThread(saved);
    return result;
}

struct WithLengths {
    Measured measure(const Text& text) const {
        return {LENGTH_BYTES + text.size, text.size <= std::numeric_limits<uint32_t>::max()};
    }

    char* write(const Text& text, char* to) const {
        const auto length = static_cast<uint32_t>(text.size);
        std::memcpy(to, &length, sizeof length);
        std::memcpy(to + LENGTH_BYTES, text.begin, text.size);
        return to + LENGTH_BYTES + text.size;
    }
};

// A letter for a control character that has one, or 0.
inline char short_escape(char c) {
    switch (c) {
        case '\b': return 'b';
        case '\t': return 't';
        case '\n': return 'n';
        case '\f': return 'f';
        case '\r': return 'r';
        case '"':
        case '\\': return c;
        default: return 0;
    }
}

inline bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20; }

// JSON strings, each with the same bytes before it.
class Quoted {
  public:
    Quoted(Text before, bool is_upper, bool is_utf8) : before_(before), is_upper_(is_upper), is_utf8_(is_utf8) {}

    Measured measure(const Text& text) const {
        size_t size = before_.size + 2 + text.size;
        const char* p = text.begin;
        const char* const end = p + text.size;
        while (p < end) {
            if (end - p >= 8 && are_plain(p)) {
                p += 8;
            } else if (!is_ascii(*p)) {
                p = is_utf8_ ? skip_character(p, end) : p + 1;
                if (!p) return {0, false};
            } else {
                if (short_escape(*p)) size += 1;
                else if (is_control(*p)) size += 5;
                ++p;
            }
        }
        return {size, true};
    }

    char* write(const Text& text, char* to) const {
        const char* const digits = is_upper_ ? "0123456789ABCDEF" : "0123456789abcdef";
        std::memcpy(to, before_.begin, before_.size);
        to += before_.size;
        *to++ = '"';
        const char* p = text.begin;
        const char* const end = p + text.size;
        while (p < end) {
            if (end - p >= 8 && are_plain(p)) {
                std::memcpy(to, p, 8);
                to += 8;
                p += 8;
                continue;
            }
            const char c = *p++;
            if (const char letter = short_escape(c)) {
                *to++ = '\\';
                *to++ = letter;
            } else if (is_control(c)) {
                std::memcpy(to, "\\u00", 4);
                to[4] = digits[c >> 4];
                to[5] = digits[c & 15];
                to += 6;
            } else {
                *to++ = c;
            }
        }
        *to++ = '"';
        return to;
    }

  private:
    const Text before_;
    const bool is_upper_;
    const bool is_utf8_;
};

PyObject* write_lengths(PyObject*, PyObject* argument) {
    PyObject* const written = write_all(argument, WithLengths());
    if (written != Py_None) return written;
    Py_DECREF(written);
    PyErr_SetString(PyExc_ValueError, "a text is longer than its length can say");
    return nullptr;
}

PyObject* write_json(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    if (!are_as_many(count, 4, "write_json takes 4 arguments: texts, before, upper, utf8")) return nullptr;
    char* before;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(arguments[1], &before, &size) < 0) return nullptr;
    const int upper = PyObject_IsTrue(arguments[2]), utf8 = PyObject_IsTrue(arguments[3]);
    if (upper < 0 || utf8 < 0) return nullptr;
    return write_all(arguments[0], Quoted({before, static_cast<size_t>(size)}, upper != 0, utf8 != 0));
}

// ------------------------------------------------------------------------------------------------- from bytes to lists

// Up to `most` texts that are given one after the other, as a list.
class Pieces {
  public:
    explicit Pieces(size_t most) : most_(most), ends_(static_cast<size_t*>(std::malloc((most + 1) * sizeof(size_t)))) {}
    ~Pieces() { std::free(ends_); }
    Pieces(const Pieces&) = delete;
    Pieces& operator=(const Pieces&) = delete;

    bool failed() const { return !ends_; }
    bool is_full() const { return count_ == most_; }

    bool add(const char* begin, size_t size) { return bytes_.add(begin, size); }

    void end_text() { ends_[count_++] = bytes_.size(); }

    PyObject* list() const {
        return make_list(count_, [this](size_t at) {
            const size_t begin = at ? ends_[at - 1] : 0;
            return PyBytes_FromStringAndSize(bytes_.begin() + begin, static_cast<Py_ssize_t>(ends_[at] - begin));
        });
    }

  private:
    const size_t most_;
    size_t* const ends_;
    size_t count_ = 0;
    Room bytes_;
};

inline bool read_hex(const char* p, const char* end, uint32_t& code) {
    if (end - p < 4) return false;
    code = 0;
    for (int at = 0; at < 4; ++at) {
        const char c = p[at];
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;
        if (digit < 0) return false;
        code = code << 4 | static_cast<uint32_t>(digit);
    }
    return true;
}

inline size_t write_utf8(uint32_t code, char* to) {
    const auto part = [&](int shift, uint32_t mark) { return static_cast<char>((code >> shift & 0x3F) | mark); };
    if (code < 0x80) {
        to[0] = static_cast<char>(code);
        return 1;
    }
    if (code < 0x800) {
        to[0] = static_cast<char>(code >> 6 | 0xC0);
        to[1] = part(0, 0x80);
        return 2;
    }
    if (code < 0x10000) {
        to[0] = static_cast<char>(code >> 12 | 0xE0);
        to[1] = part(6, 0x80);
        to[2] = part(0, 0x80);
        return 3;
    }
    to[0] = static_cast<char>(code >> 18 | 0xF0);
    to[1] = part(12, 0x80);
    to[2] = part(6, 0x80);
    to[3] = part(0, 0x80);
    return 4;
}

// What is escaped at `p`, behind the backslash -> behind it, and it in UTF-8; null for what is no character, and for
// half of a pair.
const char* read_escape(const char* p, const char* end, char* to, size_t& size) {
    if (p == end) return nullptr;
    size = 1;
    switch (*p) {
        case '"':
        case '\\':
        case '/': *to = *p; return p + 1;
        case 'b': *to = '\b'; return p + 1;
        case 'f': *to = '\f'; return p + 1;
        case 'n': *to = '\n'; return p + 1;
        case 'r': *to = '\r'; return p + 1;
        case 't': *to = '\t'; return p + 1;
        case 'u': break;
        default: return nullptr;
    }
    uint32_t code;
    if (!read_hex(p + 1, end, code)) return nullptr;
    p += 5;
    if (code >= 0xD800 && code < 0xE000) {
        uint32_t low;
        if (code >= 0xDC00 || end - p < 6 || p[0] != '\\' || p[1] != 'u' || !read_hex(p + 2, end, low)) return nullptr;
        if (low < 0xDC00 || low >= 0xE000) return nullptr;
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        p += 6;
    }
    size = write_utf8(code, to);
    return p;
}

// Told of a string's parts: nothing is kept of them.
struct Nobody {
    bool add(const char*, size_t) { return true; }
};

// A JSON string in UTF-8 whose opening quote stands before `p` -> behind its closing one, or null.
template <class Reader>
const char* read_string(const char* p, const char* end, Reader& reader) {
    const char* begin = p;
    for (;;) {
        if (end - p >= 8 && are_plain(p)) {
            p += 8;
        } else if (p == end || is_control(*p)) {
            return nullptr;
        } else if (*p == '"') {
            return reader.add(begin, static_cast<size_t>(p - begin)) ? p + 1 : nullptr;
        } else if (*p == '\\') {
            char character[4];
            size_t size;
            if (!reader.add(begin, static_cast<size_t>(p - begin))) return nullptr;
            p = read_escape(p + 1, end, character, size);
            if (!p || !reader.add(character, size)) return nullptr;
            begin = p;
        } else if (!is_ascii(*p)) {
            p = skip_character(p, end);
            if (!p) return nullptr;
        } else {
            ++p;
        }
    }
}

// Elements of an array, up to `most` of them; `p` is behind its bracket or a comma -> behind the comma or bracket that
// follows, or null; `closed` says which of the two.
const char* read_strings(const char* p, const char* end, Pieces& pieces, bool& closed) {
    closed = false;
    while (!pieces.is_full() && !closed) {
        p = skip_space(p, end);
        if (p == end || *p != '"') return nullptr;
        p = read_string(p + 1, end, pieces);
        if (!p) return nullptr;
        pieces.end_text();
        p = skip_space(p, end);
        if (p == end || (*p != ',' && *p != ']')) return nullptr;
        closed = *p++ == ']';
    }
    return p;
}

PyObject* read_json_from(const Py_buffer& text, Py_ssize_t at, Py_ssize_t most) {
    if (at < 0 || at > text.len || most < 1) {
        PyErr_SetString(PyExc_ValueError, "no place in the text, or no text wanted");
        return nullptr;
    }
    Pieces pieces(static_cast<size_t>(most));
    if (pieces.failed()) return PyErr_NoMemory();
    const char* const begin = static_cast<const char*>(text.buf);
    bool closed;
    PyThreadState* const saved = text.len - at >= WORTH_A_LOCK ? PyEval_SaveThread() : nullptr;
    const char* const end = read_strings(begin + at, begin + text.len, pieces, closed);
    if (saved) PyEval_RestoreThread(saved);
    if (!end) Py_RETURN_NONE;
    PyObject* const list = pieces.list();
    return list ? Py_BuildValue("(NnN)", list, static_cast<Py_ssize_t>(end - begin), PyBool_FromLong(closed)) : nullptr;
}

PyObject* read_json(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    if (!are_as_many(count, 3, "read_json takes 3 arguments: text, at, most")) return nullptr;
    const Py_ssize_t at = PyLong_AsSsize_t(arguments[1]), most = PyLong_AsSsize_t(arguments[2]);
    if (PyErr_Occurred()) return nullptr;
    return with_bytes(arguments[0], [&](const Py_buffer& text) { return read_json_from(text, at, most); });
}

// Texts with their lengths, up to `most` of them, as far as they are whole.
PyObject* read_lengths_from(const Py_buffer& data, Py_ssize_t at, Py_ssize_t most) {
    if (at < 0 || at > data.len || most < 0) {
        PyErr_SetString(PyExc_ValueError, "no place in the data");
        return nullptr;
    }
    const char* const begin = static_cast<const char*>(data.buf);
    PyObject* list = PyList_New(0);
    while (list && most-- && data.len - at >= static_cast<Py_ssize_t>(LENGTH_BYTES)) {
        uint32_t length;
        std::memcpy(&length, begin + at, sizeof length);
        const Py_ssize_t first = at + static_cast<Py_ssize_t>(LENGTH_BYTES);
        if (data.len - first < static_cast<Py_ssize_t>(length)) break;
        list = append(list, PyBytes_FromStringAndSize(begin + first, static_cast<Py_ssize_t>(length)));
        at = first + static_cast<Py_ssize_t>(length);
    }
    return list ? Py_BuildValue("(Nn)", list, at) : nullptr;
}

PyObject* read_lengths(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    if (!are_as_many(count, 3, "read_lengths takes 3 arguments: data, at, most")) return nullptr;
    const Py_ssize_t at = PyLong_AsSsize_t(arguments[1]), most = PyLong_AsSsize_t(arguments[2]);
    if (PyErr_Occurred()) return nullptr;
    return with_bytes(arguments[0], [&](const Py_buffer& data) { return read_lengths_from(data, at, most); });
}

// ----------------------------------------------------------------------------------------------------------- documents

// The array of strings at `p` -> behind it, or null; `seen` is then how far it might have been one.
const char* skip_array(const char* p, const char* end, const char*& seen) {
    Nobody nobody;
    do {
        p = skip_space(p + 1, end);
        seen = p;
        if (p == end || *p != '"') return nullptr;
        p = read_string(p + 1, end, nobody);
        if (!p) return nullptr;
        p = skip_space(p, end);
        seen = p;
        if (p == end || (*p != ',' && *p != ']')) return nullptr;
    } while (*p == ',');
    return p + 1;
}

// Behind the string whose opening quote stands before `p`, or the end of a text in which it does not end.
inline const char* skip_string(const char* p, const char* end) {
    for (;;) {
        if (end - p >= 8 && are_plain(p)) p += 8;
        else if (p == end) return end;
        else if (*p == '"') return p + 1;
        else if (*p == '\\' && ++p == end) return end;
        else ++p;
    }
}

// The first array of nothing but strings from `p` on that has `least` bytes.
bool find_array(const char*& p, const char* end, std::ptrdiff_t least, const char*& behind) {
    const char* seen = p;
    while (p < end) {
        if (*p == '"') {
            p = skip_string(p + 1, end);
        } else if (*p != '[' || p < seen) {
            ++p;
        } else {
            behind = skip_array(p, end, seen);
            if (behind && behind - p >= least) return true;
            p = behind ? behind : p + 1;
        }
    }
    return false;
}

PyObject* find_in(const Py_buffer& text, Py_ssize_t least) {
    PyObject* list = PyList_New(0);
    const char* const begin = static_cast<const char*>(text.buf);
    const char* const end = begin + text.len;
    const char* p = begin;
    while (list) {
        const char* behind;
        PyThreadState* const saved = end - p >= WORTH_A_LOCK ? PyEval_SaveThread() : nullptr;
        const bool is_found = find_array(p, end, least, behind);
        if (saved) PyEval_RestoreThread(saved);
        if (!is_found) break;
        list = append(list, Py_BuildValue("(nn)", Py_ssize_t{p - begin}, Py_ssize_t{behind - begin}));
        p = behind;
    }
    return list;
}

PyObject* long_arrays(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    if (!are_as_many(count, 2, "long_arrays takes 2 arguments: text, least")) return nullptr;
    const Py_ssize_t least = PyLong_AsSsize_t(arguments[1]);
    if (least == -1 && PyErr_Occurred()) return nullptr;
    return with_bytes(arguments[0], [&](const Py_buffer& text) { return find_in(text, least); });
}

PyMethodDef METHODS[] = {
    {"write_lengths", write_lengths, METH_O,
     "write_lengths(texts) -> the length of each as a little-endian uint32, then the text itself."},
    {"write_json", FAST(write_json),
     "write_json(texts, before, upper, utf8) -> each as a JSON string with `before` in front of it.\n\n"
     "Quotes, backslashes and control characters are escaped, with hexadecimal digits in upper case if `upper`. With\n"
     "`utf8`, None where a text is not in UTF-8; else all other bytes stay what they are."},
    {"read_lengths", FAST(read_lengths),
     "read_lengths(data, at, most) -> (texts, end): up to `most` of what write_lengths writes, as far as it is whole."},
    {"read_json", FAST(read_json),
     "read_json(text, at, most) -> (texts, end, closed), or None for all but strings in UTF-8.\n\n"
     "Up to `most` elements of the JSON array behind whose '[' or a comma text[at] stands, in UTF-8; `end` is behind\n"
     "the comma that follows, or behind the ']' where the array is `closed`."},
    {"long_arrays", FAST(long_arrays),
     "long_arrays(text, least) -> where a JSON text has arrays of nothing but strings, of `least` bytes and more.\n\n"
     "Offsets of where each begins and ends."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "tensorgate.adapters._native._texts", "Lists of texts.", 0, METHODS, nullptr, nullptr, nullptr, nullptr,
};

}  // namespace

PyMODINIT_FUNC PyInit__texts() { return PyModuleDef_Init(&MODULE); }
