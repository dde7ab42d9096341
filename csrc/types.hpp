// Plain records that the kernels, the planner and the model share.
#pragma once

#include <cstddef>
#include <cstdint>

#include "processor.hpp"

namespace paradecode {

// The number of outputs in a panel of packed weights, and of lanes of the widest vector. Every
// reduction in the kernels is laid out for 16 lanes, so that all instruction sets give the same
// bits.
inline constexpr int kLanes = 16;
// The number of inputs whose products are summed as integers.
inline constexpr int kGroup = 32;
// The number of inputs in a block of the formats that have a header for eight groups.
inline constexpr int kSuperBlock = 256;
// The number of slots in a page of keys and values.
inline constexpr int kPage = 16;
// The number of pages of one layer and head that lie side by side in the cache.
inline constexpr int kStretch = 32;

constexpr int round_up(int value, int unit) { return (value + unit - 1) / unit * unit; }

// Says how weights are stored: as floats, or as integers with scales as GGUF defines them. Q4 is
// GGUF's Q4_1 and Q8 its Q8_0; other weights may be rounded to these formats.
enum class Format : int {
  Q4 = 0,
  Q8 = 1,
  BF16 = 2,
  F16 = 3,
  F32 = 4,
  Q4_0 = 5,
  Q5_0 = 6,
  Q5_1 = 7,
  IQ4_NL = 8,
  Q2_K = 9,
  Q3_K = 10,
  Q4_K = 11,
  Q5_K = 12,
  Q6_K = 13,
  IQ4_XS = 14,
  MXFP4 = 15,
};
inline constexpr int kFormats = 16;

// Of MLPs; see ACTIVATIONS in models/parts.py.
enum class Activation : int { Silu, Gelu, GeluTanh, Relu, Relu2, SwigluOai };
inline constexpr int kActivations = 6;

constexpr bool is_integer(Format format) {
  return format != Format::BF16 && format != Format::F16 && format != Format::F32;
}

// The bytes of a block of an integer format, for a panel of 16 outputs: a header with scales, then
// the integers of each group of 32 inputs.
struct Packing {
  int groups;  // number of groups in a block
  int header;
  int data;  // bytes of the integers of a group
  constexpr int bytes() const { return header + groups * data; }
};

constexpr Packing packing(Format format) {
  switch (format) {
    case Format::Q4: return {1, 64, 256};
    case Format::Q8: return {1, 32, 512};
    case Format::Q4_0: return {1, 32, 256};
    case Format::Q5_0: return {1, 32, 320};
    case Format::Q5_1: return {1, 64, 320};
    case Format::IQ4_NL:
    case Format::MXFP4: return {1, 32, 256};
    case Format::Q2_K: return {8, 320, 128};
    case Format::Q3_K: return {8, 256, 192};
    case Format::Q4_K: return {8, 256, 256};
    case Format::Q5_K: return {8, 256, 320};
    case Format::Q6_K: return {8, 320, 384};
    case Format::IQ4_XS: return {8, 160, 256};
    default: return {1, 0, 0};
  }
}

// The values of the sixteen integers of IQ4_NL and IQ4_XS, plus 128.
inline constexpr std::uint8_t kLevels[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                             129, 141, 153, 166, 181, 197, 217, 241};
// The same of MXFP4, the numbers of four bits twice as large: 0, 1, 2, 3, 4, 6, 8, 12 and negative.
inline constexpr std::uint8_t kFloatLevels[16] = {128, 129, 130, 131, 132, 134, 136, 140,
                                                  128, 127, 126, 125, 124, 122, 120, 116};
constexpr bool has_levels(Format format) {
  return format == Format::IQ4_NL || format == Format::IQ4_XS || format == Format::MXFP4;
}

// A weight [rows, cols] packed in panels of 16 outputs.
//
// Integers: blocks as `Packing` says; what the bytes mean is in panels.hpp, which writes them, and
// in unpack.hpp, which the kernels read them with. Floats: 16 values for each input.
//
// Panels come in pairs that are `pair_stride` apart, so that gate and up can be interleaved and
// read as one stream.
struct Matrix {
  Format format = Format::F32;
  int rows = 0;
  int cols = 0;
  int panels = 0;
  int groups = 0;  // number of groups of 32 inputs; the last one is padded with zeros
  std::size_t panel_bytes = 0;
  std::size_t pair_stride = 0;
  std::uint8_t* data = nullptr;

