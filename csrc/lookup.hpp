// Drafts by prompt lookup under the budgets `fixed` and `auto`, and what both learn. The
// definitions are in methods/draft: drafters/prompt_lookup.py, acceptance.py and budgets/auto.py
// (`fixed` is in budgets/estimated.py). All numbers are float64 and are computed in the same order,
// so that every decision is the same.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "costs.hpp"
#include "ngram.hpp"

namespace paradecode {

// How often draft tokens are accepted, by kind of evidence.
struct Odds {
  std::vector<double> prior, accepted, tried, all_accepted, all_tried;  // one entry a kind

  double of(int kind) const;
  void update(int kind, bool right);
};

// The ratio of accepted to expected nodes, for nodes of similar reach.
struct Calibration {
  static constexpr int kBuckets = 8;
  double weight = 1;
  double overall = 1;
  // One entry for first children, one for later children, which a chain does not have.
  std::array<double, 2 * kBuckets> promised{};
  std::array<double, 2 * kBuckets> accepted{};

  double corrected(double reach) const;
  void update(const std::vector<float>& reach, int right);
};

// What the requests of a tenant have learned together, under the budget `auto`.
struct Experience {
  Calibration calibration;
  std::int64_t refused = 0;  // consecutive drafts of which nothing was verified
  std::atomic_flag busy;     // set by the thread that uses it
};

// What one request has learned.
struct LookupState {
  static constexpr int kKinds = 18;  // kinds of evidence of a copied token
  Odds odds;
  Odds table_odds;           // one kind for each bucket of the table
  std::int64_t refused = 0;  // consecutive drafts of this request of which nothing was verified
  std::int64_t rest = 0;     // number of steps in which no draft is made
};

// A draft that is a chain.
struct Draft {
  Tokens tokens;
  std::vector<float> estimates;
};

class Lookup {
 public:
  // patience: of the budget `auto`; 0 is the budget `fixed`. The table may be absent.
  Lookup(int shortest, int longest, int most, std::int64_t patience,
         std::shared_ptr<const NgramTable> table)
      : index_(shortest, longest), most_(most), patience_(patience), table_(std::move(table)) {}

  LookupState state;
  std::shared_ptr<Experience> learned = std::make_shared<Experience>();

  int most() const { return most_; }
  const NgramTable* table() const { return table_.get(); }
  // The text before the next step; it may only grow from call to call.
  void read(const Tokens& text) { index_.extend(text); }
  std::size_t length() const { return index_.text().size(); }
  // Returns a draft of at most `room` tokens, cut to the length that gives the most tokens per
  // second beside so many other sequences. A draft is not cut if the seconds were not measured.
  Draft draft(std::int64_t room, const StepSeconds* seconds, std::int64_t neighbours);
  // Records that the first `right` of the tokens drafted last were accepted.
  void learn(const Draft& draft, int right);

 private:
  Draft copy(std::int64_t limit);
  void cut(Draft& draft, const StepSeconds& seconds, std::int64_t neighbours);

  NgramIndex index_;
  int most_;
  std::int64_t patience_;
  std::shared_ptr<const NgramTable> table_;
  struct Judged {
    bool by_table;
    int kind;
  };
  std::vector<Judged> judged_;  // the tokens copied last
};

}  // namespace paradecode
