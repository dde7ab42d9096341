#include "blocks.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "half.hpp"

namespace paradecode {
namespace {

std::uint8_t low(std::uint8_t byte) { return byte & 15U; }
std::uint8_t high(std::uint8_t byte) { return static_cast<std::uint8_t>(byte >> 4); }
std::uint8_t with_bit(std::uint8_t value, bool bit, int place) {
  return static_cast<std::uint8_t>(value | static_cast<unsigned>(bit) << place);
}

// Blocks of 32 hold one half of the inputs in the low nibbles, then the other in the high ones.
void read_nibbles(const std::uint8_t* p, std::uint8_t* values) {
  for (int i = 0; i < 16; ++i) {
    values[i] = low(p[i]);
    values[i + 16] = high(p[i]);
  }
}

void add_fifth_bits(const std::uint8_t* p, std::uint8_t* values) {
  for (int i = 0; i < 32; ++i) values[i] = with_bit(values[i], (p[i / 8] >> i % 8 & 1U) != 0, 4);
}

// Reads eight scales and eight minima of six bits each, as Q4_K and Q5_K pack them.
void read_k_scales(const std::uint8_t* p, Block& out) {
  for (int j = 0; j < 8; ++j) {
    if (j < 4) {
      out.factors[j] = p[j] & 63;
      out.minima[j] = p[j + 4] & 63;
    } else {
      out.factors[j] = low(p[j + 4]) | (p[j - 4] >> 6) << 4;
      out.minima[j] = high(p[j + 4]) | (p[j] >> 6) << 4;
    }
  }
}

void read_q2_k(const std::uint8_t* p, Block& out) {
  for (int j = 0; j < 16; ++j) {
    out.factors[j] = low(p[j]);
    out.minima[j] = high(p[j]);
  }
  for (int i = 0; i < kSuperBlock; ++i)
    out.values[i] = p[16 + i / 128 * 32 + i % 32] >> 2 * (i % 128 / 32) & 3U;
  out.d = read16(p + 80);
  out.dmin = read16(p + 82);
}

void read_q3_k(const std::uint8_t* p, Block& out) {
  const std::uint8_t* scales = p + 96;
  for (int j = 0; j < 16; ++j)
    out.factors[j] = ((j < 8 ? low(scales[j]) : high(scales[j - 8])) |
                      (scales[8 + j % 4] >> 2 * (j / 4) & 3) << 4) -
                     32;
  for (int i = 0; i < kSuperBlock; ++i) {
    const auto two =
        static_cast<std::uint8_t>(p[32 + i / 128 * 32 + i % 32] >> 2 * (i % 128 / 32) & 3U);
    out.values[i] = with_bit(two, (p[i % 32] >> i / 32 & 1U) != 0, 2);
  }
  out.d = read16(p + 108);
}

// Reads Q4_K, and Q5_K with a fifth bit: pairs of 32 inputs share the bytes of their nibbles.
void read_q45_k(const std::uint8_t* p, bool fifth, Block& out) {
  out.d = read16(p);
  out.dmin = read16(p + 2);
  read_k_scales(p + 4, out);
  const std::uint8_t* bits = p + 16;
  const std::uint8_t* nibbles = fifth ? p + 48 : p + 16;
  for (int pair = 0; pair < 4; ++pair)
    for (int i = 0; i < 32; ++i) {
      const std::uint8_t byte = nibbles[32 * pair + i];
      std::uint8_t* at = out.values + 64 * pair + i;
      at[0] = low(byte);
      at[32] = high(byte);
      if (!fifth) continue;
      at[0] = with_bit(at[0], (bits[i] >> 2 * pair & 1U) != 0, 4);
      at[32] = with_bit(at[32], (bits[i] >> (2 * pair + 1) & 1U) != 0, 4);
    }
}

void read_q6_k(const std::uint8_t* p, Block& out) {
  for (int half = 0; half < 2; ++half)
    for (int i = 0; i < 32; ++i) {
      const std::uint8_t* nibbles = p + 64 * half + i;
      const unsigned upper = p[128 + 32 * half + i];
      std::uint8_t* at = out.values + 128 * half + i;
      at[0] = static_cast<std::uint8_t>(low(nibbles[0]) | (upper & 3U) << 4);
      at[32] = static_cast<std::uint8_t>(low(nibbles[32]) | (upper >> 2 & 3U) << 4);
      at[64] = static_cast<std::uint8_t>(high(nibbles[0]) | (upper >> 4 & 3U) << 4);
      at[96] = static_cast<std::uint8_t>(high(nibbles[32]) | (upper >> 6 & 3U) << 4);
    }
  for (int j = 0; j < 16; ++j) out.factors[j] = static_cast<std::int8_t>(p[192 + j]);
  out.d = read16(p + 208);
}

void read_iq4_xs(const std::uint8_t* p, Block& out) {
  out.d = read16(p);
  const unsigned upper = read16(p + 2);
  for (int j = 0; j < 8; ++j) {
    const std::uint8_t byte = p[4 + j / 2];
    out.factors[j] =
        static_cast<int>((j % 2 == 0 ? low(byte) : high(byte)) | (upper >> 2 * j & 3U) << 4) - 32;
    read_nibbles(p + 8 + 16 * j, out.values + 32 * j);
  }
}

}  // namespace

void read_block(Source source, const std::uint8_t* p, Block& out) {
  std::fill(std::begin(out.factors), std::end(out.factors), 1);
  std::fill(std::begin(out.minima), std::end(out.minima), 0);
  switch (source) {
    case Source::Q2_K: return read_q2_k(p, out);
    case Source::Q3_K: return read_q3_k(p, out);
    case Source::Q4_K: return read_q45_k(p, false, out);
    case Source::Q5_K: return read_q45_k(p, true, out);
    case Source::Q6_K: return read_q6_k(p, out);
    case Source::IQ4_XS: return read_iq4_xs(p, out);
    default: break;
  }
  out.d = read16(p);
  if (source == Source::Q4_1 || source == Source::Q5_1) {
    out.dmin = read16(p + 2);
    out.minima[0] = -1;
  }
  switch (source) {
    case Source::Q4_0:
    case Source::IQ4_NL: return read_nibbles(p + 2, out.values);
    case Source::Q4_1: return read_nibbles(p + 4, out.values);
    case Source::Q5_0: read_nibbles(p + 6, out.values); return add_fifth_bits(p + 2, out.values);
    case Source::Q5_1: read_nibbles(p + 8, out.values); return add_fifth_bits(p + 4, out.values);
    default:  // Q8_0
      for (int i = 0; i < kGroup; ++i) out.values[i] = static_cast<std::uint8_t>(p[2 + i] ^ 0x80U);
  }
}

void block_values(Source source, const Block& block, float* out) {
  const BlockShape shape = block_shape(source);
  const bool levels = source == Source::IQ4_NL || source == Source::IQ4_XS;
  const float d = half_to_float(block.d);
  const float dmin = half_to_float(block.dmin);
  for (int i = 0; i < shape.size; ++i) {
    const int j = i / shape.step;
    const int stored = levels ? kLevels[block.values[i]] : block.values[i];
    const float scale = d * static_cast<float>(block.factors[j]);
    out[i] = scale * static_cast<float>(stored - shape.offset);
    if (block.minima[j] != 0) out[i] -= dmin * static_cast<float>(block.minima[j]);
  }
}

}  // namespace paradecode