  std::uint8_t* panel(int index) const {
    return data + static_cast<std::size_t>(index / 2) * pair_stride +
           static_cast<std::size_t>(index % 2) * panel_bytes;
  }
};

// Returns whether the format has blocks of 256 inputs.
constexpr bool has_superblocks(Format format) { return packing(format).groups > 1; }

constexpr std::size_t panel_bytes(Format format, int groups) {
  if (!is_integer(format))
    return static_cast<std::size_t>(groups) * kGroup * kLanes * (format == Format::F32 ? 4 : 2);
  const Packing block = packing(format);
  return static_cast<std::size_t>(groups / block.groups) * static_cast<std::size_t>(block.bytes());
}

// Rows of a matrix product's input that lie side by side.
inline constexpr int kRowGroup = 16;

// Rows as 8-bit integers with one scale for each 256 inputs, for weights in blocks of as many, so
// that a product multiplies by it once a block. A group of 32 inputs has this scale divided by a
// power of two, 2^shift. Entries are as in Activations, and block b of row r is (r / 16 * blocks +
// b) * 16 + r % 16.
//
// A product scales a group's dots by its power of two without multiplying: they are added to the
// bits of a float, the base, whose last place is worth 2^-shift, and that float is subtracted
// again.
struct WideInputs {
  std::int32_t* words = nullptr;  // a word has four signed bytes, an entry eight words
  float* bases = nullptr;         // 1.5 * 2^(23 - shift)
  // With what dots begin, kStarts for each entry: the bits of the base, and these less 32 times the
  // sums of 16 integers each.
  std::int32_t* starts = nullptr;
  std::int32_t* corrections = nullptr;  // -128 times the sum of the group's integers
  float* scales = nullptr;              // one for each block
  // Pairs of sums of integers in eighths of the block's scale, as 16 bits each, kPairs for each
  // block: of two groups, then of a group's halves.
  std::int32_t* pairs = nullptr;

  static constexpr int kStarts = 3;
  static constexpr int kGroupPairs = 4;
  static constexpr int kPairs = 12;
  static constexpr int kEighths = 3;  // bits of them
  static constexpr int kMostShift = 15;
};

// The inputs of a matrix product: rows as float32, the same rows as 8-bit integers with one scale a
// group, and as integers for wider blocks. What no matrix of the phase asks for may be absent.
//
// Sixteen rows are interleaved, so that a kernel finds what it needs of each at a constant
// distance: input k of row r is values[(r / 16 * width + k) * 16 + r % 16], and group g of row r
// is entry (r / 16 * groups + g) * 16 + r % 16 of the other arrays.
struct Activations {
  int width = 0;  // a multiple of 32
  float* values = nullptr;
  std::int32_t* words = nullptr;  // a word has four signed bytes, an entry eight words
  float* scales = nullptr;
  float* sums = nullptr;                // scale times the sum of the group's integers
  std::int32_t* corrections = nullptr;  // -128 times that sum, for weights stored with offset 128
  WideInputs wide;

  std::int64_t place(int row, int index, int unit) const {
    return (std::int64_t{row / kRowGroup} * (width / unit) + index) * kRowGroup + row % kRowGroup;
  }
  std::int64_t value(int row, int input) const { return place(row, input, 1); }
  std::int64_t entry(int row, int group) const { return place(row, group, kGroup); }
  std::int64_t block(int row, int index) const { return place(row, index, kSuperBlock); }
};

// Consecutive slots of one page that hold consecutive tokens of an attention list.
struct Run {
  std::int32_t page = 0;
  std::int32_t ordinal = 0;  // index of the first token in its list
  std::uint8_t first = 0;    // row of the first token in the page
  std::uint8_t count = 0;
  bool scratch = false;  // whether it is in the scratch pages of this forward
};

// The tokens that one row sees beyond the prefix: indices into the span's extra tokens, ascending.
// Without a list they are 0 .. count - 1.
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
  // Of the tokens of both lists; null: those of the prefix are 0, 1, 2, ...
  const std::int32_t* prefix_positions = nullptr;
  const std::int32_t* extra_positions = nullptr;
};

inline constexpr int kMaxQueries = 6;
// The sizes of an attention head.
inline constexpr int kMostHeadDim = 1024;

// The number of tokens whose attention is computed as one part.
inline constexpr int kAttentionBlock = 256;

// A few query vectors of one key/value head and one span.
struct AttentionTile {
  const SpanView* span = nullptr;
  int count = 0;
  int row[kMaxQueries] = {};  // rows of the span
  const float* query[kMaxQueries] = {};
  float* out[kMaxQueries] = {};
  // A score s becomes softcap * tanh(s / softcap), unless that is 0; then it gets slope times the
  // key's position less the query's, if there are slopes.
  float softcap = 0;
  bool slopes = false;
  float slope[kMaxQueries] = {};
  std::int32_t position[kMaxQueries] = {};
  // One more score of each query, which takes weight and has no value; null: none.
  const float* sink[kMaxQueries] = {};
  // Keys and values of this layer and head: [0] the cache, [1] the scratch pages. A page of keys is
  // [head_dim][16], a page of values [16][padded_dim].
  const void* keys[2] = {};
  const void* values[2] = {};
  std::int64_t stretch[2] = {};  // number of elements from kStretch pages to the next
  int head_dim = 0;
  int padded_dim = 0;
  // The number of blocks that the rows see: of prefix and of extra tokens, kAttentionBlock each.
  int first_block = 0;
  int end_block = 0;
  // Whether keys and values are fetched ahead. They are not if another tile read them just before,
  // because they are then in the second-level cache, and fetching costs more than it saves.
  bool fetches = true;
  // Where a query's parts are stored, block b at b * part_floats(padded_dim), if other threads
  // compute the other blocks. If null, `out` is computed.
  float* parts[kMaxQueries] = {};
  float* scores = nullptr;  // count x score_stride, for the extra tokens
  std::int64_t score_stride = 0;
};

