// Prompt lookup: where the text said the same before, and what a table says follows. The meaning is
// that of methods/draft/ngram_index.py and ngram_table.py; results are equal, token by token.
#pragma once

#include <array>
#include <cstdint>
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

// What most often follows a context of up to four tokens.
class NgramTable {
 public:
  static constexpr int kOrder = 4;
  struct Entry {
    std::int32_t token = 0;
    std::int32_t bucket = 0;
  };

  // Contexts of `size` tokens, 1 to kOrder: [count, size + 2], each with its token and bucket.
  void fill(int size, const std::int32_t* rows, std::int64_t count);
  // By the longest end of the `count` tokens that it knows; null when it knows none.
  const Entry* after(const std::int32_t* context, std::int64_t count) const;
  // One more than the largest bucket.
  int buckets() const { return buckets_; }

 private:
  struct Row {
    std::array<std::int32_t, kOrder> context{};  // zeros behind its tokens
    Entry entry;
  };
  std::array<std::vector<Row>, kOrder> rows_;  // by size, ascending
  int buckets_ = 0;
};

}  // namespace paradecode
