#include "cache.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "errors.hpp"

namespace paradecode {

Cache::Cache(int layers, int heads, int head_dim, bool half)
    : layers_(layers),
      heads_(heads),
      head_dim_(head_dim),
      padded_dim_((head_dim + kLanes - 1) / kLanes * kLanes),
      element_(half ? 2 : 4) {}

void Cache::reserve(std::int64_t pages) {
  const auto stretches = static_cast<std::size_t>((pages + kStretch - 1) / kStretch);
  store_ = Mapping(stretches * stretch_bytes(false));
  pages_ = pages;
}

void Cache::grow(std::int64_t pages) {
  if (pages <= pages_) return;
  const auto used = static_cast<std::size_t>(pages_ / kStretch) * stretch_bytes(false);
  const Mapping old = std::move(store_);
  reserve((std::max(pages, 2 * pages_) + kStretch - 1) / kStretch * kStretch);
  if (used > 0) std::memcpy(store_.data(), old.data(), used);
}

void Cache::need_scratch(int pages) {
  if (pages <= scratch_pages_) return;
  const auto stretches = static_cast<std::size_t>((2 * pages + kStretch - 1) / kStretch);
  scratch_pages_ = static_cast<std::int64_t>(stretches) * kStretch;
  scratch_ = Mapping(stretches * stretch_bytes(true));
}

std::uint8_t* Cache::at(bool scratch, int layer, int head) const {
  const auto index = static_cast<std::size_t>(scratch ? head : layer * heads_ + head);
  return (scratch ? scratch_ : store_).data() + index * head_bytes();
}

std::uint8_t* Cache::key_at(bool scratch, int layer, int head, std::int64_t page) const {
  return at(scratch, layer, head) +
         static_cast<std::size_t>(page / kStretch) * stretch_bytes(scratch) +
         static_cast<std::size_t>(page % kStretch) * key_page();
}

std::uint8_t* Cache::value_at(bool scratch, int layer, int head, std::int64_t page) const {
  return at(scratch, layer, head) + kStretch * key_page() +
         static_cast<std::size_t>(page / kStretch) * stretch_bytes(scratch) +
         static_cast<std::size_t>(page % kStretch) * value_page();
}

const void* Cache::keys(bool scratch, int layer, int head) const {
  return at(scratch, layer, head);
}

const void* Cache::values(bool scratch, int layer, int head) const {
  return at(scratch, layer, head) + kStretch * key_page();
}

void Cache::put_key(const Slot& slot, int layer, int head, const float* key,
                    const Kernels& kernels) {
  std::uint8_t* page = key_at(slot.scratch, layer, head, slot.page);
  if (element_ == 4) {
    auto* out = reinterpret_cast<float*>(page) + slot.row;
    for (int d = 0; d < head_dim_; ++d) out[d * kPage] = key[d];
    return;
  }
  auto* out = reinterpret_cast<std::uint16_t*>(page) + slot.row;
  for (int d = 0; d < head_dim_; d += kLanes) {
    std::uint16_t halves[kLanes];
    kernels.to_f16(key + d, halves, kLanes);
    for (int i = 0; i < kLanes && d + i < head_dim_; ++i) out[(d + i) * kPage] = halves[i];
  }
}

void Cache::put_value(const Slot& slot, int layer, int head, const float* value,
                      const Kernels& kernels) {
  const auto width = static_cast<std::size_t>(padded_dim_) * element_;
  std::uint8_t* row = value_at(slot.scratch, layer, head, slot.page) + slot.row * width;
  if (element_ == 4)
    std::memcpy(row, value, width);
  else
    kernels.to_f16(value, reinterpret_cast<std::uint16_t*>(row), padded_dim_);
}

void Cache::copy(const std::int64_t* source, const std::int64_t* target, std::int64_t count) {
  const auto width = static_cast<std::size_t>(padded_dim_) * element_;
  const std::size_t key_width = static_cast<std::size_t>(head_dim_) * element_;
  std::vector<std::uint8_t> held(static_cast<std::size_t>(count) * (width + key_width));
  for (int block = 0; block < layers_ * heads_; ++block) {
    const auto walk = [&](const std::int64_t* slots, auto move) {
      std::uint8_t* piece = held.data();
      for (std::int64_t i = 0; i < count; ++i, piece += width + key_width) {
        const std::int64_t page = slots[i] / kPage;
        const auto row = static_cast<std::size_t>(slots[i] % kPage);
        std::uint8_t* key = key_at(false, 0, block, page) + row * element_;
        for (int d = 0; d < head_dim_; ++d)
          move(piece + static_cast<std::size_t>(d) * element_,
               key + static_cast<std::size_t>(d) * kPage * element_, element_);
        move(piece + key_width, value_at(false, 0, block, page) + row * width, width);
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

}  // namespace paradecode
