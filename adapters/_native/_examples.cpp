// Many tf.Examples at once, without the interpreter lock: a list of messages -> a column per feature.
//
// It knows Examples as everybody writes them: a map of features, each with a key in ASCII and then one list of values,
// numbers packed. Whatever else protobuf allows (fields that are split, repeated or unknown) is refused here, and the
// caller goes its other way. What is accepted is what protobuf makes of the same bytes.
//
// Bounds: every length is checked against the message that it is a part of, before anything is read.

#include "_extension.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

using std::size_t;
using std::uint64_t;

constexpr char FIRST = 1 << 3 | 2, SECOND = 2 << 3 | 2, THIRD = 3 << 3 | 2;  // tags of fields that have a length
constexpr Py_ssize_t MOST_COLUMNS = 1 << 16;
constexpr size_t MANY_TEXTS = 1 << 13, MOST_TEXTS = 1 << 16;  // that become objects at once; and those of an Example
constexpr uint64_t MOST_BYTES = 0x7FFFFFFF;  // that a field of protobuf's may have

struct Bytes {
    const char* at;
    const char* end;

    size_t size() const { return static_cast<size_t>(end - at); }
};

// The number at the beginning of the bytes, which are then behind it.
bool take_varint(Bytes& bytes, uint64_t& number) {
    number = 0;
    for (int shift = 0; shift < 64 && bytes.at < bytes.end; shift += 7) {
        const auto digit = static_cast<unsigned char>(*bytes.at++);
        if (shift == 63 && digit > 1) return false;
        number |= static_cast<uint64_t>(digit & 0x7F) << shift;
        if (digit < 0x80) return true;
    }
    return false;
}

// The field with this tag at the beginning of the bytes, which are then behind it.
bool take(Bytes& bytes, char tag, Bytes& field) {
    if (bytes.at == bytes.end || *bytes.at != tag) return false;
    ++bytes.at;
    uint64_t size;
    const char* const begin = bytes.at;
    if (!take_varint(bytes, size) || bytes.at - begin > 5 || size > MOST_BYTES || size > bytes.size()) return false;
    field = {bytes.at, bytes.at + size};
    bytes.at = field.end;
    return true;
}

bool is_ascii(Bytes text) {
    for (const char* p = text.at; p < text.end; ++p) {
        if (static_cast<unsigned char>(*p) >= 0x80) return false;
    }
    return true;
}

// ------------------------------------------------------------------------------------------------------------- columns

// One feature of all Examples so far: every one has `size` values of the kind that is the list's tag.
struct Column {
    Bytes name{nullptr, nullptr};
    char kind = 0;
    size_t size = 0;
    size_t rows = 0;
    Room values;
};

// The values of a list, which `column` takes if there is one -> whether they are right.
bool read_floats(Bytes list, Column* column, size_t& count) {
    Bytes packed{list.at, list.at};
    if (list.size() && (!take(list, FIRST, packed) || list.size())) return false;
    count = packed.size() / sizeof(float);
    return packed.size() % sizeof(float) == 0 && (!column || column->values.add(packed.at, packed.size()));
}

bool read_integers(Bytes list, Column* column, size_t& count) {
    Bytes packed{list.at, list.at};
    if (list.size() && (!take(list, FIRST, packed) || list.size())) return false;
    for (count = 0; packed.size(); ++count) {
        uint64_t number;
        if (!take_varint(packed, number) || (column && !column->values.add(&number, sizeof number))) return false;
    }
    return true;
}

bool read_texts(Bytes list, Column* column, size_t& count) {
    for (count = 0; list.size(); ++count) {
        Bytes text;
        if (!take(list, FIRST, text) || (column && !column->values.add(&text, sizeof text))) return false;
    }
    return count <= MOST_TEXTS;
}

bool read_list(char kind, Bytes list, Column* column, size_t& count) {
    switch (kind) {
        case FIRST: return read_texts(list, column, count);
        case SECOND: return read_floats(list, column, count);
        default: return read_integers(list, column, count);
    }
}

class Columns {
  public:
    explicit Columns(size_t count) : columns_(count), count_(count) {}

    Column& operator[](size_t at) { return columns_[at]; }
    size_t count() const { return count_; }
    size_t texts() const { return texts_; }

    // The next Example, in which every column has its values once.
    bool read(Bytes example) {
        Bytes features{example.at, example.at};
        if (example.size() && (!take(example, FIRST, features) || example.size())) return false;
        size_t found = 0;
        while (features.size()) {
            Bytes entry;
            if (!take(features, FIRST, entry) || !read_entry(entry, found)) return false;
        }
        ++rows_;
        return found == count_;
    }

  private:
    bool read_entry(Bytes entry, size_t& found) {
        Bytes key, feature, list;
        if (!take(entry, FIRST, key) || !is_ascii(key) || !take(entry, SECOND, feature) || entry.size()) return false;
        if (!feature.size()) return false;
        const char kind = *feature.at;
        if (kind != FIRST && kind != SECOND && kind != THIRD) return false;
        if (!take(feature, kind, list) || feature.size()) return false;
        Column* const column = column_of(key, found);
        size_t size;
        if (!read_list(kind, list, column, size)) return false;
        if (!column) return true;
        if (column->rows != rows_) return false;  // it was there before
        if (!rows_) {
            column->kind = kind;
            column->size = size;
        }
        ++column->rows;
        ++found;
        if (kind == FIRST) texts_ += size;
        return column->kind == kind && column->size == size;
    }

