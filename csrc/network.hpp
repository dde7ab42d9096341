// Small trained networks: steps over named values, in float32. Matrices may be rounded to 8 or 4
// bits, as a model's are.
//
// A row's bits do not depend on the rows that share the call. Only attention and `behind` read
// other rows, and only those of the same item.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "isa.hpp"
#include "memory.hpp"
#include "types.hpp"

namespace paradecode {

// The kinds of paradecode.core.network, in the order of its KINDS.
enum class StepKind : int {
  Linear,
  Standardise,
  Scale,
  Shift,
  Lookup,
  Relu,
  Silu,
  Sigmoid,
  Gelu,
  Rms,
  Centre,
  Add,
  Multiply,
  Divide,
  Join,
  Attention,
  Part,
  Behind
};

// Returns whether steps of this kind read other rows of their item.
constexpr bool reads_rows(StepKind kind) {
  return kind == StepKind::Attention || kind == StepKind::Behind;
}

struct NetworkStep {
  StepKind kind = StepKind::Relu;
  // values that the step reads: the inputs come first, then the results of earlier steps
  std::vector<int> values;
  std::vector<int> tensors;  // tensors that the step reads
  int count = 0;             // number of heads, or of the numbers of a part
  float number = 0;
};

struct NetworkTensor {
  std::int64_t rows = 0;  // 1 for a vector
  std::int64_t columns = 0;
  const float* values = nullptr;
};

// Rows of one input: `numbers` [rows, width], or whole `ids` [rows] where the width is 0.
struct NetworkInput {
  const float* numbers = nullptr;
  const std::int64_t* ids = nullptr;
};

class NetworkRun;

class Network {
 public:
  // `widths` are those of the inputs. The tensors are copied, the matrices in `format`. Throws
  // InvalidInput if the sizes of the steps do not fit together.
  Network(std::vector<int> widths, std::vector<NetworkStep> steps,
          const std::vector<NetworkTensor>& tensors, Format format = Format::F32);
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  int inputs() const { return inputs_; }
  // The width of each value's rows; 0 for whole numbers. The last value is the result.
  const std::vector<int>& widths() const { return widths_; }
  Format format() const { return format_; }
  // Throws InvalidInput if a whole number of this input is not the number of a table's row.
  void check_ids(int input, const std::int64_t* ids, std::int64_t count) const;
  // Returns whether no row reads other rows.
  bool rows_are_apart() const;
  const Kernels& kernels() const { return *isa_.kernels; }
  // Returns the bytes of the matrices.
  std::size_t matrix_bytes() const;

  // Computes float32 [rows, widths().back()] in the calling thread. `ends` says where the items
  // end, the last at `rows`. Throws InvalidInput if a whole number names no row of a table.
  void run(const std::vector<NetworkInput>& given, const std::vector<std::int64_t>& ends,
           float* out) const;

 private:
  friend class NetworkRun;
  // Steps that are computed together. Even stages are computed row by row. Odd stages are products,
  // which the threads divide by outputs, and steps that read other rows. A stage needs only the
  // stages before it.
  struct Stage {
    std::vector<int> steps;
    std::vector<int> multiplied;  // values that later products read
  };

  int width_of(const NetworkStep& step, const std::vector<NetworkTensor>& tensors) const;
  // How steps read the tensor: as a matrix, row by row by number, or unchanged.
  struct Uses {
    bool matrix = false;
    bool table = false;
    bool plain = false;
  };
  void pack(const NetworkTensor& tensor, const Uses& uses);
  void plan();
  std::unique_ptr<NetworkRun> take_run() const;
  void give_run(std::unique_ptr<NetworkRun> run) const;

  int inputs_;
  Format format_;
  std::vector<int> widths_;
  std::vector<NetworkStep> steps_;
  std::vector<Stage> stages_;
  IsaChoice isa_;
  Arena arena_;
  std::vector<Matrix> matrices_;             // the packed matrices that `linear` reads, and tables
  std::vector<std::vector<float>> tensors_;  // the other tensors, unchanged

  std::vector<std::int64_t> table_rows_;  // of each tensor

  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<NetworkRun>> idle_;  // memory of earlier runs
};

}  // namespace paradecode
