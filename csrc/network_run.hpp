// Runs a network on some rows; the threads of a team share the work.
#pragma once

#include <cstdint>
#include <vector>

#include "input_buffer.hpp"
#include "memory.hpp"
#include "network.hpp"
#include "team.hpp"

namespace paradecode {

// The object keeps its memory for the next run. One run happens at a time.
class NetworkRun {
 public:
  // `threads` is the number of threads that will share the work.
  NetworkRun(const Network& network, int threads);
  NetworkRun(const NetworkRun&) = delete;
  NetworkRun& operator=(const NetworkRun&) = delete;

  // Makes room for `rows` rows. Where rows see one another, `ends` says where items end.
  void begin(int rows, std::vector<std::int64_t> ends = {});
  // Sets where the result is written: rows that lie `stride` floats apart, at least the width
  // rounded up to 32.
  void write_to(float* out, std::int64_t stride);

  // Returns where to write a row of an input, before or while the first stage runs.
  float* input(int index, int row) { return at(index, row); }
  std::int64_t* ids(int index) { return ids_[static_cast<std::size_t>(index)].data(); }
  float* result(int row) { return at(static_cast<int>(values_.size()) - 1, row); }

  int phases() const { return static_cast<int>(network_.stages_.size()); }
  // Runs the network; every member of the job calls this. `fill(row)` writes the inputs of a row,
  // if the caller has not written them.
  template <class Fill>
  void work(Member& member, Fill fill) {
    const int step = rows_ <= 4 * kRowGroup ? 1 : kRowGroup;
    for (std::size_t stage = 0; stage < network_.stages_.size(); ++stage) {
      if (stage % 2 == 1) {
        const auto& chunks = chunks_[stage / 2];
        member.phase(static_cast<int>(chunks.size()),
                     [&](int chunk) { whole(chunks[static_cast<std::size_t>(chunk)]); });
        continue;
      }
      const Network::Stage& now = network_.stages_[stage];
      if (stage > 0 && now.steps.empty() && now.multiplied.empty()) continue;
      member.phase((rows_ + step - 1) / step, [&](int chunk) {
        for (int row = chunk * step; row < std::min(rows_, (chunk + 1) * step); ++row) {
          if (stage == 0) fill(row);
          for (const int index : now.steps) compute(index, row);
          for (const int value : now.multiplied) prepare(value, row);
        }
      });
    }
  }

 private:
  struct Value {
    Buffer<float> own;
    float* rows = nullptr;
    std::int64_t stride = 0;  // a multiple of 32; values beyond the width are 0
    InputBuffer prepared;     // the rows in the form that products read
  };
  // A part of a stage of products: panels of a step and rows, or an item of an attention.
  struct Chunk {
    int step, panel, panels;
    std::int64_t row, rows;
  };

  float* at(int value, std::int64_t row) {
    Value& of = values_[static_cast<std::size_t>(value)];
    return of.rows + row * of.stride;
  }
  const std::vector<float>& tensor(const NetworkStep& step, std::size_t index) const {
    return network_.tensors_[static_cast<std::size_t>(step.tensors[index])];
  }
  void divide(int stage);
  void compute(int index, int row);
  void prepare(int value, int row);
  void whole(const Chunk& chunk);
  void attend(const NetworkStep& step, std::int64_t first, std::int64_t rows, float* out);

  const Network& network_;
  const Kernels& kernels_;
  const int threads_;
  int rows_ = 0;
  std::vector<std::int64_t> ends_;
  std::vector<Value> values_;
  std::vector<std::vector<std::int64_t>> ids_;  // of inputs
  std::vector<std::vector<Chunk>> chunks_;      // of each odd stage
};

}  // namespace paradecode
