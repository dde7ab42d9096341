#include "ngram.hpp"

#include <algorithm>

namespace paradecode {
namespace {

constexpr std::size_t kPlaces = 8;  // PLACES: occurrences of an n-gram that are compared

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

void NgramTable::fill(int size, const std::int32_t* rows, std::int64_t count) {
  auto& mine = rows_[static_cast<std::size_t>(size - 1)];
  mine.resize(static_cast<std::size_t>(count));
  for (Row& row : mine) {
    std::copy_n(rows, size, row.context.begin());
    row.entry = {rows[size], rows[size + 1]};
    buckets_ = std::max(buckets_, row.entry.bucket + 1);
    rows += size + 2;
  }
  std::sort(mine.begin(), mine.end(),
            [](const Row& a, const Row& b) { return a.context < b.context; });
}

const NgramTable::Entry* NgramTable::after(const std::int32_t* context, std::int64_t count) const {
  for (auto size = std::min<std::int64_t>(count, kOrder); size > 0; --size) {
    std::array<std::int32_t, kOrder> wanted{};
    std::copy_n(context + count - size, size, wanted.begin());
    const auto& rows = rows_[static_cast<std::size_t>(size - 1)];
    const auto at =
        std::lower_bound(rows.begin(), rows.end(), wanted,
                         [](const Row& row, const auto& tokens) { return row.context < tokens; });
    if (at != rows.end() && at->context == wanted) return &at->entry;
  }
  return nullptr;
}

}  // namespace paradecode
