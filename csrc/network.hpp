// Small trained networks: steps over named values, run in float32 on one thread. Matrices may be
// rounded to 8 bits, as a model's are.
//
// A row's bits do not depend on the rows that share the call. Only attention looks at other rows,
// those of the same item.
#pragma once

#include <cstdint>
#include <string>
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
  Attention
};

struct NetworkStep {
  StepKind kind = StepKind::Relu;
  std::vector<int> values;   // read: inputs first, then what the steps before computed
  std::vector<int> tensors;  // read
  int heads = 0;
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

class Network {
 public:
  // `widths` are those of the inputs. Tensors are copied, the matrices in `format`. Throws
  // InvalidInput if the sizes of the steps do not fit together.
  Network(std::vector<int> widths, std::vector<NetworkStep> steps,
          const std::vector<NetworkTensor>& tensors, Format format = Format::F32);

  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  int inputs() const { return inputs_; }
  // Numbers in a row of each value; 0 for whole numbers. The last is the result's.
  const std::vector<int>& widths() const { return widths_; }

  // Computes float32 [rows, widths().back()]. `ends` says where the items end, the last at `rows`.
  // Throws InvalidInput if a whole number names no row of a table.
  void run(const std::vector<NetworkInput>& given, const std::vector<std::int64_t>& ends,
           float* out) const;

 private:
  using Values = std::vector<std::vector<float>>;
  int width_of(const NetworkStep& step, const std::vector<NetworkTensor>& tensors) const;
  void pack(const NetworkTensor& tensor, bool matrix);
  void check_ids(const std::vector<NetworkInput>& given, std::int64_t rows) const;
  void linear(const float* x, std::int64_t rows, const Matrix& weight, float* out) const;

  int inputs_;
  Format format_;
  std::vector<int> widths_;
  std::vector<NetworkStep> steps_;
  IsaChoice isa_;
  Arena arena_;
  std::vector<Matrix> matrices_;             // packed, of tensors that `linear` reads
  std::vector<std::vector<float>> tensors_;  // as they are, of the others
};

}  // namespace paradecode