constexpr std::int64_t part_floats(int padded_dim) { return std::int64_t{padded_dim} + kLanes; }

// Of sum `o` and row `i` the factor is values[o * of_sum + i * of_row].
struct RowFactors {
  const float* values;
  std::int64_t of_sum;
  std::int64_t of_row;
};

// The kernels of one instruction set.
struct Kernels {
  const char* name;

  // Computes out[r * out_stride + 16 * p + lane] = (or +=) product (+ bias) for the given panels
  // and rows.
  void (*matmul)(const Matrix& weight, int panel, int panels, const Activations& input, int row,
                 int rows, float* out, std::int64_t out_stride, const float* bias, bool add);
  // Rounds the groups of a row from `group` on to integers, and writes them to row `row` of `out`.
  void (*quantise)(const float* values, int group, int groups, int row, const Activations& out);
  // The same for blocks of 256 inputs, to out.wide.
  void (*quantise_wide)(const float* values, int block, int blocks, int row,
                        const Activations& out);
  // `padded` is a multiple of 16; values beyond `size` are zero on both sides.
  void (*rms_norm)(const float* values, const float* weight, int size, int padded, float epsilon,
                   float* out);
  // The same with LayerNorm; `bias` may be null.
  void (*layer_norm)(const float* values, const float* weight, const float* bias, int size,
                     int padded, float epsilon, float* out);
  // gate = activation(gate) * up, or activation(gate) if `up` is null; count is a multiple of 16.
  void (*activate[kActivations])(float* gate, const float* up, int count);
  // values = cap * tanh(values / cap); count is a multiple of 16.
  void (*cap)(float* values, float cap, std::int64_t count);
  // Adds to each of the sums all rows times factors of its own, one row after the other; size is a
  // multiple of 16.
  void (*add_rows)(const float* const* rows, int count, const RowFactors& by, int size,
                   float* const* outs, int sums);
  // out[i] = the dot product of `by` and rows[i]; any size.
  void (*dots)(const float* by, const float* const* rows, int count, int size, float* out);
  void (*attention_f16)(const AttentionTile& tile);
  void (*attention_f32)(const AttentionTile& tile);
  // Finishes a query of which the blocks [first_block, end_block) were left in `parts`; `sink` may
  // be null.
  void (*merge_parts)(const float* parts, int first_block, int end_block, int padded_dim,
                      int head_dim, const float* sink, float* out);
  void (*to_f16)(const float* values, std::uint16_t* out, int count);  // a multiple of 16

  // Reductions over a row of logits; size is a multiple of 16, padded with -inf.
  // Finds the largest value, its first index, and whether any value is NaN.
  void (*best)(const float* row, std::int64_t size, float* value, std::int64_t* index, bool* nan);
  // the maxima of blocks of 64 values
  void (*block_best)(const float* row, std::int64_t blocks, float* out);
  // Computes the sum of exp(row / temperature - top) in double precision.
  double (*exp_sum)(const float* row, std::int64_t size, double top, double temperature);
  // Computes the sum of w and, unless null, of w * x, with x = row - top and w = exp(x), in float32
  // (added in double precision). The result is good to 1e-6, and four times as fast.
  void (*softmax_sums)(const float* row, std::int64_t size, float top, double* mass,
                       double* moment);
  std::int64_t (*collect)(const float* row, std::int64_t size, float threshold, std::int32_t* ids);
  // Finds the ids whose scaled logit plus an upper bound of their noise can exceed `floor`. The
  // caller raises *floor while it examines them in blocks.
  std::int64_t (*noisy_candidates)(const float* row, std::int64_t begin, std::int64_t end,
                                   float inverse_temperature, float floor, std::uint64_t base,
                                   std::int32_t* ids);

  // Measures what limits the speed of a forward: see limits.hpp.
  std::int32_t (*read_all)(const std::uint8_t* data, std::int64_t bytes);
  std::int32_t (*multiply)(std::int64_t steps);
  int products_a_step;
  std::int32_t (*multiply_floats)(std::int64_t steps);
  int float_products_a_step;
};

// A build has some of these sets (PARADECODE_KERNELS).
// clang-format off
namespace portable { extern const Kernels kernels; }
namespace avx2 { extern const Kernels kernels; }
namespace avxvnni { extern const Kernels kernels; }
namespace avx512 { extern const Kernels kernels; }
namespace amx { extern const Kernels kernels; }
namespace neon { extern const Kernels kernels; }
namespace i8mm { extern const Kernels kernels; }
// clang-format on

}  // namespace paradecode
