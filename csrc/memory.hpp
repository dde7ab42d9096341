// Page-aligned memory that the system provides when it is first used, in huge pages where possible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace paradecode {

// A mapping of zeroed memory.
class Mapping {
 public:
  Mapping() = default;
  explicit Mapping(std::size_t bytes);
  ~Mapping();
  Mapping(Mapping&& other) noexcept { *this = std::move(other); }
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::uint8_t* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  // Asks the system to provide these bytes now, where this is possible; the contents stay as they
  // are.
  void take(std::size_t begin, std::size_t end) const;

 private:
  std::uint8_t* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// Gives out pieces of large mappings; all of them are freed together.
class Arena {
 public:
  std::uint8_t* take(std::size_t bytes);

 private:
  std::vector<Mapping> chunks_;
  std::size_t used_ = 0;
};

// A buffer that only grows; its contents are lost when it does.
template <class T>
class Buffer {
 public:
  T* need(std::size_t count) {
    const std::size_t bytes = count * sizeof(T);
    if (bytes > mapping_.bytes()) mapping_ = Mapping(bytes + bytes / 4);
    return data();
  }
  T* data() const { return reinterpret_cast<T*>(mapping_.data()); }

 private:
  Mapping mapping_;
};

}  // namespace paradecode
