#include "lookup.hpp"

#include <algorithm>
#include <functional>
#include <numeric>

namespace paradecode {
namespace {

constexpr double kKindMemory = 0.9;    // KIND_MEMORY
constexpr double kMemory = 0.95;       // MEMORY of acceptance.py
constexpr double kMostWeight = 1e100;  // MOST_WEIGHT
constexpr double kPrior = 4.0;         // PRIOR
constexpr double kLeast = 0.05;        // LEAST of ngram_table.py
constexpr std::int64_t kHabit = 4;     // HABIT
constexpr double kOthers = 1.5;        // OTHERS
enum Opinion { kAlone, kAgrees, kDiffers };

// length_class: whether 1, 2, 3, 4 to 7, 8 to 15, or more tokens match.
int length_class(int matched) {
  constexpr std::array<int, 5> edges{1, 2, 3, 7, 15};
  return static_cast<int>(std::lower_bound(edges.begin(), edges.end(), matched) - edges.begin());
}

std::vector<float> reach_of(const Draft& draft) {
  std::vector<float> reach(draft.estimates.size());
  std::partial_sum(draft.estimates.begin(), draft.estimates.end(), reach.begin(),
                   std::multiplies<>());
  return reach;
}

std::size_t bucket_of(double reach) {
  if (!(reach > 0)) return 0;
  if (reach >= 1) return Calibration::kBuckets - 1;
  return static_cast<std::size_t>(reach * Calibration::kBuckets);
}

double sum(const std::array<double, 2 * Calibration::kBuckets>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

}  // namespace

double Odds::of(int kind) const {
  const auto k = static_cast<std::size_t>(kind);
  return (2.0 * prior[k] + accepted[k]) / (2.0 + tried[k]);
}

void Odds::update(int kind, bool right) {
  const auto k = static_cast<std::size_t>(kind);
  accepted[k] = kKindMemory * accepted[k] + right;
  tried[k] = kKindMemory * tried[k] + 1;
  all_accepted[k] += right;
  all_tried[k] += 1;
}

double Calibration::corrected(double reach) const {
  const double before = kPrior * weight;
  const std::size_t bucket = bucket_of(reach);
  const double ratio = (before * overall + accepted[bucket]) / (before + promised[bucket]);
  return std::min(reach * ratio, 1.0);
}

void Calibration::update(const std::vector<float>& reach, int right) {
  weight /= kMemory;
  if (weight > kMostWeight) {
    for (double& value : promised) value /= weight;
    for (double& value : accepted) value /= weight;
    weight = 1.0;
  }
  int node = 0;
  for (const double promise : reach) {
    const std::size_t bucket = bucket_of(promise);
    promised[bucket] += weight * promise;
    accepted[bucket] += node++ < right ? weight : 0.0;
  }
  const double before = kPrior * weight;
  overall = (before + sum(accepted)) / (before + sum(promised));
}

Draft Lookup::draft(std::int64_t room, const StepSeconds* seconds, std::int64_t neighbours) {
  if (state.rest > 0) {
    --state.rest;
    return {};
  }
  const std::int64_t limit = std::min<std::int64_t>(most_, room);
  if (limit <= 0) return {};
  Draft draft = copy(limit);
  if (patience_ > 0 && seconds != nullptr) cut(draft, *seconds, neighbours);
  return draft;
}

Draft Lookup::copy(std::int64_t limit) {
  Draft draft;
  const Tokens& text = index_.text();
  const auto length = static_cast<std::int64_t>(text.size());
  const auto kept = std::min<std::int64_t>(length, std::max(kLongestMatch, index_.longest()));
  Tokens recent(text.end() - kept, text.end());
  double path = 1.0;
  judged_.clear();
  NgramIndex::Match match = index_.find(recent);
  while (static_cast<std::int64_t>(draft.tokens.size()) < limit) {
    std::optional<NgramTable::Entry> said;
    // A copy of that length predicts better than the table.
    if (table_ != nullptr && match.length < kLongestMatch)
      said = table_->after(recent.data(), static_cast<std::int64_t>(recent.size()));
    bool follows = match.place > 0;
    std::int32_t token = -1;
    double chance = 0.0;
    int kind = 0;
    // The copy may reach the tokens that it has added itself, so that a repeated text goes on.
    if (follows) {
      token = match.place < length ? text[static_cast<std::size_t>(match.place)]
                                   : draft.tokens[static_cast<std::size_t>(match.place - length)];
      const Opinion opinion = !said ? kAlone : said->token == token ? kAgrees : kDiffers;
      kind = 3 * length_class(match.length) + opinion;
      chance = state.odds.of(kind);
    }
    const double says = !said ? 0.0 : state.table_odds.of(said->bucket);
    if (said && says > chance) {
      follows = said->token == token;
      token = said->token;
      chance = says;
      if (path * chance < kLeast) break;
      judged_.push_back({true, said->bucket});
    } else if (follows) {
      judged_.push_back({false, kind});
    } else {
      break;
    }
    path *= chance;
    draft.tokens.push_back(token);
    draft.estimates.push_back(static_cast<float>(chance));
    recent.push_back(token);
    match = follows ? NgramIndex::Match{match.place + 1, match.length + 1} : index_.find(recent);
  }
  return draft;
}

void Lookup::cut(Draft& draft, const StepSeconds& seconds, std::int64_t neighbours) {
  if (draft.tokens.empty()) return;
  std::vector<float> reach = reach_of(draft);
  std::sort(reach.begin(), reach.end(), std::greater<>());
  double expected = 1.0 + kOthers * static_cast<double>(neighbours);
  double rate = expected / seconds(1);
  std::size_t best = 0;
  for (std::size_t nodes = 1; nodes <= reach.size(); ++nodes) {
    expected += learned->calibration.corrected(reach[nodes - 1]);
    const double taken = seconds(1 + static_cast<std::int64_t>(nodes));
    if (expected > rate * taken) {
      best = nodes;
      rate = expected / taken;
    }
  }
  state.refused = best > 0 ? 0 : state.refused + 1;
  learned->refused = best > 0 ? 0 : learned->refused + 1;
  if (best == 0 && state.refused % patience_ == 0)
    best = 1;
  else if (state.refused >= kHabit)
    state.rest = std::min(state.refused / kHabit + neighbours, patience_);
  draft.tokens.resize(best);
  draft.estimates.resize(best);
}

void Lookup::learn(const Draft& draft, int right) {
  const std::size_t seen = std::min(static_cast<std::size_t>(right) + 1, draft.tokens.size());
  for (std::size_t place = 0; place < seen; ++place) {
    const Judged& judged = judged_[place];
    Odds& odds = judged.by_table ? state.table_odds : state.odds;
    odds.update(judged.kind, static_cast<int>(place) < right);
  }
  if (patience_ > 0 && !draft.tokens.empty()) learned->calibration.update(reach_of(draft), right);
}

}  // namespace paradecode
