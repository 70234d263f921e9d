// Lines of the access log: what log_lines.py says, and the same bytes, each made at once from what a call leaves behind.
//
// A line is made where nothing of it is in the processor's caches, between other work: so there is little of it here,
// no object for any number, and nothing stays alive but the bytes.
//
// Bounds: `Text` grows before it is written to. A line that cannot be made leaves nothing.

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

constexpr double QUICK_S = 10e-3;  // from here on a time is written by the interpreter, which rounds decimal digits
constexpr Py_ssize_t NUMBERS = 256;  // bytes that all numbers and keys of a line take at most, but for long times
constexpr Py_ssize_t ARGUMENTS = 12;

struct Text {
    char* data;
    Py_ssize_t size;
    Py_ssize_t room;

    bool reserve(Py_ssize_t more) {
        if (room - size >= more) return true;
        const Py_ssize_t wanted = 2 * room > size + more ? 2 * room : size + more;
        char* grown = static_cast<char*>(PyMem_Realloc(data, static_cast<std::size_t>(wanted)));
        if (grown == nullptr) return PyErr_NoMemory(), false;
        data = grown;
        room = wanted;
        return true;
    }

    // These write to room that has been reserved.
    void put(const char* bytes, Py_ssize_t count) {
        std::memcpy(data + size, bytes, static_cast<std::size_t>(count));
        size += count;
    }
    template <std::size_t N>
    void put(const char (&literal)[N]) {
        put(literal, static_cast<Py_ssize_t>(N) - 1);
    }
    void put(std::int64_t number) {
        char digits[20];
        char* begin = digits + sizeof digits;
        std::uint64_t left = number < 0 ? 0 - static_cast<std::uint64_t>(number) : static_cast<std::uint64_t>(number);
        do *--begin = static_cast<char>('0' + left % 10);
        while (left /= 10);
        if (number < 0) data[size++] = '-';
        put(begin, digits + sizeof digits - begin);
    }
    void put_three(int number) {
        data[size++] = static_cast<char>('0' + number / 100);
        data[size++] = static_cast<char>('0' + number / 10 % 10);
        data[size++] = static_cast<char>('0' + number % 10);
    }

    // Seconds as milliseconds with three digits.
    bool put_ms(double seconds) {
        if (seconds >= 0 && seconds < QUICK_S) {
            const int us = static_cast<int>(seconds * 1e6 + 0.5);
            put(static_cast<std::int64_t>(us / 1000));
            data[size++] = '.';
            put_three(us % 1000);
            return true;
        }
        char* digits = PyOS_double_to_string(seconds * 1e3, 'f', 3, 0, nullptr);
        if (digits == nullptr) return false;
        const Py_ssize_t count = static_cast<Py_ssize_t>(std::strlen(digits));
        const bool fits = reserve(count + NUMBERS);
        if (fits) put(digits, count);
        PyMem_Free(digits);
        return fits;
    }

    bool put_text(PyObject* text) {
        Py_ssize_t count;
        const char* bytes = PyUnicode_AsUTF8AndSize(text, &count);
        if (bytes == nullptr || !reserve(count + NUMBERS)) return false;
        put(bytes, count);
        return true;
    }
};

struct Lines {
    PyObject_HEAD
    PyObject* quoted;   // str -> a JSON string
    PyObject* moment;   // a second since the epoch -> its text
    std::int64_t second;
    char time[40];      // the text of `second`
    Py_ssize_t time_size;
    std::int64_t count;
    Text text;
};

bool is_plain(const char* bytes, Py_ssize_t count) {
    for (Py_ssize_t at = 0; at < count; ++at)
        if (bytes[at] < ' ' || bytes[at] > '~' || bytes[at] == '"' || bytes[at] == '\\') return false;
    return true;
}

// The text of the second in which a call ended.
bool tick(Lines* self, double now) {
    if (!(std::fabs(now) < 1e15)) return PyErr_SetString(PyExc_ValueError, "no time"), false;
    const std::int64_t second = static_cast<std::int64_t>(now);
    if (second == self->second && self->time_size != 0) return true;
    PyObject* moment = PyObject_CallFunction(self->moment, "L", static_cast<long long>(second));
    if (moment == nullptr) return false;
    Py_ssize_t count;
    const char* bytes = PyUnicode_AsUTF8AndSize(moment, &count);
    const bool fits = bytes != nullptr && count <= static_cast<Py_ssize_t>(sizeof self->time);
    if (fits) {
        std::memcpy(self->time, bytes, static_cast<std::size_t>(count));
        self->time_size = count;
        self->second = second;
    } else if (bytes != nullptr) {
        PyErr_SetString(PyExc_ValueError, "too long a time");
    }
    Py_DECREF(moment);
    return fits;
}

// A text as JSON has it between quotes, or with them if it `is_quoted`. -> a new reference.
PyObject* quote(Lines* self, PyObject* value, bool& is_quoted) {
    Py_ssize_t count;
    const char* bytes = PyUnicode_AsUTF8AndSize(value, &count);
    is_quoted = bytes == nullptr || !is_plain(bytes, count);
    if (!is_quoted) return Py_NewRef(value);
    if (bytes == nullptr) {
        if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) return nullptr;
        PyErr_Clear();  // half a character
    }
    return PyObject_CallFunctionObjArgs(self->quoted, value, nullptr);
}

struct Numbers {
    double now, seconds, queue, compute;
    std::int64_t received, sent, rows, batch_rows;
    bool asked;
};

