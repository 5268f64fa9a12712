// Shared by the parts of the Python module: Python's bytes and numbers, and work without the interpreter's lock.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "append.hpp"
#include "columns.hpp"

namespace dledger {

namespace py = pybind11;

// Fewer bytes take about 1 ms; getting the lock back from a computing thread takes 5 ms.
constexpr int64_t kReleasedBytes = 8 * 1024 * 1024;
constexpr int64_t kMaxPosition = int64_t{1} << 62;  // also of indexes: no sum of them overflows

// Calls `work`, which reads `size` bytes, without the interpreter's lock if there are many.
template <typename Work>
auto released(int64_t size, Work work) {
  std::optional<py::gil_scoped_release> release;
  if (size >= kReleasedBytes) release.emplace();
  return work();
}

// The contiguous bytes of a Python object, which stay valid as long as this lives.
class HeldBytes {
 public:
  HeldBytes(const py::handle& object, const std::string& name, int flags = PyBUF_SIMPLE) {
    if (PyObject_GetBuffer(object.ptr(), &view_, flags) == 0) return;
    PyErr_Clear();
    const auto type = py::type::handle_of(object).attr("__name__").cast<std::string>();
    throw py::type_error("expected contiguous bytes as " + name + ", found " + type);
  }
  ~HeldBytes() { PyBuffer_Release(&view_); }
  HeldBytes(const HeldBytes&) = delete;
  HeldBytes& operator=(const HeldBytes&) = delete;

  ByteRange range() const { return {static_cast<const uint8_t*>(view_.buf), view_.len}; }

 private:
  Py_buffer view_;
};

// Arrow data of a Python object by the Arrow PyCapsule protocol, valid as long as this lives.
class HeldArrow {
 public:
  explicit HeldArrow(const py::object& object) : capsules_(object.attr("__arrow_c_array__")()) {}

  const ArrowSchema& schema() const { return *pointer<ArrowSchema>(0, "arrow_schema"); }
  const ArrowArray& array() const { return *pointer<ArrowArray>(1, "arrow_array"); }

 private:
  template <typename T>
  const T* pointer(size_t number, const char* name) const {
    const void* const found = PyCapsule_GetPointer(py::object(capsules_[number]).ptr(), name);
    if (found == nullptr) throw py::error_already_set();
    return static_cast<const T*>(found);
  }

  py::tuple capsules_;
};

inline int64_t integer(const char* name, const py::handle& value, int64_t low, int64_t high) {
  const auto number = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
  if (!number) throw py::error_already_set();
  int overflow = 0;
  const int64_t found = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  if (overflow == 0 && found >= low && found <= high) return found;
  throw py::value_error(std::string("expected ") + name + " from " + std::to_string(low) + " to " +
                        std::to_string(high) + ", found " + py::str(number).cast<std::string>());
}

// A bytearray, not yet filled, and its memory.
inline std::pair<py::bytearray, uint8_t*> make_bytearray(int64_t size) {
  auto made = py::reinterpret_steal<py::bytearray>(PyByteArray_FromStringAndSize(nullptr, size));
  if (!made) throw py::error_already_set();
  auto* const data = reinterpret_cast<uint8_t*>(PyByteArray_AS_STRING(made.ptr()));
  return {std::move(made), data};
}

inline int64_t count_of(const py::handle& count) { return integer("count", count, 1, kMaxBlockSize / kLengthSize); }

// A bytes object, not yet filled, and its memory.
inline std::pair<py::bytes, uint8_t*> make_bytes(int64_t size) {
  auto made = py::reinterpret_steal<py::bytes>(PyBytes_FromStringAndSize(nullptr, size));
  if (!made) throw py::error_already_set();
  auto* const data = reinterpret_cast<uint8_t*>(PyBytes_AS_STRING(made.ptr()));
  return {std::move(made), data};
}

template <typename T>
py::bytes bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

template <typename T>
py::bytearray array_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// The calls of `module_puts.cpp`.
void add_puts(py::module_& module);

}  // namespace dledger