    // Features mostly come in one order, so the next one is looked for first.
    Column* column_of(Bytes key, size_t found) {
        for (size_t step = 0; step < count_; ++step) {
            Column& column = columns_[(found + step) % count_];
            if (column.name.size() == key.size() && !std::memcmp(column.name.at, key.at, key.size())) return &column;
        }
        return nullptr;
    }

    std::vector<Column> columns_;
    const size_t count_;
    size_t rows_ = 0, texts_ = 0;
};

PyObject* list_of(const Room& texts) {
    const auto* const begin = reinterpret_cast<const Bytes*>(texts.begin());
    const size_t count = texts.size() / sizeof(Bytes);
    return make_list(count, [&](size_t at) {
        return PyBytes_FromStringAndSize(begin[at].at, static_cast<Py_ssize_t>(begin[at].size()));
    });
}

PyObject* result_of(const Column& column) {
    const char* const kind = column.kind == FIRST ? "bytes" : column.kind == SECOND ? "float" : "int64";
    const auto size = static_cast<Py_ssize_t>(column.values.size());
    PyObject* const values =
        column.kind == FIRST ? list_of(column.values) : PyByteArray_FromStringAndSize(column.values.begin(), size);
    return values ? Py_BuildValue("(snN)", kind, static_cast<Py_ssize_t>(column.size), values) : nullptr;
}

// ------------------------------------------------------------------------------------------------------------- module

// The names are bytes, which live as long as the tuple.
bool name_columns(PyObject* names, Columns& columns) {
    for (size_t at = 0; at < columns.count(); ++at) {
        char* begin;
        Py_ssize_t size;
        PyObject* const name = PyTuple_GetItem(names, static_cast<Py_ssize_t>(at));
        if (PyBytes_AsStringAndSize(name, &begin, &size) < 0) return false;
        columns[at].name = {begin, begin + size};
    }
    return true;
}

PyObject* read_from(const Py_buffer& body, Py_ssize_t at, Py_ssize_t end, PyObject* names, Py_ssize_t most) {
    const Py_ssize_t count = PyTuple_Size(names);
    if (count < 0) return nullptr;
    if (count > MOST_COLUMNS) Py_RETURN_NONE;
    if (at < 0 || at > end || end > body.len) {
        PyErr_SetString(PyExc_ValueError, "no part of the body");
        return nullptr;
    }
    Columns columns(static_cast<size_t>(count));
    if (!name_columns(names, columns)) return nullptr;
    const char* const begin = static_cast<const char*>(body.buf);
    Bytes bytes{begin + at, begin + end};
    Py_ssize_t rows = 0;
    bool is_right = true;
    PyThreadState* const saved = end - at >= WORTH_A_LOCK ? PyEval_SaveThread() : nullptr;
    for (Bytes example; is_right && bytes.size() && rows < most && columns.texts() < MANY_TEXTS; ++rows) {
        is_right = take(bytes, FIRST, example) && columns.read(example);
    }
    if (saved) PyEval_RestoreThread(saved);
    if (!is_right || !rows) Py_RETURN_NONE;
    PyObject* results = PyList_New(0);
    for (size_t column = 0; results && column < columns.count(); ++column) {
        results = append(results, result_of(columns[column]));
    }
    return results ? Py_BuildValue("(Nnn)", results, rows, static_cast<Py_ssize_t>(bytes.at - begin)) : nullptr;
}

PyObject* read(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    if (!are_as_many(count, 5, "read takes 5 arguments: body, at, end, names, most")) return nullptr;
    const Py_ssize_t at = PyLong_AsSsize_t(arguments[1]), end = PyLong_AsSsize_t(arguments[2]);
    const Py_ssize_t most = PyLong_AsSsize_t(arguments[4]);
    if (PyErr_Occurred()) return nullptr;
    return with_bytes(arguments[0], [&](const Py_buffer& body) {
        return read_from(body, at, end, arguments[3], most);
    });
}

PyMethodDef METHODS[] = {
    {"read", FAST(read),
     "read(body, at, end, names, most) -> (columns, examples, end), or None for all but plain Examples.\n\n"
     "Up to `most` elements of the ExampleList that is body[at:end], one at least, and fewer where texts are many.\n"
     "A column is (kind, size, values): of the feature with that name every Example has as many values of one kind,\n"
     "bytes, float or int64, which are a list of bytes or a bytearray of float32 or int64. `end` is behind the last\n"
     "Example."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "tensorgate.adapters._native._examples", "Many tf.Examples.", 0, METHODS, nullptr, nullptr, nullptr, nullptr,
};

}  // namespace

PyMODINIT_FUNC PyInit__examples() { return PyModuleDef_Init(&MODULE); }