// See log_lines.Lines.add for what is given.
bool read(PyObject* const* given, Numbers& numbers) {
    numbers = {};
    numbers.now = PyFloat_AsDouble(given[2]);
    numbers.received = PyLong_AsLongLong(given[3]);
    numbers.sent = PyLong_AsLongLong(given[4]);
    numbers.seconds = PyFloat_AsDouble(given[5]);
    numbers.asked = given[6] != Py_None;
    if (numbers.asked) {
        numbers.rows = PyLong_AsLongLong(given[7]);
        numbers.batch_rows = PyLong_AsLongLong(given[8]);
        numbers.queue = PyFloat_AsDouble(given[9]);
        numbers.compute = PyFloat_AsDouble(given[10]);
    }
    return PyErr_Occurred() == nullptr;
}

// No other thread gets at the lines meanwhile: nothing here runs Python's code.
bool put_line(Lines* self, const Numbers& numbers, PyObject* names, PyObject* id, bool is_quoted, PyObject* trace_id) {
    Text& text = self->text;
    if (!text.reserve(NUMBERS)) return false;
    const int ms = static_cast<int>((numbers.now - static_cast<double>(self->second)) * 1e3);
    text.put("{\"time\":\"");
    text.put(self->time, self->time_size);
    text.put(".");
    text.put_three((ms + 1000) % 1000);
    text.put("Z\",\"request_id\":");
    if (!is_quoted) text.put("\"");
    if (!text.put_text(id)) return false;
    if (!is_quoted) text.put("\"");
    if (!text.put_text(names)) return false;
    if (numbers.asked) {
        text.put(",\"rows\":");
        text.put(numbers.rows);
        text.put(",\"batch_rows\":");
        text.put(numbers.batch_rows);
        text.put(",\"queue_ms\":");
        if (!text.put_ms(numbers.queue)) return false;
        text.put(",\"compute_ms\":");
        if (!text.put_ms(numbers.compute)) return false;
    }
    text.put(",\"bytes_in\":");
    text.put(numbers.received);
    text.put(",\"bytes_out\":");
    text.put(numbers.sent);
    text.put(",\"total_ms\":");
    if (!text.put_ms(numbers.seconds)) return false;
    if (trace_id != Py_None) {
        text.put(",\"trace_id\":\"");
        if (!text.put_text(trace_id)) return false;
        text.put("\"");
    }
    text.put("}\n");
    return true;
}

Lines* as_lines(PyObject* self) { return reinterpret_cast<Lines*>(self); }

PyObject* add(PyObject* object, PyObject* const* given, Py_ssize_t count) {
    if (count != ARGUMENTS) return PyErr_SetString(PyExc_TypeError, "add takes 12 arguments"), nullptr;
    Lines* self = as_lines(object);
    Numbers numbers;
    if (!read(given, numbers) || !tick(self, numbers.now)) return nullptr;
    bool is_quoted;
    PyObject* id = quote(self, given[1], is_quoted);
    if (id == nullptr) return nullptr;
    const Py_ssize_t size = self->text.size;
    const bool done = put_line(self, numbers, given[0], id, is_quoted, given[11]);
    Py_DECREF(id);
    if (done) return PyLong_FromLongLong(++self->count);
    self->text.size = size;
    return nullptr;
}

PyObject* take(PyObject* object, PyObject*) {
    Lines* self = as_lines(object);
    PyObject* taken = Py_BuildValue("y#L", self->text.data, self->text.size, static_cast<long long>(self->count));
    if (taken != nullptr) self->text.size = self->count = 0;
    return taken;
}

PyObject* make(PyTypeObject* type, PyObject* given, PyObject* named) {
    static const char* names[] = {"quoted", "moment", nullptr};
    PyObject *quoted, *moment;
    if (!PyArg_ParseTupleAndKeywords(given, named, "OO", const_cast<char**>(names), &quoted, &moment)) return nullptr;
    const auto allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
    PyObject* object = allocate(type, 0);  // zeroed
    if (object == nullptr) return nullptr;
    Lines* self = as_lines(object);
    Py_INCREF(quoted);
    self->quoted = quoted;
    Py_INCREF(moment);
    self->moment = moment;
    if (self->text.reserve(1)) return object;
    Py_DECREF(object);
    return nullptr;
}

void end(PyObject* object) {
    Lines* self = as_lines(object);
    PyTypeObject* type = Py_TYPE(object);
    Py_XDECREF(self->quoted);
    Py_XDECREF(self->moment);
    PyMem_Free(self->text.data);
    reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

PyMethodDef METHODS[] = {
    {"add", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(add)), METH_FASTCALL, "See log_lines.Lines."},
    {"take", take, METH_NOARGS, "See log_lines.Lines."},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot SLOTS[] = {
    {Py_tp_doc, const_cast<char*>("See log_lines.Lines.")},
    {Py_tp_new, reinterpret_cast<void*>(make)},
    {Py_tp_dealloc, reinterpret_cast<void*>(end)},
    {Py_tp_methods, METHODS},
    {0, nullptr},
};

PyType_Spec SPEC = {"gateway._log_lines.Lines", sizeof(Lines), 0, Py_TPFLAGS_DEFAULT, SLOTS};

int fill(PyObject* module) {
    PyObject* type = PyType_FromSpec(&SPEC);
    if (type == nullptr) return -1;
    const int added = PyModule_AddType(module, reinterpret_cast<PyTypeObject*>(type));
    Py_DECREF(type);
    return added;
}

PyModuleDef_Slot PARTS[] = {{Py_mod_exec, reinterpret_cast<void*>(fill)}, {0, nullptr}};

PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "gateway._log_lines", "Lines of the access log.", 0, nullptr, PARTS, nullptr, nullptr, nullptr,
};

}  // namespace

PyMODINIT_FUNC PyInit__log_lines() { return PyModuleDef_Init(&MODULE); }
