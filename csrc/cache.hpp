// Keys and values of all layers, in pages of 16 slots.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "memory.hpp"
#include "plan.hpp"
#include "types.hpp"

namespace paradecode {

// Heads of keys and values of a layer, their size, and the sliding window of the layer. Layers with
// one window share their pages.
struct CacheLayer {
  int heads = 0;
  int head_dim = 0;
  int window = 0;       // 0: none
  bool shared = false;  // other layers read them, too
  int padded_dim() const { return round_up(head_dim, kLanes); }
};

// The layers with one window have a pool of pages. Its pages come in stretches of kStretch, so that
// a short text touches little of what is reserved. A stretch has, for each of these layers and
// key/value heads, its pages of keys, each [head_dim][16], and then its pages of values, each
// [16][padded head_dim]. More such stretches hold rows that are not stored: those of a layer that
// others read live for one forward, and the others, which lie in one place, for one layer of it.
class Cache {
 public:
  Cache(std::vector<CacheLayer> layers, bool half);

  // So many pages in each pool.
  void reserve(std::int64_t pages);
  // At least so many pages; those that were there keep their keys and values.
  void grow(std::int64_t pages);
  void need_scratch(int pages);
  // Rows are about to be stored up to this page: their memory is taken from the system, and a part
  // of that of the next stretch, so that no row waits for a whole one.
  void advance(std::int64_t page, int window);
  std::int64_t pages() const { return pages_; }
  bool half() const { return element_ == 2; }
  std::size_t bytes() const;
  // What was taken from the system, of all pools.
  std::size_t taken() const;
  // Of one token, in all layers with a window; and these windows.
  std::size_t slot_bytes(int window) const {
    return pools_[pool(window)].stretch / (kStretch * kPage);
  }
  std::vector<int> windows() const;
  // Whether layers with a window keep anything.
  bool keeps(int window) const {
    return std::any_of(pools_.begin(), pools_.end(),
                       [&](const Pool& pool) { return pool.window == window; });
  }

  // Of a token's key and value of one head.
  std::size_t head_slot_bytes(int layer) const {
    return (key_page(layer) + value_page(layer)) / kPage;
  }

  const void* keys(bool scratch, int layer, int head) const;
  const void* values(bool scratch, int layer, int head) const;
  // Elements from one stretch to the next.
  std::int64_t stretch(bool scratch, int layer) const {
    return static_cast<std::int64_t>(stretch_bytes(scratch, layer) / element_);
  }
  // Writes one key (head_dim values) or value, rounding it to the cache's type.
  void put_key(const Slot& slot, int layer, int head, const float* key, const Kernels& kernels);
  void put_value(const Slot& slot, int layer, int head, const float* value, const Kernels& kernels);
  // Copies rows between physical slots in the layers with a window; all sources are read first.
  void copy(const std::int64_t* source, const std::int64_t* target, std::int64_t count, int window);

 private:
  // The pages of the layers with one window.
  struct Pool {
    int window = 0;
    std::size_t stretch = 0;  // bytes of a stretch
    std::size_t taken = 0;    // bytes of the store, from its start, that the system has given
    Mapping store;
  };

  std::size_t pool(int window) const;  // an index; throws InvalidInput
  const Pool& pool_of(int layer) const { return pools_[of_[static_cast<std::size_t>(layer)]]; }
  // The first key page of a layer and head in the first stretch; values lie kStretch pages on.
  std::uint8_t* at(bool scratch, int layer, int head) const;
  std::uint8_t* key_at(bool scratch, int layer, int head, std::int64_t page) const;
  std::uint8_t* value_at(bool scratch, int layer, int head, std::int64_t page) const;
  const CacheLayer& shape(int layer) const { return layers_[static_cast<std::size_t>(layer)]; }
  std::size_t head_bytes(int layer) const {
    return kStretch * (key_page(layer) + value_page(layer));
  }
  std::size_t stretch_bytes(bool scratch, int layer) const {
    return scratch ? scratch_bytes_ : pool_of(layer).stretch;
  }
  std::size_t key_page(int layer) const {
    return element_ * static_cast<std::size_t>(shape(layer).head_dim) * kPage;
  }
  std::size_t value_page(int layer) const {
    return element_ * static_cast<std::size_t>(shape(layer).padded_dim()) * kPage;
  }

  std::vector<CacheLayer> layers_;
  std::size_t element_;
  std::vector<Pool> pools_;
  std::vector<std::size_t> of_;      // of each layer, its pool
  std::vector<std::size_t> begins_;  // of each layer in a stretch of its pool, in bytes
  // The same for rows that are not stored.
  std::vector<std::size_t> scratch_begins_;
  std::size_t scratch_bytes_ = 0;
  std::int64_t pages_ = 0;  // of each pool
  std::int64_t scratch_pages_ = 0;
  Mapping scratch_;
};

}  // namespace paradecode
