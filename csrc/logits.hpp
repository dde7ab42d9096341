// Rows of logits, and what is computed from them; core.logits defines the meaning.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "memory.hpp"
#include "team.hpp"
#include "types.hpp"

namespace paradecode {

// Memory of logits that are no longer used. Some of it is kept for the next forward, because fresh
// memory would cost a page fault for each 4 KiB.
class LogitStore : public std::enable_shared_from_this<LogitStore> {
 public:
  // Returns memory for `count` floats, which comes back to the store when its last owner releases
  // it.
  std::shared_ptr<float> take(std::size_t count);

 private:
  void give(Mapping mapping);

  std::mutex mutex_;
  // The memory that was given back last is at the end, and is kept longest.
  std::deque<Mapping> free_;
  std::size_t kept_ = 0;  // bytes in `free_`
};

struct Warp {
  double temperature = 0;
  std::int64_t top_k = 0;
  double top_p = 1;
  double min_p = 0;

  bool filters() const { return top_k > 0 || top_p < 1 || min_p > 0; }
};

class LogitRows {
 public:
  // Rows are `stride` floats long, a multiple of 64; values beyond the vocabulary are -inf.
  // Reductions of many rows are shared among the threads of `team`, which may be absent.
  LogitRows(std::shared_ptr<LogitStore> store, const Kernels& kernels, std::shared_ptr<Team> team,
            int rows, int vocab_size);

  static std::int64_t stride_for(int vocab_size) {
    return (std::int64_t{vocab_size} + 63) / 64 * 64;
  }

  int rows() const { return static_cast<int>(rows_.size()); }
  int vocab_size() const { return vocab_size_; }
  // Returns the values of a row; they are valid until this thread reads another row.
  const float* read(int index) const;
  bool changed(int index) const {
    return rows_[static_cast<std::size_t>(index)].changes != nullptr;
  }
  float value(int index, std::int32_t id) const;
  // Returns the memory of a row that has no changes.
  float* writable(int index) { return rows_[static_cast<std::size_t>(index)].values.get(); }

  std::shared_ptr<LogitRows> select(const std::int64_t* rows, std::int64_t count) const;
  // Adds to some values of row `index`. The caller must be the only owner of this object. The row's
  // memory stays shared and unchanged, because changed values are kept beside it.
  void add(int index, const std::int32_t* ids, const float* added, std::int64_t count);

  // Divides all values by a temperature.
  std::shared_ptr<LogitRows> tempered(float temperature) const;

  // Sets the best tokens of rows whose logits are not known; a token is -1 where a logit is NaN or
  // infinite. Only argmax works on such rows, and on rows that are made from them.
  void choose(std::vector<std::int32_t> best) { chosen_ = std::move(best); }
  bool only_best() const { return !chosen_.empty(); }

  // Runs each(row) for every row, and throws the first error that occurs.
  void for_each(const std::function<void(int)>& each) const;

  std::int32_t argmax(int row) const;
  void top_k(int row, std::int64_t k, std::int32_t* ids, float* values) const;
  double log_normalizer(int row) const;
  double entropy(int row) const;
  double margin(int row) const;
  std::int32_t sample(int row, const Warp& warp, std::uint64_t key) const;
  void probabilities(int row, const Warp& warp, double* out) const;

 private:
  using Changes = std::vector<std::pair<std::int32_t, float>>;  // ids, ascending, and new values
  struct Row {
    std::shared_ptr<float> values;
    std::shared_ptr<const Changes> changes;
  };

  LogitRows(std::shared_ptr<LogitStore> store, const Kernels& kernels, std::shared_ptr<Team> team,
            int vocab_size)
      : store_(std::move(store)),
        kernels_(&kernels),
        team_(std::move(team)),
        vocab_size_(vocab_size) {}
  std::int64_t stride() const { return stride_for(vocab_size_); }
  std::int64_t select_best(const float* row, std::int64_t k) const;
  void order_best(const float* row, std::int64_t count, std::int64_t k) const;
  std::int64_t keep(const float* logits, const Warp& warp) const;
  std::int32_t best_of(const float* logits) const;
  double normalizer_of(const float* logits) const;
  std::int32_t sample_all(const float* logits, double temperature, std::uint64_t key) const;

  std::shared_ptr<LogitStore> store_;
  const Kernels* kernels_;
  std::shared_ptr<Team> team_;
  int vocab_size_;
  std::vector<Row> rows_;
  std::vector<std::int32_t> chosen_;
};

}  // namespace paradecode
