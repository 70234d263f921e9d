// What the compiled helpers have in common: how they are called, get at their callers' bytes, and make lists.
//
// Each helper is one source, which includes this first; what it does not use leaves no trace in it.

#pragma once

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>

#if !defined(__GNUC__) || !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "needs a little-endian processor, and a compiler that knows GCC's builtins"
#endif

#define FAST(function) reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)), METH_FASTCALL

namespace {

constexpr Py_ssize_t WORTH_A_LOCK = 32768;  // bytes; below, giving the interpreter lock away costs more than it frees

// Whether there are as many arguments as wanted, or an exception that says so: "read takes 2 arguments: text, start".
inline bool are_as_many(Py_ssize_t count, Py_ssize_t wanted, const char* text) {
    if (count != wanted) PyErr_SetString(PyExc_TypeError, text);
    return count == wanted;
}

// What `use` makes of an object's bytes, which stay where they are meanwhile; or null with an exception.
template <class Use>
PyObject* with_bytes(PyObject* object, const Use& use) {
    Py_buffer bytes;
    if (PyObject_GetBuffer(object, &bytes, PyBUF_SIMPLE) < 0) return nullptr;
    PyObject* const result = use(bytes);
    PyBuffer_Release(&bytes);
    return result;
}

// A list of what `make` makes of the numbers below `count`, in that order; or null with an exception.
template <class Make>
PyObject* make_list(std::size_t count, const Make& make) {
    PyObject* const list = PyList_New(static_cast<Py_ssize_t>(count));
    for (std::size_t at = 0; list && at < count; ++at) {
        PyObject* const item = make(at);
        if (!item || PyList_SetItem(list, static_cast<Py_ssize_t>(at), item) < 0) {
            Py_DECREF(list);
            return nullptr;
        }
    }
    return list;
}

// The list, with a new object behind its others, which becomes the list's own; or null with an exception, and no list.
inline PyObject* append(PyObject* list, PyObject* item) {
    const bool is_added = item && PyList_Append(list, item) == 0;
    Py_XDECREF(item);
    if (is_added) return list;
    Py_DECREF(list);
    return nullptr;
}

// Memory that grows.
class Room {
  public:
    Room() = default;
    ~Room() { std::free(begin_); }
    Room(const Room&) = delete;
    Room& operator=(const Room&) = delete;

    bool add(const void* from, std::size_t size) {
        if (room_ - size_ < size) {
            const std::size_t room = (room_ + size) * 2;
            auto* const begin = static_cast<char*>(std::realloc(begin_, room));
            if (!begin) return false;
            begin_ = begin;
            room_ = room;
        }
        if (size) std::memcpy(begin_ + size_, from, size);
        size_ += size;
        return true;
    }

    const char* begin() const { return begin_; }
    std::size_t size() const { return size_; }

  private:
    char* begin_ = nullptr;
    std::size_t size_ = 0, room_ = 0;
};

}  // namespace
