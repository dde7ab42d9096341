#include "logits.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <functional>
#include <numeric>

#include "errors.hpp"
#include "exact.hpp"
#include "noise.hpp"

namespace paradecode {
namespace {

constexpr std::size_t kKeptMappings = 16;
// The most bytes that are kept for the next forward: 170 rows of a vocabulary of 49,152. Without a
// bound the largest forward so far would determine them.
constexpr std::size_t kKeptBytes = std::size_t{32} << 20;
constexpr std::int64_t kBlock = 64;        // values in a block of Kernels::block_best
constexpr std::int64_t kNoiseStep = 4096;  // tokens between two updates of the best sample so far
// Number of values from which on waking a thread saves more than it costs.
constexpr std::int64_t kWorthSharing = 1 << 17;

// Scratch memory of one thread. `order` holds token ids, `scaled` their logits over the
// temperature.
struct Scratch {
  std::vector<std::int32_t> order;
  std::vector<double> scaled;
  std::vector<float> blocks;
  std::vector<float> changed;  // values of a row with its changes, for LogitRows::read
};

Scratch& scratch() {
  thread_local Scratch mine;
  return mine;
}

}  // namespace

std::shared_ptr<float> LogitStore::take(std::size_t count) {
  const std::size_t bytes = count * sizeof(float);
  auto mapping = std::make_shared<Mapping>();
  {
    const std::lock_guard lock(mutex_);
    auto best = free_.end();
    for (auto it = free_.begin(); it != free_.end(); ++it)
      if (it->bytes() >= bytes && (best == free_.end() || it->bytes() < best->bytes())) best = it;
    if (best != free_.end()) {
      *mapping = std::move(*best);
      free_.erase(best);
      kept_ -= mapping->bytes();
    }
  }
  if (mapping->data() == nullptr) *mapping = Mapping(bytes);
  auto* data = reinterpret_cast<float*>(mapping->data());
  return {data, [self = shared_from_this(), mapping](float*) { self->give(std::move(*mapping)); }};
}

void LogitStore::give(Mapping mapping) {
  if (mapping.bytes() > kKeptBytes) return;  // A larger mapping would leave no room for all others.
  const std::lock_guard lock(mutex_);
  kept_ += mapping.bytes();
  free_.push_back(std::move(mapping));
  while (kept_ > kKeptBytes || free_.size() > kKeptMappings) {
    kept_ -= free_.front().bytes();
    free_.pop_front();
  }
}

LogitRows::LogitRows(std::shared_ptr<LogitStore> store, const Kernels& kernels,
                     std::shared_ptr<Team> team, int rows, int vocab_size)
    : LogitRows(std::move(store), kernels, std::move(team), vocab_size) {
  if (rows == 0) return;
  const auto memory = store_->take(static_cast<std::size_t>(rows * stride()));
  for (int r = 0; r < rows; ++r)
    rows_.push_back({std::shared_ptr<float>(memory, memory.get() + r * stride()), nullptr});
}

std::shared_ptr<LogitRows> LogitRows::select(const std::int64_t* rows, std::int64_t count) const {
  std::shared_ptr<LogitRows> out(new LogitRows(store_, *kernels_, team_, vocab_size_));
  out->rows_.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t at = rows[i] < 0 ? rows[i] + this->rows() : rows[i];
    if (at < 0 || at >= this->rows())
      throw InvalidInput("rows", rows[i],
                         "there are " + std::to_string(this->rows()) + " rows of logits");
    out->rows_.push_back(rows_[static_cast<std::size_t>(at)]);
    if (!chosen_.empty()) out->chosen_.push_back(chosen_[static_cast<std::size_t>(at)]);
  }
  return out;
}

std::shared_ptr<LogitRows> LogitRows::tempered(float temperature) const {
  if (!(temperature > 0) || !std::isfinite(temperature))
    throw InvalidInput("temperature", std::monostate(), "give a finite number above 0");
  auto out = std::make_shared<LogitRows>(store_, *kernels_, team_, rows(), vocab_size_);
  for_each([&](int row) {
    const float* from = read(row);
    float* to = out->writable(row);
    for (std::int64_t i = 0; i < stride(); ++i) to[i] = from[i] / temperature;
  });
  return out;
}

const float* LogitRows::read(int index) const {
  if (!chosen_.empty()) throw BackendError("of these logits only the best tokens are known");
  const Row& row = rows_[static_cast<std::size_t>(index)];
  if (row.changes == nullptr) return row.values.get();
  auto& changed = scratch().changed;
  changed.assign(row.values.get(), row.values.get() + stride());
  for (const auto& [id, value] : *row.changes) changed[static_cast<std::size_t>(id)] = value;
  return changed.data();
}

