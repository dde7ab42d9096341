// Rows of logits and what is computed from them; see core.logits for the meaning.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "memory.hpp"
#include "types.hpp"

namespace paradecode {

// Memory of logits that nobody uses any more, kept for the next forward: fresh memory would cost
// a page fault for each 4 KiB.
class LogitStore : public std::enable_shared_from_this<LogitStore> {
 public:
  // Memory for `count` floats that returns to the store with its last owner.
  std::shared_ptr<float> take(std::size_t count);

 private:
  void give(Mapping mapping);

  std::mutex mutex_;
  std::vector<Mapping> free_;
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
  LogitRows(std::shared_ptr<LogitStore> store, const Kernels& kernels, int rows, int vocab_size);

  static std::int64_t stride_for(int vocab_size) { return (std::int64_t{vocab_size} + 63) / 64 * 64; }

  int rows() const { return static_cast<int>(rows_.size()); }
  int vocab_size() const { return vocab_size_; }
  const float* row(int index) const { return rows_[static_cast<std::size_t>(index)].get(); }
  float* writable(int index) { return rows_[static_cast<std::size_t>(index)].get(); }

  std::shared_ptr<LogitRows> select(const std::int64_t* rows, std::int64_t count) const;
  // A copy of row `index` takes its place, for a caller that owns this object alone.
  void own(int index);

  std::int32_t argmax(int row) const;
  void top_k(int row, std::int64_t k, std::int32_t* ids, float* values) const;
  double log_normalizer(int row) const;
  double entropy(int row) const;
  double margin(int row) const;
  std::int32_t sample(int row, const Warp& warp, std::uint64_t key) const;
  void probabilities(int row, const Warp& warp, double* out) const;

 private:
  LogitRows(std::shared_ptr<LogitStore> store, const Kernels& kernels, int vocab_size)
      : store_(std::move(store)), kernels_(&kernels), vocab_size_(vocab_size) {}
  std::int64_t stride() const { return stride_for(vocab_size_); }
  std::int64_t select_best(const float* row, std::int64_t k) const;
  void order_best(const float* row, std::int64_t count, std::int64_t k) const;
  std::int64_t keep(int row, const Warp& warp) const;
  std::int32_t sample_all(const float* row, double temperature, std::uint64_t key) const;

  std::shared_ptr<LogitStore> store_;
  const Kernels* kernels_;
  int vocab_size_;
  std::vector<std::shared_ptr<float>> rows_;
};

}  // namespace paradecode
