#include "experts.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "errors.hpp"
#include "exact.hpp"

namespace paradecode {
namespace {

constexpr int kMostExperts = 4096;

// Rectified logits, normed as RMSNorm does: BlockFFN's (arXiv 2507.08771).
void rectify(const float* logits, const float* norm, float epsilon, std::vector<double>& scores) {
  double squares = 0;
  for (std::size_t e = 0; e < scores.size(); ++e) {
    scores[e] = logits[e] > 0 ? double{logits[e]} : logits[e] <= 0 ? 0.0 : NAN;
    squares += scores[e] * scores[e];
  }
  const double root = std::sqrt(squares / static_cast<double>(scores.size()) + double{epsilon});
  for (std::size_t e = 0; e < scores.size(); ++e) scores[e] = scores[e] / root * double{norm[e]};
}

// Scores of all experts from logits.
void score(const float* logits, const float* norm, const MixtureShape& shape, float epsilon,
           std::vector<double>& scores) {
  const auto count = static_cast<std::size_t>(shape.experts);
  scores.resize(count);
  if (shape.score == Score::Relu) return rectify(logits, norm, epsilon, scores);
  if (shape.score == Score::Sigmoid) {
    for (std::size_t e = 0; e < count; ++e)
      scores[e] = 1.0 / (1.0 + exact_exp(-static_cast<double>(logits[e])));
    return;
  }
  const double top = *std::max_element(logits, logits + count);
  double sum = 0;
  for (std::size_t e = 0; e < count; ++e) sum += scores[e] = exact_exp(logits[e] - top);
  for (double& value : scores) value /= sum;
}

// Keeps only the experts of the best groups; a group's rank is the sum of its two best scores.
void keep_groups(const MixtureShape& shape, std::vector<double>& ranked) {
  const auto size = static_cast<std::size_t>(shape.experts / shape.groups);
  std::vector<std::pair<double, int>> worth;
  for (int group = 0; group < shape.groups; ++group) {
    double best = -INFINITY;
    double second = -INFINITY;
    for (std::size_t e = 0; e < size; ++e) {
      const double value = ranked[static_cast<std::size_t>(group) * size + e];
      second = std::max(second, std::min(best, value));
      best = std::max(best, value);
    }
    worth.emplace_back(-(best + second), group);
  }
  std::sort(worth.begin(), worth.end());
  for (int left = shape.chosen_groups; left < shape.groups; ++left) {
    const auto first =
        static_cast<std::size_t>(worth[static_cast<std::size_t>(left)].second) * size;
    std::fill_n(ranked.begin() + static_cast<std::ptrdiff_t>(first), size, -INFINITY);
  }
}

}  // namespace

void MixtureShape::check() const {
  const auto range = [](const char* field, int value, int low, int high) {
    if (value < low || value > high)
      throw InvalidInput(field, std::int64_t{value},
                         "give " + std::to_string(low) + " to " + std::to_string(high));
  };
  range("experts", experts, 0, kMostExperts);
  if (experts == 0) return;
  range("chosen", chosen, 1, experts);
  range("expert_size", expert_size, 1, 1 << 20);
  range("shared_size", shared_size, shared_gated ? 1 : 0, 1 << 20);
  range("groups", groups, 1, experts);
  range("chosen_groups", chosen_groups, 1, groups);
  if (experts % groups != 0 || chosen > experts / groups * chosen_groups)
    throw InvalidInput("groups", std::int64_t{groups}, "give equal groups with enough experts");
}

int MixtureShape::most_places(int rows) const {
  const int routed = rows * chosen;
  const int begun = std::min(experts, routed);
  return routed + begun * (kRowGroup - 1) + (shared_size > 0 ? rows : 0) + kRowGroup;
}

void route(const float* logits, const RouterVectors& vectors, const MixtureShape& shape,
           float epsilon, int* experts, float* weights) {
  thread_local std::vector<double> scores;
  thread_local std::vector<double> ranked;
  thread_local std::vector<int> order;
  const float* bias = vectors.bias;
  score(logits, vectors.norm, shape, epsilon, scores);
  ranked = scores;
  if (bias != nullptr)
    for (std::size_t e = 0; e < ranked.size(); ++e) ranked[e] += bias[e];
  const std::vector<double> biased = shape.biased_weights ? ranked : scores;
  if (shape.groups > 1) keep_groups(shape, ranked);
  order.resize(ranked.size());
  for (std::size_t e = 0; e < order.size(); ++e) order[e] = static_cast<int>(e);
  // A NaN is no better than any score, and equal scores are ordered by the expert's number.
  const auto value = [&](int e) {
    const double rank = ranked[static_cast<std::size_t>(e)];
    return std::isnan(rank) ? -INFINITY : rank;
  };
  std::partial_sort(order.begin(), order.begin() + shape.chosen, order.end(), [&](int a, int b) {
    return value(a) != value(b) ? value(a) > value(b) : a < b;
  });
  double sum = 0;
  for (int k = 0; k < shape.chosen; ++k) {
    experts[k] = order[static_cast<std::size_t>(k)];
    sum += biased[static_cast<std::size_t>(experts[k])];
  }
  const double divisor = shape.normalised ? sum + 1e-20 : 1.0;
  for (int k = 0; k < shape.chosen; ++k) {
    const int e = experts[k];
    weights[k] = static_cast<float>(biased[static_cast<std::size_t>(e)] / divisor *
                                    static_cast<double>(shape.scale));
    if (vectors.gain != nullptr) weights[k] *= vectors.gain[e];
    if (shape.score == Score::Relu && logits[e] <= 0) experts[k] = -1;
  }
}

void Routing::plan(const MixtureShape& shape, const int* experts, int rows, int block) {
  const auto all = static_cast<std::size_t>(shape.all());
  const auto chosen = static_cast<std::size_t>(shape.chosen);
  width_ = chosen + (shape.shared_size > 0 ? 1 : 0);
  std::vector<int> counts(all, 0);
  const std::size_t sent = static_cast<std::size_t>(rows) * chosen;
  for (std::size_t i = 0; i < sent; ++i)
    if (experts[i] >= 0) ++counts[static_cast<std::size_t>(experts[i])];
  if (width_ > chosen) counts[all - 1] = rows;
  std::vector<int> next(all, 0);
  blocks_.clear();
  int place = 0;
  for (std::size_t e = 0; e < all; ++e) {
    next[e] = place;
    for (int done = 0; done < counts[e]; done += block)
      blocks_.push_back({static_cast<int>(e), place + done, std::min(block, counts[e] - done)});
    place += (counts[e] + kRowGroup - 1) / kRowGroup * kRowGroup;
  }
  rows_.assign(static_cast<std::size_t>(place), -1);
  places_.resize(static_cast<std::size_t>(rows) * width_);
  for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row)
    for (std::size_t k = 0; k < width_; ++k) {
      const int expert = k < chosen ? experts[row * chosen + k] : shape.all() - 1;
      places_[row * width_ + k] = -1;
      if (expert < 0) continue;
      const auto e = static_cast<std::size_t>(expert);
      places_[row * width_ + k] = next[e];
      rows_[static_cast<std::size_t>(next[e]++)] = static_cast<int>(row);
    }
}

}  // namespace paradecode