float LogitRows::value(int index, std::int32_t id) const {
  if (!chosen_.empty()) read(index);  // This throws, because the row has no values.
  const Row& row = rows_[static_cast<std::size_t>(index)];
  if (row.changes != nullptr) {
    const auto at =
        std::lower_bound(row.changes->begin(), row.changes->end(), id,
                         [](const auto& change, auto wanted) { return change.first < wanted; });
    if (at != row.changes->end() && at->first == id) return at->second;
  }
  return row.values.get()[id];
}

void LogitRows::add(int index, const std::int32_t* ids, const float* added, std::int64_t count) {
  const FloatState state;
  auto& row = rows_[static_cast<std::size_t>(index)];
  auto changes = std::make_shared<Changes>();
  // Changes apply to the old row. Of an id that is named twice the last change counts, as in NumPy.
  for (std::int64_t i = count - 1; i >= 0; --i)
    changes->emplace_back(ids[i], value(index, ids[i]) + added[i]);
  if (row.changes != nullptr)
    changes->insert(changes->end(), row.changes->begin(), row.changes->end());
  std::stable_sort(changes->begin(), changes->end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  const auto end = std::unique(changes->begin(), changes->end(),
                               [](const auto& a, const auto& b) { return a.first == b.first; });
  changes->erase(end, changes->end());
  row.changes = std::move(changes);
}

void LogitRows::for_each(const std::function<void(int)>& each) const {
  struct Job {
    const std::function<void(int)>& each;
    std::vector<std::exception_ptr> errors;
  } job{each, std::vector<std::exception_ptr>(rows_.size())};
  const auto work = [](void* context, Member& member) {
    auto& mine = *static_cast<Job*>(context);
    member.phase(static_cast<int>(mine.errors.size()), [&](int row) {
      try {
        mine.each(row);
      } catch (...) {
        mine.errors[static_cast<std::size_t>(row)] = std::current_exception();
      }
    });
  };
  const FloatState state;
  const bool worth = rows() > 1 && rows() * stride() >= kWorthSharing;
  if (!worth || team_ == nullptr || !team_->run_if_free(1, work, &job)) {
    for (int row = 0; row < rows(); ++row) each(row);
    return;
  }
  for (const auto& error : job.errors)
    if (error != nullptr) std::rethrow_exception(error);
}

std::int32_t LogitRows::best_of(const float* logits) const {
  float value = 0;
  std::int64_t best = 0;
  bool nan = false;
  kernels_->best(logits, stride(), &value, &best, &nan);
  if (nan || !std::isfinite(value))
    throw BackendError("the model returned logits that are NaN or infinite");
  return static_cast<std::int32_t>(best);
}

std::int32_t LogitRows::argmax(int index) const {
  if (chosen_.empty()) return best_of(read(index));
  const std::int32_t best = chosen_[static_cast<std::size_t>(index)];
  if (best < 0) throw BackendError("the model returned logits that are NaN or infinite");
  return best;
}

// Puts the ids of the k best values (and perhaps others) into the scratch; returns how many.
std::int64_t LogitRows::select_best(const float* row, std::int64_t k) const {
  Scratch& s = scratch();
  s.order.resize(static_cast<std::size_t>(stride()));
  // At least k blocks have a maximum of at least the k-th best maximum, so k values reach it.
  const std::int64_t blocks = stride() / kBlock;
  float threshold = -INFINITY;
  if (k <= blocks) {
    s.blocks.resize(static_cast<std::size_t>(blocks));
    kernels_->block_best(row, blocks, s.blocks.data());
    for (float& top : s.blocks)
      if (std::isnan(top)) top = -INFINITY;
    const auto kth = s.blocks.begin() + (k - 1);
    std::nth_element(s.blocks.begin(), kth, s.blocks.end(), std::greater<>());
    threshold = *kth;
  }
  std::int64_t count = kernels_->collect(row, stride(), threshold, s.order.data());
  while (count > 0 && s.order[static_cast<std::size_t>(count - 1)] >= vocab_size_) --count;
  if (count < k)  // NaN is never among the values
    for (std::int32_t id = 0; id < vocab_size_; ++id)
      if (std::isnan(row[id])) s.order[static_cast<std::size_t>(count++)] = id;
  return count;
}

// Orders the first `count` ids of the scratch so that the k best come first, ties by id.
void LogitRows::order_best(const float* row, std::int64_t count, std::int64_t k) const {
  Scratch& s = scratch();
  const auto better = [row](std::int32_t a, std::int32_t b) {
    const float x = std::isnan(row[a]) ? -INFINITY : row[a];
    const float y = std::isnan(row[b]) ? -INFINITY : row[b];
    return x > y || (x == y && a < b);
  };
  const auto begin = s.order.begin();
  std::partial_sort(begin, begin + std::min(k, count), begin + count, better);
}

void LogitRows::top_k(int index, std::int64_t k, std::int32_t* ids, float* values) const {
  const float* logits = read(index);
  order_best(logits, select_best(logits, k), k);
  for (std::int64_t i = 0; i < k; ++i) {
    ids[i] = scratch().order[static_cast<std::size_t>(i)];
    values[i] = logits[ids[i]];
  }
}

double LogitRows::normalizer_of(const float* logits) const {
  float top = 0;
  std::int64_t best = 0;
  bool nan = false;
  kernels_->best(logits, stride(), &top, &best, &nan);
  if (nan || !std::isfinite(top)) return NAN;
  double mass = 0;
  kernels_->softmax_sums(logits, stride(), top, &mass, nullptr);
  return static_cast<double>(top) + exact_log(mass);
}

double LogitRows::log_normalizer(int index) const { return normalizer_of(read(index)); }

double LogitRows::entropy(int index) const {
  const float* logits = read(index);
  float top = 0;
  std::int64_t best = 0;
  bool nan = false;
  kernels_->best(logits, stride(), &top, &best, &nan);
  if (nan || !std::isfinite(top)) return NAN;
  double mass = 0;
  double moment = 0;
  kernels_->softmax_sums(logits, stride(), top, &mass, &moment);
  return exact_log(mass) - moment / mass;
}

double LogitRows::margin(int index) const {
  const float* logits = read(index);
  const std::int64_t k = std::min(2, vocab_size_);
  order_best(logits, select_best(logits, k), k);
  const auto& order = scratch().order;
  const double normalizer = normalizer_of(logits);
  const double first = exact_exp(logits[order[0]] - normalizer);
  return k == 1 ? first : first - exact_exp(logits[order[1]] - normalizer);
}

// Puts the tokens that survive the warp, ascending, with their scaled logits, into the scratch.
std::int64_t LogitRows::keep(const float* logits, const Warp& warp) const {
  Scratch& s = scratch();
  const double temperature = warp.temperature;
  const auto scale = [&](std::int32_t id) { return static_cast<double>(logits[id]) / temperature; };
  const auto drop_infinite = [&](std::int64_t count) {
    const auto end = std::remove_if(s.order.begin(), s.order.begin() + count,
                                    [&](std::int32_t id) { return !std::isfinite(scale(id)); });
    return static_cast<std::int64_t>(end - s.order.begin());
  };
  // Returns how many of the first `count` ids, best first, reach the mass top_p; 0 if they do not.
  const auto nucleus = [&](std::int64_t count, double total) {
    const double top = scale(s.order[0]);
    double mass = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      mass += exact_exp(scale(s.order[static_cast<std::size_t>(i)]) - top);
      if (mass / total >= warp.top_p) return i + 1;
    }
    return std::int64_t{0};
  };

  float largest = 0;
  std::int64_t best = 0;
  bool nan = false;
  kernels_->best(logits, stride(), &largest, &best, &nan);
  const double top = static_cast<double>(largest) / temperature;
  if (!std::isfinite(largest) || nan)
    throw BackendError("the model returned logits that are NaN or infinite");
  std::int64_t count = 0;
  if (warp.top_k > 0 && warp.top_k < vocab_size_) {
    count = select_best(logits, warp.top_k);
    order_best(logits, count, warp.top_k);
    count = drop_infinite(std::min(count, warp.top_k));
    if (warp.top_p < 1) {
      double total = 0;
      for (std::int64_t i = 0; i < count; ++i)
        total += exact_exp(scale(s.order[static_cast<std::size_t>(i)]) - top);
      if (const std::int64_t reached = nucleus(count, total); reached > 0) count = reached;
    }
  } else if (warp.top_p < 1) {
    const double total = kernels_->exp_sum(logits, stride(), top, temperature);
    for (std::int64_t k = 64;; k *= 8) {  // The whole vocabulary seldom has to be ordered.
      k = std::min<std::int64_t>(k, vocab_size_);
      count = select_best(logits, k);
      order_best(logits, count, k);
      count = drop_infinite(std::min(count, k));
      const std::int64_t reached = nucleus(count, total);
      if (reached > 0) count = reached;
      if (reached > 0 || k == vocab_size_) break;
    }
  } else {
    double threshold = -INFINITY;
    if (warp.min_p > 0) {  // The bound is a little too low, because the exact test follows.
      threshold = (top + exact_log(warp.min_p)) * temperature;
      threshold -= 1e-6 * (std::fabs(threshold) + 1);
    }
    s.order.resize(static_cast<std::size_t>(stride()));
    count = drop_infinite(
        kernels_->collect(logits, stride(), static_cast<float>(threshold), s.order.data()));
  }
  if (warp.min_p > 0) {
    const double floor = top + exact_log(warp.min_p);
    const auto end = std::remove_if(s.order.begin(), s.order.begin() + count,
                                    [&](std::int32_t id) { return !(scale(id) >= floor); });
    count = end - s.order.begin();
  }
  std::sort(s.order.begin(), s.order.begin() + count);
  s.scaled.resize(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < s.scaled.size(); ++i) s.scaled[i] = scale(s.order[i]);
  return count;
}

