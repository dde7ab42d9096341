#include "head_tree.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "exact.hpp"
#include "noise.hpp"

namespace paradecode {
namespace {

// The number of best tokens of a row that are read when noise changes their order.
constexpr std::int64_t kPool = 64;

// Applies logits.kept to the tokens, which come best first, with scaled scores.
void keep(std::vector<Ranked>& pool, std::vector<double>& scores, const Warp& warp) {
  for (double& score : scores) score /= warp.temperature;
  std::size_t count = scores.size();
  while (count > 0 && !std::isfinite(scores[count - 1])) --count;
  if (warp.top_k > 0) count = std::min(count, static_cast<std::size_t>(warp.top_k));
  const auto mass = [&](std::size_t i) { return exact_exp(scores[i] - scores[0]); };
  if (warp.top_p < 1) {
    double total = 0;
    for (std::size_t i = 0; i < count; ++i) total += mass(i);
    double sum = 0;
    for (std::size_t i = 0; i < count; ++i) {
      sum += mass(i);
      if (sum / total >= warp.top_p) count = i + 1;
    }
  }
  if (warp.min_p > 0)
    while (count > 0 && scores[count - 1] < scores[0] + exact_log(warp.min_p)) --count;
  pool.resize(count);
  scores.resize(count);
}

}  // namespace

std::vector<Ranked> ranked(const LogitRows& logits, int row, const TreeLimits& limits,
                           std::size_t level, const std::vector<std::int32_t>& to_target) {
  const bool noisy = limits.warp.temperature > 0 && limits.keys.size() > level;
  const std::int64_t size =
      std::min<std::int64_t>(noisy ? kPool : limits.width, logits.vocab_size());
  std::vector<std::int32_t> ids(static_cast<std::size_t>(size));
  std::vector<float> values(ids.size());
  logits.top_k(row, size, ids.data(), values.data());
  const double normalizer = logits.log_normalizer(row);
  if (!std::isfinite(normalizer)) return {};
  std::vector<Ranked> pool(ids.size());
  std::vector<double> scores(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::int32_t id = ids[i];
    pool[i].token = to_target.empty() ? id : to_target[static_cast<std::size_t>(id)];
    scores[i] = static_cast<double>(values[i]) - normalizer;
  }
  if (noisy) {
    keep(pool, scores, limits.warp);
    if (pool.empty()) return {};
    for (std::size_t i = 0; i < pool.size(); ++i)
      scores[i] += gumbel(limits.keys[level], pool[i].token);
    const double top = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (const double score : scores) sum += exact_exp(score - top);
    for (double& score : scores) score -= top + exact_log(sum);
  }
  for (std::size_t i = 0; i < pool.size(); ++i) pool[i].chance = exact_exp(scores[i]);
  std::vector<std::size_t> order(pool.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return scores[a] > scores[b] || (scores[a] == scores[b] && pool[a].token < pool[b].token);
  });
  order.resize(std::min(order.size(), static_cast<std::size_t>(limits.width)));
  std::vector<Ranked> out;
  for (const std::size_t i : order) out.push_back(pool[i]);
  return out;
}

std::int32_t GrowingTree::add(std::int32_t parent, const Ranked& child) {
  nodes_.push_back({child.token, parent, child.chance, child.chance * reach(parent)});
  return static_cast<std::int32_t>(nodes_.size()) - 1;
}

std::vector<std::int32_t> GrowingTree::extend(const std::vector<std::int32_t>& level,
                                              const std::vector<Ranked>* children, int depth) {
  std::vector<std::int32_t> fresh;
  for (const std::int32_t node : level) {
    for (const Ranked& child : *children) fresh.push_back(add(node, child));
    ++children;
  }
  if (depth + 1 >= limits_.depth) return {};
  double bar = limits_.least;
  const auto count = static_cast<std::size_t>(limits_.count);
  if (count > 0 && nodes_.size() > count) {  // Only a child among the best nodes can be kept.
    std::vector<double> reaches;
    for (const Node& node : nodes_) reaches.push_back(node.reach);
    const auto last = reaches.begin() + static_cast<std::ptrdiff_t>(count) - 1;
    std::nth_element(reaches.begin(), last, reaches.end(), std::greater<>());
    bar = std::max(bar, *last);
  }
  std::stable_sort(fresh.begin(), fresh.end(),
                   [&](std::int32_t a, std::int32_t b) { return reach(a) > reach(b); });
  std::size_t kept = 0;
  while (kept < fresh.size() && kept < static_cast<std::size_t>(limits_.width) &&
         reach(fresh[kept]) > bar)
    ++kept;
  fresh.resize(kept);
  return fresh;
}

void GrowingTree::cross(const std::vector<Ranked>* levels, std::size_t count) {
  struct Open {
    double reach;
    std::int32_t parent;
    std::size_t level;
    std::size_t rank;
  };
  std::vector<Open> open{{levels[0][0].chance, -1, 0, 0}};
  while (!open.empty() && static_cast<std::int64_t>(nodes_.size()) < limits_.count) {
    const auto best = std::max_element(
        open.begin(), open.end(), [](const Open& a, const Open& b) { return a.reach < b.reach; });
    const Open now = *best;
    open.erase(best);
    if (now.reach <= limits_.least) return;
    const std::vector<Ranked>& siblings = levels[now.level];
    const std::int32_t node = add(now.parent, siblings[now.rank]);
    if (now.rank + 1 < siblings.size())
      open.push_back(
          {reach(now.parent) * siblings[now.rank + 1].chance, now.parent, now.level, now.rank + 1});
    if (now.level + 1 < count)
      open.push_back({now.reach * levels[now.level + 1][0].chance, node, now.level + 1, 0});
  }
}

DraftTree GrowingTree::best() const {
  // This is computed in float32, as in TokenTree.
  std::vector<float> reaches;
  for (const Node& node : nodes_) {
    const auto chance = static_cast<float>(node.chance);
    reaches.push_back(node.parent < 0 ? chance
                                      : chance * reaches[static_cast<std::size_t>(node.parent)]);
  }
  std::vector<std::int32_t> order(nodes_.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return reaches[static_cast<std::size_t>(a)] > reaches[static_cast<std::size_t>(b)];
  });
  order.resize(std::min(order.size(), static_cast<std::size_t>(limits_.count)));
  std::sort(order.begin(), order.end());
  DraftTree out;
  std::vector<std::int32_t> renumbered(nodes_.size(), -1);
  for (const std::int32_t node : order) {
    // Parents come first, because no node has a higher reach than its parent.
    const std::int32_t above = parent(node);
    renumbered[static_cast<std::size_t>(node)] = static_cast<std::int32_t>(out.tokens.size());
    out.tokens.push_back(token(node));
    out.parents.push_back(above < 0 ? -1 : renumbered[static_cast<std::size_t>(above)]);
    out.chances.push_back(static_cast<float>(at(node).chance));
  }
  return out;
}

}  // namespace paradecode
