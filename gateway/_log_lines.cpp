// Lines of the access log: what log_lines.py says, and the same bytes, each made at once from what a call leaves behind.
// And what is gathered of a call until then: trail.Trail, for calls that are not traced.
//
// Both happen where nothing of them is in the processor's caches, between other work: so there is little of it here, no
// object for any number, and nothing stays alive but the bytes.
//
// Bounds: `Text` grows before it is written to. A line that cannot be made leaves nothing.

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>

namespace {

constexpr double QUICK_S = 10e-3;  // from here on a time is written by the interpreter, which rounds decimal digits
constexpr Py_ssize_t NUMBERS = 256;  // bytes that all numbers and keys of a line take at most, but for long times

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
    void put(long long number) {
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
            put(static_cast<long long>(us / 1000));
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

// ------------------------------------------------------------------------------------------------------------- trails

// It refers to nothing that could refer to it, so no collector of cycles need know it.
struct Trail {
    PyObject_HEAD
    PyObject* view;      // None: no model was asked
    PyObject* status;
    PyObject* trace_id;  // None
    long long rows, batch_rows, sent;
    double queue_s, compute_s;
};

PyMemberDef TRAIL_MEMBERS[] = {
    {"view", T_OBJECT_EX, offsetof(Trail, view), 0, nullptr},
    {"status", T_OBJECT_EX, offsetof(Trail, status), 0, nullptr},
    {"trace_id", T_OBJECT_EX, offsetof(Trail, trace_id), READONLY, nullptr},
    {"rows", T_LONGLONG, offsetof(Trail, rows), READONLY, nullptr},
    {"batch_rows", T_LONGLONG, offsetof(Trail, batch_rows), READONLY, nullptr},
    {"sent", T_LONGLONG, offsetof(Trail, sent), READONLY, nullptr},
    {"queue_s", T_DOUBLE, offsetof(Trail, queue_s), READONLY, nullptr},
    {"compute_s", T_DOUBLE, offsetof(Trail, compute_s), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

Trail* as_trail(PyObject* self) { return reinterpret_cast<Trail*>(self); }

void exchange(PyObject*& place, PyObject* value) {
    PyObject* before = place;
    place = value;
    Py_XDECREF(before);
}

PyObject* make_trail(PyTypeObject* type, PyObject*, PyObject*) {
    PyObject* object = PyType_GenericAlloc(type, 0);  // zeroed
    if (object == nullptr) return nullptr;
    Trail* self = as_trail(object);
    self->view = Py_NewRef(Py_None);
    self->trace_id = Py_NewRef(Py_None);
    self->status = PyLong_FromLong(0);
    return object;
}

void end_trail(PyObject* object) {
    Trail* self = as_trail(object);
    PyTypeObject* type = Py_TYPE(object);
    Py_XDECREF(self->view);
    Py_XDECREF(self->status);
    Py_XDECREF(self->trace_id);
    PyObject_Free(object);
    Py_DECREF(type);
}

PyObject* submitted(PyObject* object, PyObject* view) {
    exchange(as_trail(object)->view, Py_NewRef(view));
    Py_RETURN_NONE;
}

// -> how many bytes, or -1 with an error
Py_ssize_t size_of(PyObject* body) {
    if (PyBytes_Check(body)) return PyBytes_Size(body);
    if (PyByteArray_Check(body) || PyMemoryView_Check(body)) return PyObject_Size(body);
    PyObject* parts = PyObject_GetIter(body);
    if (parts == nullptr) return -1;
    Py_ssize_t size = 0;
    while (PyObject* part = PyIter_Next(parts)) {
        const Py_ssize_t more = PyObject_Size(part);
        Py_DECREF(part);
        if (more < 0) break;
        size += more;
    }
    Py_DECREF(parts);
    return PyErr_Occurred() == nullptr ? size : -1;
}

struct Names {
    PyObject *body, *http_status, *view, *rows, *batch_rows, *sent, *queue_s, *compute_s, *trace_id;
    PyObject *trail, *status, *request_id, *listener, *dialect, *transport, *method, *peer, *address, *caller, *name;
};

Names NAMES;  // interned once, and for good

PyObject* replied(PyObject* object, PyObject* const* given, Py_ssize_t count) {
    if (count != 1 && count != 2) return PyErr_SetString(PyExc_TypeError, "replied takes a reply, and a time"), nullptr;
    PyObject* body = PyObject_GetAttr(given[0], NAMES.body);
    if (body == nullptr) return nullptr;
    const Py_ssize_t size = size_of(body);
    Py_DECREF(body);
    PyObject* status = size < 0 ? nullptr : PyObject_GetAttr(given[0], NAMES.http_status);
    if (status == nullptr) return nullptr;
    exchange(as_trail(object)->status, status);
    as_trail(object)->sent += size;
    Py_RETURN_NONE;
}

PyObject* ran(PyObject* object, PyObject* const* given, Py_ssize_t count) {
    if (count != 5) return PyErr_SetString(PyExc_TypeError, "ran takes 5 arguments"), nullptr;
    Trail* self = as_trail(object);
    const long long rows = PyLong_AsLongLong(given[0]);
    long long batch_rows = PyLong_AsLongLong(given[1]);
    double submitted = PyFloat_AsDouble(given[2]);
    const double started = PyFloat_AsDouble(given[3]);
    double ended = PyFloat_AsDouble(given[4]);
    if (PyErr_Occurred()) return nullptr;
    if (self->rows != 0) {
        batch_rows = std::max(self->batch_rows, batch_rows);
        submitted = std::min(submitted, started - self->queue_s);
        ended = std::max(ended, started + self->compute_s);
    }
    self->rows += rows;
    self->batch_rows = batch_rows;
    self->queue_s = started - submitted;
    self->compute_s = ended - started;
    Py_RETURN_NONE;
}

PyObject* left(PyObject* object, PyObject* const* given, Py_ssize_t count) {
    if (count != 3) return PyErr_SetString(PyExc_TypeError, "left takes 3 arguments"), nullptr;
    Trail* self = as_trail(object);
    const long long rows = PyLong_AsLongLong(given[0]);
    const double submitted = PyFloat_AsDouble(given[1]);
    const double ended = PyFloat_AsDouble(given[2]);
    if (PyErr_Occurred()) return nullptr;
    self->rows += rows;
    self->queue_s = std::max(self->queue_s, ended - submitted);
    Py_RETURN_NONE;
}

PyObject* upstream(PyObject*, PyObject*) {
    PyObject* module = PyImport_ImportModule("gateway.trail");
    if (module == nullptr) return nullptr;
    PyObject* leg = PyObject_GetAttrString(module, "NO_LEG");
    Py_DECREF(module);
    return leg;
}

PyCFunction fast(PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t)) {
    return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef TRAIL_METHODS[] = {
    {"submitted", submitted, METH_O, "See trail.Trail."},
    {"replied", fast(replied), METH_FASTCALL, "See trail.Trail."},
    {"ran", fast(ran), METH_FASTCALL, "See trail.Trail."},
    {"left", fast(left), METH_FASTCALL, "See trail.Trail."},
    {"upstream", upstream, METH_O, "See trail.Trail."},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot TRAIL_SLOTS[] = {
    {Py_tp_doc, const_cast<char*>("See trail.Trail.")},
    {Py_tp_new, reinterpret_cast<void*>(make_trail)},
    {Py_tp_dealloc, reinterpret_cast<void*>(end_trail)},
    {Py_tp_members, TRAIL_MEMBERS},
    {Py_tp_methods, TRAIL_METHODS},
    {0, nullptr},
};

PyType_Spec TRAIL_SPEC = {"gateway._log_lines.Trail", sizeof(Trail), 0, Py_TPFLAGS_DEFAULT, TRAIL_SLOTS};

// -------------------------------------------------------------------------------------------------------------- lines

struct Lines {
    PyObject_HEAD
    PyObject* quoted;   // str -> a JSON string
    PyObject* moment;   // a second since the epoch -> its text
    PyObject* names;    // who has asked whom for what, and how it ended -> that part of a line
    PyObject* new_id;   // -> a name for a call that has none
    PyObject* told;     // is told how many lines there are, of the first and when there are `many`
    long long many;
    PyTypeObject* trail;
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
    long long received, sent, rows, batch_rows;
    bool asked;
};

bool get(PyObject* object, PyObject* name, long long& number) {
    PyObject* value = PyObject_GetAttr(object, name);
    if (value == nullptr) return false;
    number = PyLong_AsLongLong(value);
    Py_DECREF(value);
    return number != -1 || !PyErr_Occurred();
}

bool get(PyObject* object, PyObject* name, double& number) {
    PyObject* value = PyObject_GetAttr(object, name);
    if (value == nullptr) return false;
    number = PyFloat_AsDouble(value);
    Py_DECREF(value);
    return number != -1 || !PyErr_Occurred();
}

// Of a trail of either kind. -> its trace_id, a new reference.
PyObject* read_trail(Lines* self, PyObject* object, Numbers& numbers) {
    if (Py_TYPE(object) == self->trail) {
        const Trail* trail = as_trail(object);
        numbers.asked = trail->view != Py_None;
        numbers.sent = trail->sent;
        numbers.rows = trail->rows;
        numbers.batch_rows = trail->batch_rows;
        numbers.queue = trail->queue_s;
        numbers.compute = trail->compute_s;
        return Py_NewRef(trail->trace_id);
    }
    PyObject* view = PyObject_GetAttr(object, NAMES.view);
    if (view == nullptr) return nullptr;
    numbers.asked = view != Py_None;
    Py_DECREF(view);
    const bool found = get(object, NAMES.sent, numbers.sent) && get(object, NAMES.rows, numbers.rows) &&
                       get(object, NAMES.batch_rows, numbers.batch_rows) &&
                       get(object, NAMES.queue_s, numbers.queue) && get(object, NAMES.compute_s, numbers.compute);
    return found ? PyObject_GetAttr(object, NAMES.trace_id) : nullptr;
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

// -> how many lines there are then
PyObject* add_line(Lines* self, Numbers& numbers, PyObject* names, PyObject* request_id, PyObject* trail) {
    if (!tick(self, numbers.now)) return nullptr;
    PyObject* trace_id = read_trail(self, trail, numbers);
    if (trace_id == nullptr) return nullptr;
    bool is_quoted = false, done = false;
    PyObject* id = quote(self, request_id, is_quoted);
    if (id != nullptr) {
        const Py_ssize_t size = self->text.size;
        done = put_line(self, numbers, names, id, is_quoted, trace_id);
        if (!done) self->text.size = size;
        Py_DECREF(id);
    }
    Py_DECREF(trace_id);
    if (!done) return nullptr;
    PyObject* count = PyLong_FromLongLong(++self->count);
    if (count == nullptr || self->told == nullptr || (self->count != 1 && self->count < self->many)) return count;
    PyObject* nothing = PyObject_CallFunctionObjArgs(self->told, count, nullptr);
    if (nothing == nullptr) return Py_DECREF(count), nullptr;
    Py_DECREF(nothing);
    return count;
}

// (names, request_id, now, received, seconds, trail), see log_lines.Lines
PyObject* add(PyObject* object, PyObject* const* given, Py_ssize_t count) {
    if (count != 6) return PyErr_SetString(PyExc_TypeError, "add takes 6 arguments"), nullptr;
    Numbers numbers{};
    numbers.now = PyFloat_AsDouble(given[2]);
    numbers.received = PyLong_AsLongLong(given[3]);
    numbers.seconds = PyFloat_AsDouble(given[4]);
    if (PyErr_Occurred()) return nullptr;
    return add_line(as_lines(object), numbers, given[0], given[1], given[5]);
}

// A reference that is given back.
class Held {
public:
    explicit Held(PyObject* object) : object_(object) {}
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    ~Held() { Py_XDECREF(object_); }
    explicit operator bool() const { return object_ != nullptr; }
    PyObject* get() const { return object_; }
    void take(PyObject* object) { exchange(object_, object); }

private:
    PyObject* object_;
};

// The model that was asked last, if any: what was asked knows it, too, if it was refused before.
bool find_view(Lines* self, PyObject* trail, PyObject* question) {
    if (Py_TYPE(trail) == self->trail && as_trail(trail)->view != Py_None) return true;
    const Held view(PyObject_GetAttr(trail, NAMES.view));
    if (!view || view.get() != Py_None || question == Py_None) return static_cast<bool>(view);
    const Held asked(PyObject_GetAttr(question, NAMES.view));
    if (asked) return PyObject_SetAttr(trail, NAMES.view, asked.get()) == 0;
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) return false;
    PyErr_Clear();  // of no model
    return true;
}

// Of who has called -> what a line calls him, None for nobody.
PyObject* name_of(PyObject* caller) {
    return caller == Py_None ? Py_NewRef(caller) : PyObject_GetAttr(caller, NAMES.name);
}

// The part of a line that is the same for all such calls. -> a new reference.
PyObject* find_names(Lines* self, PyObject* endpoint, PyObject* call, PyObject* trail, PyObject* code, PyObject* kind) {
    const Held peer(PyObject_GetAttr(call, NAMES.peer));
    const Held caller(peer ? PyObject_GetAttr(call, NAMES.caller) : nullptr);
    if (!caller) return nullptr;
    const Held key(PyTuple_New(10));
    Py_ssize_t at = 0;
    const auto put = [&](PyObject* part) { return part != nullptr && PyTuple_SetItem(key.get(), at++, part) == 0; };
    const Trail* own = Py_TYPE(trail) == self->trail ? as_trail(trail) : nullptr;
    const bool is_whole = key && put(own ? Py_NewRef(own->view) : PyObject_GetAttr(trail, NAMES.view)) &&
                          put(PyObject_GetAttr(call, NAMES.listener)) && put(PyObject_GetAttr(call, NAMES.dialect)) &&
                          put(PyObject_GetAttr(call, NAMES.transport)) &&
                          put(PyObject_GetAttr(endpoint, NAMES.method)) && put(Py_NewRef(code)) &&
                          put(Py_NewRef(kind)) &&
                          put(own ? Py_NewRef(own->status) : PyObject_GetAttr(trail, NAMES.status)) &&
                          put(PyObject_CallMethodObjArgs(peer.get(), NAMES.address, nullptr)) &&
                          put(name_of(caller.get()));
    if (!is_whole) return nullptr;
    return PyObject_GetItem(self->names, key.get());
}

// (endpoint, call, question, code, kind, seconds), see log_lines.Lines
PyObject* end_call(PyObject* object, PyObject* const* given, Py_ssize_t count) {
    if (count != 6) return PyErr_SetString(PyExc_TypeError, "end takes 6 arguments"), nullptr;
    Lines* self = as_lines(object);
    PyObject* call = given[1];
    const Held trail(PyObject_GetAttr(call, NAMES.trail));
    if (!trail || PyObject_SetAttr(call, NAMES.trail, Py_None) < 0 || !find_view(self, trail.get(), given[2]))
        return nullptr;
    Held id(PyObject_GetAttr(call, NAMES.request_id));
    const int has_id = id ? PyObject_IsTrue(id.get()) : -1;
    if (has_id == 0) id.take(PyObject_CallNoArgs(self->new_id));
    const Held body(has_id >= 0 && id ? PyObject_GetAttr(call, NAMES.body) : nullptr);
    if (!body) return nullptr;
    const Held names(find_names(self, given[0], call, trail.get(), given[3], given[4]));
    if (!names) return nullptr;
    Numbers numbers{};
    numbers.now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    numbers.received = PyObject_Size(body.get());
    numbers.seconds = PyFloat_AsDouble(given[5]);
    if (PyErr_Occurred()) return nullptr;
    return add_line(self, numbers, names.get(), id.get(), trail.get());
}

PyObject* take(PyObject* object, PyObject*) {
    Lines* self = as_lines(object);
    PyObject* taken = PyTuple_New(2);  // first: Python's collector may run, and with it other threads that add lines
    if (taken == nullptr) return nullptr;
    PyObject* text = PyBytes_FromStringAndSize(self->text.data, self->text.size);
    PyObject* count = text == nullptr ? nullptr : PyLong_FromLongLong(self->count);
    if (count == nullptr) {
        Py_XDECREF(text);
        Py_DECREF(taken);
        return nullptr;
    }
    self->text.size = self->count = 0;
    PyTuple_SetItem(taken, 0, text);
    PyTuple_SetItem(taken, 1, count);
    return taken;
}

PyObject* make(PyTypeObject* type, PyObject* given, PyObject* named) {
    static const char* keys[] = {"quoted", "moment", "names", "new_id", "told", "many", nullptr};
    PyObject *quoted, *moment, *names, *new_id, *told;
    long long many;
    if (!PyArg_ParseTupleAndKeywords(
            given, named, "OOOOOL", const_cast<char**>(keys), &quoted, &moment, &names, &new_id, &told, &many
        ))
        return nullptr;
    const auto allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
    PyObject* module = PyType_GetModule(type);
    PyObject* trail = module == nullptr ? nullptr : PyObject_GetAttrString(module, "Trail");
    PyObject* object = trail == nullptr ? nullptr : allocate(type, 0);  // zeroed
    if (object == nullptr) return Py_XDECREF(trail), nullptr;
    Lines* self = as_lines(object);
    self->trail = reinterpret_cast<PyTypeObject*>(trail);
    Py_INCREF(quoted);
    self->quoted = quoted;
    Py_INCREF(moment);
    self->moment = moment;
    Py_INCREF(names);
    self->names = names;
    Py_INCREF(new_id);
    self->new_id = new_id;
    Py_INCREF(told);
    self->told = told;
    self->many = many;
    if (self->text.reserve(1)) return object;
    Py_DECREF(object);
    return nullptr;
}

// Whoever is told has the lines: Python's collector has to know.
int visit_all(PyObject* object, visitproc visit, void* arg) {
    const Lines* self = as_lines(object);
    for (PyObject* each : {self->quoted, self->moment, self->names, self->new_id, self->told})
        Py_VISIT(each);
    Py_VISIT(self->trail);
    Py_VISIT(Py_TYPE(object));
    return 0;
}

// What is left may still be asked for by others that are about to end.
int clear(PyObject* object) {
    Py_CLEAR(as_lines(object)->told);
    return 0;
}

void end(PyObject* object) {
    Lines* self = as_lines(object);
    PyTypeObject* type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    for (PyObject* each : {self->quoted, self->moment, self->names, self->new_id, self->told}) Py_XDECREF(each);
    Py_XDECREF(reinterpret_cast<PyObject*>(self->trail));
    PyMem_Free(self->text.data);
    reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

PyMethodDef METHODS[] = {
    {"add", fast(add), METH_FASTCALL, "See log_lines.Lines."},
    {"end", fast(end_call), METH_FASTCALL, "See log_lines.Lines."},
    {"take", take, METH_NOARGS, "See log_lines.Lines."},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot SLOTS[] = {
    {Py_tp_doc, const_cast<char*>("See log_lines.Lines.")},
    {Py_tp_new, reinterpret_cast<void*>(make)},
    {Py_tp_dealloc, reinterpret_cast<void*>(end)},
    {Py_tp_traverse, reinterpret_cast<void*>(visit_all)},
    {Py_tp_clear, reinterpret_cast<void*>(clear)},
    {Py_tp_methods, METHODS},
    {0, nullptr},
};

PyType_Spec SPEC = {"gateway._log_lines.Lines", sizeof(Lines), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, SLOTS};

bool intern() {
    const struct {
        PyObject*& place;
        const char* text;
    } all[] = {
        {NAMES.body, "body"},       {NAMES.http_status, "http_status"}, {NAMES.view, "view"},
        {NAMES.rows, "rows"},       {NAMES.batch_rows, "batch_rows"},   {NAMES.sent, "sent"},
        {NAMES.queue_s, "queue_s"}, {NAMES.compute_s, "compute_s"},     {NAMES.trace_id, "trace_id"},
        {NAMES.trail, "trail"},     {NAMES.status, "status"},           {NAMES.request_id, "request_id"},
        {NAMES.dialect, "dialect"}, {NAMES.transport, "transport"},     {NAMES.listener, "listener"},
        {NAMES.method, "method"},   {NAMES.peer, "peer"},               {NAMES.address, "address"},
        {NAMES.caller, "caller"},   {NAMES.name, "name"},
    };
    for (const auto& each : all)
        if (each.place == nullptr && (each.place = PyUnicode_InternFromString(each.text)) == nullptr) return false;
    return true;
}

int fill(PyObject* module) {
    if (!intern()) return -1;
    for (PyType_Spec* spec : {&TRAIL_SPEC, &SPEC}) {
        PyObject* type = PyType_FromModuleAndSpec(module, spec, nullptr);
        if (type == nullptr) return -1;
        const int added = PyModule_AddType(module, reinterpret_cast<PyTypeObject*>(type));
        Py_DECREF(type);
        if (added < 0) return -1;
    }
    return 0;
}

PyModuleDef_Slot PARTS[] = {{Py_mod_exec, reinterpret_cast<void*>(fill)}, {0, nullptr}};

PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "gateway._log_lines", "Lines of the access log, and trails.", 0, nullptr, PARTS, nullptr, nullptr, nullptr,
};

}  // namespace

PyMODINIT_FUNC PyInit__log_lines() { return PyModuleDef_Init(&MODULE); }
