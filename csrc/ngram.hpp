// Prompt lookup: where the text said the same before, and what a table says follows. The meaning is
// that of methods/draft/ngram_index.py and ngram_table.py; results are equal, token by token.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace paradecode {

constexpr int kLongestMatch = 16;  // LONGEST: matching tokens that are counted
constexpr int kMostNgram = 32;     // of the setting max_ngram

using Tokens = std::vector<std::int32_t>;

// A text with an index from its n-grams to the places that follow them.
class NgramIndex {
 public:
  // 1 <= shortest <= longest <= kMostNgram.
  NgramIndex(int shortest, int longest) : shortest_(shortest), longest_(longest) {}

  const Tokens& text() const { return text_; }
  int longest() const { return longest_; }
  // `text` begins with the text so far.
  void extend(const Tokens& text);

  struct Match {
    std::int64_t place = 0;  // 0: none
    int length = 0;
  };
  // Where the end of `recent` was followed before, and how many tokens match there.
  Match find(const Tokens& recent) const;

 private:
  using Ngram = std::u32string;  // which has a hash, and keeps three tokens without an allocation
  static Ngram ngram(const std::int32_t* tokens, int size) { return {tokens, tokens + size}; }

  int shortest_;
  int longest_;
  Tokens text_;
  std::unordered_map<Ngram, Tokens> places_;
};

// What most often follows a context of up to four tokens, which is known by its hash.
class NgramTable {
 public:
  static constexpr int kOrder = 4;
  static constexpr int kBucketShift = 24;  // of a value: the token, and above it the bucket
  struct Entry {
    std::int32_t token = 0;
    std::int32_t bucket = 0;
  };

  NgramTable() = default;
  // Keys ascend; of equal ones the first is the likeliest.
  NgramTable(std::vector<std::uint32_t> keys, std::vector<std::uint32_t> values);
  // By the longest end of the `count` tokens that it knows; none when it knows none.
  std::optional<Entry> after(const std::int32_t* context, std::int64_t count) const;
  // One more than the largest bucket.
  int buckets() const { return buckets_; }

  // The keys of the last 1, 2, 3 and 4 of `count` tokens; returns how many there are.
  static int keys_of(const std::int32_t* context, std::int64_t count,
                     std::array<std::uint32_t, kOrder>* keys);

 private:
  std::vector<std::uint32_t> keys_;
  std::vector<std::uint32_t> values_;
  int buckets_ = 0;
};

}  // namespace paradecode
