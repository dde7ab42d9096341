// Reads quantised blocks as files store them (GGUF's layouts) into plain integers and scales.
#pragma once

#include <cstddef>
#include <cstdint>

#include "types.hpp"

namespace paradecode {

// Says how the rows that are handed to `pack_row` are stored.
enum class Source : int {
  F32 = 0,
  F16 = 1,
  BF16 = 2,
  Q4_0 = 3,
  Q4_1 = 4,
  Q8_0 = 5,
  Q4_K = 6,
  Q5_0 = 7,
  Q5_1 = 8,
  IQ4_NL = 9,
  Q2_K = 10,
  Q3_K = 11,
  Q5_K = 12,
  Q6_K = 13,
  IQ4_XS = 14,
  MXFP4 = 15,
};
inline constexpr int kSources = 16;

// A block of `size` inputs of one output. Input i has the value
//   d * factors[i / step] * level - dmin * minima[i / step],
// where `level` is values[i] - offset, or a level of IQ4 or MXFP4 less 128.
struct Block {
  std::uint8_t values[kSuperBlock];
  int factors[kSuperBlock / 16];
  int minima[kSuperBlock / 16];
  std::uint16_t d = 0;     // half precision
  std::uint16_t dmin = 0;  // half precision
};

struct BlockShape {
  int size;   // number of inputs of a block; 1 for floats
  int bytes;  // size of a block in the file
  int step;   // number of inputs that share a factor
  int offset;
};

constexpr BlockShape block_shape(Source source) {
  switch (source) {
    case Source::F32: return {1, 4, 1, 0};
    case Source::F16:
    case Source::BF16: return {1, 2, 1, 0};
    case Source::Q4_0: return {32, 18, 32, 8};
    case Source::Q4_1: return {32, 20, 32, 0};
    case Source::Q5_0: return {32, 22, 32, 16};
    case Source::Q5_1: return {32, 24, 32, 0};
    case Source::Q8_0: return {32, 34, 32, 128};
    case Source::IQ4_NL: return {32, 18, 32, 128};
    case Source::Q2_K: return {256, 84, 16, 0};
    case Source::Q3_K: return {256, 110, 16, 4};
    case Source::Q4_K: return {256, 144, 32, 0};
    case Source::Q5_K: return {256, 176, 32, 0};
    case Source::Q6_K: return {256, 210, 16, 32};
    case Source::IQ4_XS: return {256, 136, 32, 128};
    case Source::MXFP4: return {32, 17, 32, 128};
  }
  return {1, 0, 1, 0};
}

constexpr bool is_float(Source source) { return block_shape(source).size == 1; }

// Returns the format that keeps a source's weights as they are.
constexpr Format own_format(Source source) {
  switch (source) {
    case Source::F32: return Format::F32;
    case Source::F16: return Format::F16;
    case Source::BF16: return Format::BF16;
    case Source::Q4_0: return Format::Q4_0;
    case Source::Q4_1: return Format::Q4;
    case Source::Q5_0: return Format::Q5_0;
    case Source::Q5_1: return Format::Q5_1;
    case Source::Q8_0: return Format::Q8;
    case Source::IQ4_NL: return Format::IQ4_NL;
    case Source::Q2_K: return Format::Q2_K;
    case Source::Q3_K: return Format::Q3_K;
    case Source::Q4_K: return Format::Q4_K;
    case Source::Q5_K: return Format::Q5_K;
    case Source::Q6_K: return Format::Q6_K;
    case Source::IQ4_XS: return Format::IQ4_XS;
    case Source::MXFP4: return Format::MXFP4;
  }
  return Format::F32;
}

// Reads one block; `source` is not a float.
void read_block(Source source, const std::uint8_t* p, Block& out);

// Returns the values of a block as float32, rounded as GGUF's own readers do.
void block_values(Source source, const Block& block, float* out);

}  // namespace paradecode
