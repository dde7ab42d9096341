// Prompt lookup: finds where the same tokens occurred before in the text, and what a table
// predicts. The definitions are those of methods/draft/ngram_index.py and ngram_table.py; results
// are equal, token by token.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace paradecode {

constexpr int kLongestMatch = 16;  // LONGEST: the most matching tokens that are counted
constexpr int kMostNgram = 32;     // largest value of the setting max_ngram

using Tokens = std::vector<std::int32_t>;

// A text with an index from its n-grams to the places that follow them.
class NgramIndex {
 public:
  // 1 <= shortest <= longest <= kMostNgram.
  NgramIndex(int shortest, int longest) : shortest_(shortest), longest_(longest) {}

  const Tokens& text() const { return text_; }
  int longest() const { return longest_; }
  // `text` must begin with the text of the last call.
  void extend(const Tokens& text);

  struct Match {
    std::int64_t place = 0;  // 0 if there is none
    int length = 0;
  };
  // Finds the place behind an earlier occurrence of the end of `recent`, and how many tokens match.
  Match find(const Tokens& recent) const;

 private:
  // a string type has a hash, and stores three tokens without an allocation
  using Ngram = std::u32string;
  static Ngram ngram(const std::int32_t* tokens, int size) { return {tokens, tokens + size}; }

  int shortest_;
  int longest_;
  Tokens text_;
  std::unordered_map<Ngram, Tokens> places_;
};

// A table of the tokens that most often follow contexts of up to four tokens. Contexts are known by
// their hashes.
class NgramTable {
 public:
  static constexpr int kOrder = 4;
  static constexpr int kBucketShift = 24;  // a value holds the token, and above this bit the bucket
  struct Entry {
    std::int32_t token = 0;
    std::int32_t bucket = 0;
  };

  NgramTable() = default;
  // Keys ascend; of equal ones the first is the likeliest.
  NgramTable(std::vector<std::uint32_t> keys, std::vector<std::uint32_t> values);
  // Returns the prediction for the longest known context at the end of the `count` tokens, or none.
  std::optional<Entry> after(const std::int32_t* context, std::int64_t count) const;
  // Returns one more than the largest bucket.
  int buckets() const { return buckets_; }

  // Computes the keys of the last 1, 2, 3 and 4 of `count` tokens, and returns how many there are.
  static int keys_of(const std::int32_t* context, std::int64_t count,
                     std::array<std::uint32_t, kOrder>* keys);

 private:
  std::vector<std::uint32_t> keys_;
  std::vector<std::uint32_t> values_;
  int buckets_ = 0;
};

}  // namespace paradecode
