// NumPy arrays in and out: typed, checked views of Python's arguments, and new arrays to fill.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <utility>
#include <variant>

#include "errors.hpp"

namespace paradecode {

namespace nb = nanobind;

// The characters that the buffer protocol uses for a type.
template <class T>
inline constexpr const char* kCodes = "";
template <>
inline constexpr const char* kCodes<std::int32_t> = "i";
template <>
inline constexpr const char* kCodes<std::uint32_t> = "I";
template <>
inline constexpr const char* kCodes<std::int64_t> = "lq";
template <>
inline constexpr const char* kCodes<float> = "f";
template <>
inline constexpr const char* kCodes<double> = "d";
template <>
inline constexpr const char* kCodes<std::uint8_t> = "?B";

template <class T>
inline constexpr const char* kNames = "";
template <>
inline constexpr const char* kNames<std::int32_t> = "int32";
template <>
inline constexpr const char* kNames<std::int64_t> = "int64";
template <>
inline constexpr const char* kNames<float> = "float32";
template <>
inline constexpr const char* kNames<double> = "float64";
template <>
inline constexpr const char* kNames<std::uint8_t> = "bool (or uint8)";

// A read-only, C-contiguous view of an array, of the wanted type and shape.
template <class T>
class View {
 public:
  View() = default;
  View(nb::handle object, const std::string& field, int dimensions) {
    constexpr int kind = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT;
    if (PyObject_GetBuffer(object.ptr(), &buffer_, kind) != 0) {
      PyErr_Clear();
      if (!nb::hasattr(object, "copy")) reject(field, dimensions);
      const nb::object packed = object.attr("copy")();  // for a slice or a transposed array
      if (PyObject_GetBuffer(packed.ptr(), &buffer_, kind) != 0) {
        PyErr_Clear();
        reject(field, dimensions);
      }
    }
    held_ = true;
    const char* format = buffer_.format == nullptr ? "B" : buffer_.format;
    if (*format == '=' || *format == '<' || *format == '@') ++format;
    const bool type_fits = std::strlen(format) == 1 && std::strchr(kCodes<T>, *format) != nullptr &&
                           buffer_.itemsize == static_cast<Py_ssize_t>(sizeof(T));
    if (!type_fits || buffer_.ndim != dimensions) reject(field, dimensions);
  }
  ~View() {
    if (held_) PyBuffer_Release(&buffer_);
  }
  View(View&& other) noexcept : buffer_(other.buffer_), held_(std::exchange(other.held_, false)) {}
  View& operator=(View&& other) noexcept {
    std::swap(buffer_, other.buffer_);
    std::swap(held_, other.held_);
    return *this;
  }

  explicit operator bool() const { return held_; }
  const T* data() const { return held_ ? static_cast<const T*>(buffer_.buf) : nullptr; }
  std::int64_t size(int axis = 0) const { return held_ ? buffer_.shape[axis] : 0; }

  // Throws unless the array has these lengths.
  void expect(const std::string& field, std::initializer_list<std::int64_t> shape) const {
    std::string have;
    std::string want;
    bool same = true;
    int axis = 0;
    for (const std::int64_t length : shape) {
      same = same && size(axis) == length;
      have += (axis == 0 ? "" : ", ") + std::to_string(size(axis));
      want += (axis == 0 ? "" : ", ") + std::to_string(length);
      ++axis;
    }
    if (!same) throw InvalidInput(field, "shape (" + have + ")", "give shape (" + want + ")");
  }

 private:
  [[noreturn]] void reject(const std::string& field, int dimensions) {
    if (held_) PyBuffer_Release(&buffer_);
    held_ = false;
    throw InvalidInput(field, std::monostate(),
                       std::string("give a NumPy array of ") + kNames<T> + " with " +
                           std::to_string(dimensions) + " dimension(s)");
  }

  Py_buffer buffer_{};
  bool held_ = false;
};

template <class T>
using Array1 = nb::ndarray<nb::numpy, T, nb::ndim<1>>;
template <class T>
using Array2 = nb::ndarray<nb::numpy, T, nb::ndim<2>>;

// A new NumPy array, and its memory to fill.
template <class T>
std::pair<Array1<T>, T*> make_array(std::int64_t size) {
  auto* data = new T[static_cast<std::size_t>(size)];
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return {Array1<T>(data, {static_cast<std::size_t>(size)}, owner), data};
}

template <class T>
std::pair<Array2<T>, T*> make_array(std::int64_t rows, std::int64_t columns) {
  auto* data = new T[static_cast<std::size_t>(rows * columns)];
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return {
      Array2<T>(data, {static_cast<std::size_t>(rows), static_cast<std::size_t>(columns)}, owner),
      data};
}

}  // namespace paradecode
