#include "cache.hpp"

#include <cstring>

#include "errors.hpp"

namespace paradecode {

Cache::Cache(int layers, int heads, int head_dim, bool half)
    : layers_(layers),
      heads_(heads),
      head_dim_(head_dim),
      padded_dim_((head_dim + kLanes - 1) / kLanes * kLanes),
      element_(half ? 2 : 4) {}

void Cache::reserve(std::int64_t pages) {
  const std::size_t head = static_cast<std::size_t>(pages) * (key_page() + value_page());
  store_ = Mapping(head * static_cast<std::size_t>(layers_) * static_cast<std::size_t>(heads_));
  pages_ = pages;
}

void Cache::need_scratch(int pages) {
  if (pages <= scratch_pages_) return;
  scratch_pages_ = 2 * std::int64_t{pages};
  scratch_ = Mapping(static_cast<std::size_t>(scratch_pages_) * (key_page() + value_page()) *
                     static_cast<std::size_t>(heads_));
}

std::uint8_t* Cache::at(bool scratch, int layer, int head) const {
  const auto pages = static_cast<std::size_t>(scratch ? scratch_pages_ : pages_);
  const auto index = static_cast<std::size_t>(scratch ? head : layer * heads_ + head);
  return (scratch ? scratch_ : store_).data() + index * pages * (key_page() + value_page());
}

const void* Cache::keys(bool scratch, int layer, int head) const {
  return at(scratch, layer, head);
}

const void* Cache::values(bool scratch, int layer, int head) const {
  const auto pages = static_cast<std::size_t>(scratch ? scratch_pages_ : pages_);
  return at(scratch, layer, head) + pages * key_page();
}

void Cache::put_key(const Slot& slot, int layer, int head, const float* key,
                    const Kernels& kernels) {
  std::uint8_t* page =
      at(slot.scratch, layer, head) + static_cast<std::size_t>(slot.page) * key_page();
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
  std::uint8_t* row = at(slot.scratch, layer, head);
  const auto pages = static_cast<std::size_t>(slot.scratch ? scratch_pages_ : pages_);
  const auto width = static_cast<std::size_t>(padded_dim_) * element_;
  row += pages * key_page() + static_cast<std::size_t>(slot.page) * value_page() + slot.row * width;
  if (element_ == 4)
    std::memcpy(row, value, width);
  else
    kernels.to_f16(value, reinterpret_cast<std::uint16_t*>(row), padded_dim_);
}

void Cache::copy(const std::int64_t* source, const std::int64_t* target, std::int64_t count) {
  const auto width = static_cast<std::size_t>(padded_dim_) * element_;
  const auto pages = static_cast<std::size_t>(pages_);
  const std::size_t key_width = static_cast<std::size_t>(head_dim_) * element_;
  std::vector<std::uint8_t> held(static_cast<std::size_t>(count) * (width + key_width));
  for (int block = 0; block < layers_ * heads_; ++block) {
    std::uint8_t* keys = at(false, 0, block);
    std::uint8_t* values = keys + pages * key_page();
    const auto walk = [&](const std::int64_t* slots, auto move) {
      std::uint8_t* piece = held.data();
      for (std::int64_t i = 0; i < count; ++i, piece += width + key_width) {
        const auto slot = static_cast<std::size_t>(slots[i]);
        std::uint8_t* key = keys + slot / kPage * key_page() + slot % kPage * element_;
        for (int d = 0; d < head_dim_; ++d)
          move(piece + static_cast<std::size_t>(d) * element_,
               key + static_cast<std::size_t>(d) * kPage * element_, element_);
        move(piece + key_width, values + slot * width, width);
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
