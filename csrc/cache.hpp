// Keys and values of all layers, in pages of 16 slots.
#pragma once

#include <cstdint>
#include <vector>

#include "memory.hpp"
#include "plan.hpp"
#include "types.hpp"

namespace paradecode {

// Layout, per layer and key/value head: all pages of keys, each [head_dim][16], then all pages of
// values, each [16][padded head_dim]. One more such block holds rows that are not stored; it lives
// for one layer of one forward.
class Cache {
 public:
  Cache(int layers, int heads, int head_dim, bool half);

  void reserve(std::int64_t pages);
  void need_scratch(int pages);
  std::int64_t pages() const { return pages_; }
  bool half() const { return element_ == 2; }
  int padded_dim() const { return padded_dim_; }
  std::size_t bytes() const { return store_.bytes(); }

  const void* keys(bool scratch, int layer, int head) const;
  const void* values(bool scratch, int layer, int head) const;
  // Writes one key (head_dim values) or value, rounding it to the cache's type.
  void put_key(const Slot& slot, int layer, int head, const float* key, const Kernels& kernels);
  void put_value(const Slot& slot, int layer, int head, const float* value, const Kernels& kernels);
  // Copies rows between physical slots in every layer; all sources are read first.
  void copy(const std::int64_t* source, const std::int64_t* target, std::int64_t count);

 private:
  std::uint8_t* at(bool scratch, int layer, int head) const;
  std::size_t key_page() const { return element_ * static_cast<std::size_t>(head_dim_) * kPage; }
  std::size_t value_page() const {
    return element_ * static_cast<std::size_t>(padded_dim_) * kPage;
  }

  int layers_;
  int heads_;
  int head_dim_;
  int padded_dim_;
  std::size_t element_;
  std::int64_t pages_ = 0;
  std::int64_t scratch_pages_ = 0;
  Mapping store_;
  Mapping scratch_;
};

}  // namespace paradecode
