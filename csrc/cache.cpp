#include "cache.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "errors.hpp"

namespace paradecode {

Cache::Cache(std::vector<CacheLayer> layers, bool half)
    : layers_(std::move(layers)), element_(half ? 2 : 4) {
  for (int layer = 0; layer < static_cast<int>(layers_.size()); ++layer) {
    const std::size_t bytes = head_bytes(layer) * static_cast<std::size_t>(shape(layer).heads);
    const std::vector<int> known = windows();
    const auto found = std::find(known.begin(), known.end(), shape(layer).window);
    const auto own = static_cast<std::size_t>(found - known.begin());
    // What keeps nothing has no pool of its own.
    if (found == known.end() && bytes > 0) pools_.emplace_back().window = shape(layer).window;
    of_.push_back(bytes > 0 ? own : 0);
    begins_.push_back(bytes > 0 ? pools_[own].stretch : 0);
    if (bytes > 0) pools_[own].stretch += bytes;
    if (!shape(layer).shared) scratch_bytes_ = std::max(scratch_bytes_, bytes);
  }
  for (int layer = 0; layer < static_cast<int>(layers_.size()); ++layer) {
    scratch_begins_.push_back(shape(layer).shared ? scratch_bytes_ : 0);
    if (shape(layer).shared)
      scratch_bytes_ += head_bytes(layer) * static_cast<std::size_t>(shape(layer).heads);
  }
}

std::size_t Cache::pool(int window) const {
  for (std::size_t i = 0; i < pools_.size(); ++i)
    if (pools_[i].window == window) return i;
  throw InvalidInput("window", std::int64_t{window}, "name a window of the model's layers");
}

std::vector<int> Cache::windows() const {
  std::vector<int> out;
  for (const Pool& pool : pools_) out.push_back(pool.window);
  return out;
}

std::size_t Cache::bytes() const {
  std::size_t out = 0;
  for (const Pool& pool : pools_) out += pool.store.bytes();
  return out;
}

std::size_t Cache::taken() const {
  std::size_t out = 0;
  for (const Pool& pool : pools_) out += pool.taken;
  return out;
}

void Cache::reserve(std::int64_t pages) {
  const auto stretches = static_cast<std::size_t>((pages + kStretch - 1) / kStretch);
  pages_ = pages;
  for (Pool& pool : pools_) {
    pool.store = Mapping(stretches * pool.stretch);
    pool.taken = 0;
    advance(0, pool.window);
  }
}

void Cache::advance(std::int64_t page, int window) {
  Pool& own = pools_[pool(window)];
  const std::size_t whole = static_cast<std::size_t>(page / kStretch + 1) * own.stretch;
  const auto used = static_cast<std::size_t>(page % kStretch + 1);
  const std::size_t wanted = std::min(whole + used * own.stretch / kStretch, own.store.bytes());
  if (wanted <= own.taken) return;
  own.store.take(own.taken, wanted);
  own.taken = wanted;
}

void Cache::grow(std::int64_t pages) {
  if (pages <= pages_) return;
  const std::int64_t stretches = (std::max(pages, 2 * pages_) + kStretch - 1) / kStretch;
  for (Pool& pool : pools_) {
    const auto used = static_cast<std::size_t>(pages_ / kStretch) * pool.stretch;
    Mapping larger(static_cast<std::size_t>(stretches) * pool.stretch);
    if (used > 0) std::memcpy(larger.data(), pool.store.data(), used);
    pool.store = std::move(larger);
  }
  pages_ = stretches * kStretch;
}

void Cache::need_scratch(int pages) {
  if (pages <= scratch_pages_) return;
  const auto stretches = static_cast<std::size_t>((2 * pages + kStretch - 1) / kStretch);
  scratch_ = Mapping(stretches * scratch_bytes_);
  scratch_pages_ = static_cast<std::int64_t>(stretches) * kStretch;
}

std::uint8_t* Cache::at(bool scratch, int layer, int head) const {
  const auto index = static_cast<std::size_t>(layer);
  std::uint8_t* base = scratch ? scratch_.data() + scratch_begins_[index]
                               : pool_of(layer).store.data() + begins_[index];
  return base + static_cast<std::size_t>(head) * head_bytes(layer);
}

std::uint8_t* Cache::key_at(bool scratch, int layer, int head, std::int64_t page) const {
  return at(scratch, layer, head) +
         static_cast<std::size_t>(page / kStretch) * stretch_bytes(scratch, layer) +
         static_cast<std::size_t>(page % kStretch) * key_page(layer);
}

std::uint8_t* Cache::value_at(bool scratch, int layer, int head, std::int64_t page) const {
  return at(scratch, layer, head) + kStretch * key_page(layer) +
         static_cast<std::size_t>(page / kStretch) * stretch_bytes(scratch, layer) +
         static_cast<std::size_t>(page % kStretch) * value_page(layer);
}

const void* Cache::keys(bool scratch, int layer, int head) const {
  return at(scratch, layer, head);
}

const void* Cache::values(bool scratch, int layer, int head) const {
  return at(scratch, layer, head) + kStretch * key_page(layer);
}

void Cache::put_key(const Slot& slot, int layer, int head, const float* key,
                    const Kernels& kernels) {
  std::uint8_t* page = key_at(slot.scratch, layer, head, slot.page);
  const int dim = shape(layer).head_dim;
  if (element_ == 4) {
    auto* out = reinterpret_cast<float*>(page) + slot.row;
    for (int d = 0; d < dim; ++d) out[d * kPage] = key[d];
    return;
  }
  auto* out = reinterpret_cast<std::uint16_t*>(page) + slot.row;
  for (int d = 0; d < dim; d += kLanes) {
    std::uint16_t halves[kLanes];
    kernels.to_f16(key + d, halves, kLanes);
    for (int i = 0; i < kLanes && d + i < dim; ++i) out[(d + i) * kPage] = halves[i];
  }
}

void Cache::put_value(const Slot& slot, int layer, int head, const float* value,
                      const Kernels& kernels) {
  const int padded = shape(layer).padded_dim();
  const auto width = static_cast<std::size_t>(padded) * element_;
  std::uint8_t* row = value_at(slot.scratch, layer, head, slot.page) + slot.row * width;
  if (element_ == 4)
    std::memcpy(row, value, width);
  else
    kernels.to_f16(value, reinterpret_cast<std::uint16_t*>(row), padded);
}

void Cache::copy(const std::int64_t* source, const std::int64_t* target, std::int64_t count,
                 int window) {
  for (std::int64_t i = 0; i < count; ++i) advance(target[i] / kPage, window);
  std::vector<std::uint8_t> held;
  for (int layer = 0; layer < static_cast<int>(layers_.size()); ++layer) {
    const CacheLayer& own = shape(layer);
    if (own.window != window) continue;
    const auto width = static_cast<std::size_t>(own.padded_dim()) * element_;
    const std::size_t key_width = static_cast<std::size_t>(own.head_dim) * element_;
    held.resize(static_cast<std::size_t>(count) * (width + key_width));
    for (int head = 0; head < own.heads; ++head) {
      const auto walk = [&](const std::int64_t* slots, auto move) {
        std::uint8_t* piece = held.data();
        for (std::int64_t i = 0; i < count; ++i, piece += width + key_width) {
          const std::int64_t page = slots[i] / kPage;
          const auto row = static_cast<std::size_t>(slots[i] % kPage);
          std::uint8_t* key = key_at(false, layer, head, page) + row * element_;
          for (int d = 0; d < own.head_dim; ++d)
            move(piece + static_cast<std::size_t>(d) * element_,
                 key + static_cast<std::size_t>(d) * kPage * element_, element_);
          move(piece + key_width, value_at(false, layer, head, page) + row * width, width);
        }
      };
      walk(source, [](std::uint8_t* mine, std::uint8_t* cached, std::size_t n) {
        std::memcpy(mine, cached, n);
      });
      walk(target, [](std::uint8_t* mine, std::uint8_t* cached, std::size_t n) {
        std::memcpy(cached, mine, n);
      });
    }
  }
}

}  // namespace paradecode