// Samples over the whole vocabulary with coupled noise. Noise is computed only for the tokens that
// can beat the best one so far.
std::int32_t LogitRows::sample_all(const float* logits, double temperature,
                                   std::uint64_t key) const {
  float largest = 0;
  std::int64_t first = 0;
  bool nan = false;
  kernels_->best(logits, stride(), &largest, &first, &nan);
  if (nan || !std::isfinite(largest))
    throw BackendError("the model returned logits that are NaN or infinite");
  const double top = static_cast<double>(largest) / temperature;
  // The largest error of the search, which uses float32 arithmetic.
  const double slack = 2e-3 + 1e-6 * (std::fabs(top) + 64);
  const auto inverse = static_cast<float>(1.0 / temperature);
  const bool narrow = std::isfinite(inverse) && std::fabs(top) < 1e6;

  double best = -INFINITY;
  std::int32_t chosen = static_cast<std::int32_t>(first);
  double floor = top + gumbel(key, chosen);
  Scratch& s = scratch();
  s.order.resize(kNoiseStep);
  for (std::int64_t begin = 0; begin < stride(); begin += kNoiseStep) {
    const std::int64_t end = std::min(stride(), begin + kNoiseStep);
    std::int64_t count = end - begin;
    if (narrow)
      count = kernels_->noisy_candidates(logits, begin, end, inverse,
                                         static_cast<float>(floor - slack), key, s.order.data());
    else
      std::iota(s.order.begin(), s.order.begin() + count, static_cast<std::int32_t>(begin));
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int32_t id = s.order[static_cast<std::size_t>(i)];
      const double scaled = static_cast<double>(logits[id]) / temperature;
      if (!std::isfinite(scaled) || scaled + 22.9 < floor) continue;
      const double value = scaled + gumbel(key, id);
      if (value > best) {
        best = value;
        chosen = id;
        floor = std::max(floor, best);
      }
    }
  }
  return chosen;
}

