// Plain records that the kernels, the planner and the model share.
#pragma once

#include <cstddef>
#include <cstdint>

namespace paradecode {

// Outputs in a panel of packed weights, and lanes of the widest vector. Every reduction in the
// kernels is laid out for 16 lanes, so that all instruction sets give the same bits.
inline constexpr int kLanes = 16;
// Inputs that share a weight scale and an activation scale.
inline constexpr int kGroup = 32;
// Slots in a page of keys and values.
inline constexpr int kPage = 16;

enum class Format : int { Q4 = 0, Q8 = 1, BF16 = 2, F16 = 3, F32 = 4 };

constexpr bool is_integer(Format format) { return format == Format::Q4 || format == Format::Q8; }

// A weight [rows, cols] packed in panels of 16 outputs.
//
// Q4, per group of 32 inputs: 4 x 64 bytes of nibbles (vector i holds, for each output, inputs
// 4i..4i+3 in the low and 16+4i..16+4i+3 in the high nibbles), 16 half-precision scales, 16
// half-precision minima; a weight is scale * nibble + minimum.
// Q8, per group: 8 x 64 bytes (vector i holds inputs 4i..4i+3 of each output, plus 128), 16 scales.
// The others, per input: 16 values.
//
// Panels come in pairs that are `pair_stride` apart, so that gate and up can be interleaved and
// read as one stream.
struct Matrix {
  Format format = Format::F32;
  int rows = 0;
  int cols = 0;
  int panels = 0;
  int groups = 0;  // of 32 inputs; the last one is padded with zeros
  std::size_t panel_bytes = 0;
  std::size_t pair_stride = 0;
  std::uint8_t* data = nullptr;

  std::uint8_t* panel(int index) const {
    return data + static_cast<std::size_t>(index / 2) * pair_stride +
           static_cast<std::size_t>(index % 2) * panel_bytes;
  }
};

constexpr std::size_t panel_bytes(Format format, int groups) {
  const auto count = static_cast<std::size_t>(groups);
  switch (format) {
    case Format::Q4: return count * 320;
    case Format::Q8: return count * 544;
    case Format::F32: return count * kGroup * kLanes * 4;
    default: return count * kGroup * kLanes * 2;
  }
}

// Rows of a matrix product's input that lie side by side.
inline constexpr int kRowGroup = 16;

// The inputs of a matrix product: rows as float32, and the same rows as 8-bit integers with one
// scale a group. Either half may be absent when no matrix of the phase asks for it.
//
// Sixteen rows are interleaved, so that a kernel finds what it needs of each at a constant
// distance: input k of row r is values[(r / 16 * width + k) * 16 + r % 16], and group g of row r
// is entry (r / 16 * groups + g) * 16 + r % 16 of the other arrays.
struct Activations {
  int width = 0;  // a multiple of 32
  float* values = nullptr;
  std::int32_t* words = nullptr;  // four signed bytes a word, eight words an entry
  float* scales = nullptr;
  float* sums = nullptr;                // scale times the sum of the group's integers
  std::int32_t* corrections = nullptr;  // -128 times that sum, for weights stored with offset 128

