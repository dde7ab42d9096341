#include "ngram.hpp"

#include <algorithm>
#include <utility>

namespace paradecode {
namespace {

constexpr std::size_t kPlaces = 8;  // PLACES: occurrences of an n-gram that are compared
constexpr std::uint64_t kMix = 0x9E3779B97F4A7C15;  // MIX of ngram_table.py

}  // namespace

void NgramIndex::extend(const Tokens& text) {
  const auto first = static_cast<std::int64_t>(text_.size());
  text_.insert(text_.end(), text.begin() + first, text.end());
  const auto length = static_cast<std::int64_t>(text_.size());
  for (std::int64_t end = std::max<std::int64_t>(first, 1); end < length; ++end)
    for (int size = shortest_; size <= std::min<std::int64_t>(longest_, end); ++size) {
      Tokens& ends = places_[ngram(text_.data() + end - size, size)];
      ends.push_back(static_cast<std::int32_t>(end));
      if (ends.size() > kPlaces) ends.erase(ends.begin());
    }
}

NgramIndex::Match NgramIndex::find(const Tokens& recent) const {
  const auto length = static_cast<int>(recent.size());
  const std::int32_t* end_of_recent = recent.data() + length;
  for (int size = std::min(longest_, length); size >= shortest_; --size) {
    const auto known = places_.find(ngram(end_of_recent - size, size));
    if (known == places_.end()) continue;
    Match best;
    for (auto end = known->second.rbegin(); end != known->second.rend(); ++end) {
      const int most = std::min({*end, length, kLongestMatch});
      int same = size;
      while (same < most &&
             text_[static_cast<std::size_t>(*end - 1 - same)] == *(end_of_recent - 1 - same))
        ++same;
      if (same > best.length) best = {*end, same};
    }
    return best;
  }
  return {};
}

NgramTable::NgramTable(std::vector<std::uint32_t> keys, std::vector<std::uint32_t> values)
    : keys_(std::move(keys)), values_(std::move(values)) {
  for (const std::uint32_t value : values_)
    buckets_ = std::max(buckets_, static_cast<int>(value >> kBucketShift) + 1);
}

int NgramTable::keys_of(const std::int32_t* context, std::int64_t count,
                        std::array<std::uint32_t, kOrder>* keys) {
  const auto known = static_cast<int>(std::min<std::int64_t>(count, kOrder));
  std::uint64_t made = 0;
  for (int back = 1; back <= known; ++back) {
    made = made * kMix + static_cast<std::uint64_t>(context[count - back]) + 1;
    (*keys)[static_cast<std::size_t>(back - 1)] = static_cast<std::uint32_t>(made * kMix >> 32);
  }
  return known;
}

std::optional<NgramTable::Entry> NgramTable::after(const std::int32_t* context,
                                                   std::int64_t count) const {
  std::array<std::uint32_t, kOrder> keys{};
  for (int size = keys_of(context, count, &keys); size > 0; --size) {
    const std::uint32_t key = keys[static_cast<std::size_t>(size - 1)];
    const auto at = std::lower_bound(keys_.begin(), keys_.end(), key);
    if (at == keys_.end() || *at != key) continue;
    const std::uint32_t value = values_[static_cast<std::size_t>(at - keys_.begin())];
    return Entry{static_cast<std::int32_t>(value % (1U << kBucketShift)),
                 static_cast<std::int32_t>(value >> kBucketShift)};
  }
  return std::nullopt;
}

}  // namespace paradecode