std::int32_t LogitRows::sample(int index, const Warp& warp, std::uint64_t key) const {
  const float* logits = read(index);
  const std::int32_t greedy = best_of(logits);
  if (warp.temperature == 0) return greedy;
  if (!warp.filters()) return sample_all(logits, warp.temperature, key);
  const std::int64_t count = keep(logits, warp);
  const Scratch& s = scratch();
  double best = -INFINITY;
  std::int32_t chosen = greedy;
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    const double value = s.scaled[i] + gumbel(key, s.order[i]);
    if (value > best) {
      best = value;
      chosen = s.order[i];
    }
  }
  return chosen;
}

void LogitRows::probabilities(int index, const Warp& warp, double* out) const {
  std::fill(out, out + vocab_size_, 0.0);
  const float* logits = read(index);
  if (warp.temperature == 0) {
    out[best_of(logits)] = 1.0;
    return;
  }
  const std::int64_t count = keep(logits, warp);
  if (count == 0) {  // Nothing survives, as when every scaled logit overflows.
    out[best_of(logits)] = 1.0;
    return;
  }
  const Scratch& s = scratch();
  const double top = *std::max_element(s.scaled.begin(), s.scaled.begin() + count);
  double total = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    out[s.order[i]] = exact_exp(s.scaled[i] - top);
    total += out[s.order[i]];
  }
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) out[s.order[i]] /= total;
}

}  // namespace paradecode