  std::int64_t value(int row, int input) const {
    return (std::int64_t{row / kRowGroup} * width + input) * kRowGroup + row % kRowGroup;
  }
  std::int64_t entry(int row, int group) const {
    return (std::int64_t{row / kRowGroup} * (width / kGroup) + group) * kRowGroup + row % kRowGroup;
  }
};

// Consecutive slots of one page that hold consecutive tokens of an attention list.
struct Run {
  std::int32_t page = 0;
  std::int32_t ordinal = 0;  // index of the first token in its list
  std::uint8_t first = 0;    // row of the first token in the page
  std::uint8_t count = 0;
  bool scratch = false;  // in the scratch pages of this forward
};

// What one row sees beyond the prefix: indices into the span's extra tokens, ascending. Without a
// list they are 0 .. count - 1.
struct RowView {
  const std::int32_t* list = nullptr;
  std::int32_t count = 0;
  std::int32_t lead = 0;   // how many of the first entries are 0, 1, 2, ...
  std::int32_t reach = 0;  // largest entry plus one
  std::int32_t start = 0;  // first token of the prefix that the row sees (sliding window)
};

// What the rows of a span see: a prefix common to all, then extra tokens (cached tail and new
// rows) in order of position, of which each row sees some.
struct SpanView {
  const Run* prefix = nullptr;
  int prefix_runs = 0;
  std::int32_t prefix_length = 0;
  const Run* extra = nullptr;
  int extra_runs = 0;
  std::int32_t extra_length = 0;
  const RowView* rows = nullptr;
};

inline constexpr int kMaxQueries = 6;

// A few query vectors of one key/value head and one span.
struct AttentionTile {
  const SpanView* span = nullptr;
  int count = 0;
  int row[kMaxQueries] = {};  // of the span
  const float* query[kMaxQueries] = {};
  float* out[kMaxQueries] = {};
  // Keys and values of this layer and head: [0] the cache, [1] the scratch pages. A page of keys is
  // [head_dim][16], a page of values [16][padded_dim].
  const void* keys[2] = {};
  const void* values[2] = {};
  int head_dim = 0;
  int padded_dim = 0;
  float* scores = nullptr;  // count x score_stride
  std::int64_t score_stride = 0;
};

// The kernels of one instruction set.
struct Kernels {
  const char* name;

  // out[r * out_stride + 16 * p + lane] = (or +=) product (+ bias) for the given panels and rows.
  void (*matmul)(const Matrix& weight, int panel, int panels, const Activations& input, int row,
                 int rows, float* out, std::int64_t out_stride, const float* bias, bool add);
  // Rounds a row's groups from `group` on to integers, into row `row` of `out`.
  void (*quantise)(const float* values, int group, int groups, int row, const Activations& out);
  // `padded` is a multiple of 16; values beyond `size` are zero on both sides.
  void (*rms_norm)(const float* values, const float* weight, int size, int padded, float epsilon,
                   float* out);
  // gate = silu(gate) * up; count is a multiple of 16.
  void (*swiglu)(float* gate, const float* up, int count);
  void (*attention_f16)(const AttentionTile& tile);
  void (*attention_f32)(const AttentionTile& tile);
  void (*to_f16)(const float* values, std::uint16_t* out, int count);  // a multiple of 16

  // Reductions over a row of logits; size is a multiple of 16, padded with -inf.
  // The largest value, its first index, and whether any value is NaN.
  void (*best)(const float* row, std::int64_t size, float* value, std::int64_t* index, bool* nan);
  void (*block_best)(const float* row, std::int64_t blocks, float* out);  // of 64 values each
  // Sum of exp(row / temperature - top), in double precision.
  double (*exp_sum)(const float* row, std::int64_t size, double top, double temperature);
  // Sum of w and, unless null, of w * x, with x = row - top and w = exp(x), in float32 (added up in
  // double precision): good to 1e-6, and four times as fast.
  void (*softmax_sums)(const float* row, std::int64_t size, float top, double* mass,
                       double* moment);
  std::int64_t (*collect)(const float* row, std::int64_t size, float threshold, std::int32_t* ids);
  // Ids whose scaled logit plus an upper bound of their noise can exceed `floor`; the caller
  // raises *floor while it examines them in blocks.
  std::int64_t (*noisy_candidates)(const float* row, std::int64_t begin, std::int64_t end,
                                   float inverse_temperature, float floor, std::uint64_t base,
                                   std::int32_t* ids);

  // What bounds a forward, for measuring: see limits.hpp.
  std::int32_t (*read_all)(const std::uint8_t* data, std::int64_t bytes);
  std::int32_t (*multiply)(std::int64_t steps);
  int products_a_step;
};

const Kernels& portable_kernels();
#if defined(__x86_64__)
const Kernels& avx2_kernels();
const Kernels& avxvnni_kernels();
const Kernels& avx512_kernels();
#endif

}  // namespace paradecode
