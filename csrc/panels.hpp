// Blocks in the panels of a matrix (see Packing): says where the integers and the header of an
// output lie.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>

#include "blocks.hpp"
#include "half.hpp"
#include "types.hpp"

namespace paradecode {

// The bytes of a vector: four inputs of each of 16 outputs.
inline constexpr int kVector = 4 * kLanes;

// A plane of 64 bytes has four bytes for each of 16 outputs. `Share` bits of vector `first + i`
// (inputs 4 (first + i) .. + 3) of a group are stored at bit i * Share; they are taken from bit
// `from` on.
struct Plane {
  int offset;  // bytes from the start of the group
  int first;
  int step;  // number of vectors from one to the next
  int count;
  int share;
  int from;
};

struct Planes {
  Plane entries[8];
  int count;
};

constexpr Planes planes(Format format) {
  constexpr Plane nibbles[] = {
      {0, 0, 4, 2, 4, 0}, {64, 1, 4, 2, 4, 0}, {128, 2, 4, 2, 4, 0}, {192, 3, 4, 2, 4, 0}};
  Planes out{{nibbles[0], nibbles[1], nibbles[2], nibbles[3]}, 4};
  switch (format) {
    case Format::Q8:
      for (int i = 0; i < 8; ++i) out.entries[i] = {64 * i, i, 1, 1, 8, 0};
      out.count = 8;
      break;
    case Format::Q5_0:
    case Format::Q5_1:
    case Format::Q5_K: out.entries[out.count++] = {256, 0, 1, 8, 1, 4}; break;
    case Format::Q6_K:
      out.entries[out.count++] = {256, 0, 1, 4, 2, 4};
      out.entries[out.count++] = {320, 4, 1, 4, 2, 4};
      break;
    case Format::Q2_K:
    case Format::Q3_K:
      out.entries[0] = {0, 0, 1, 4, 2, 0};
      out.entries[1] = {64, 4, 1, 4, 2, 0};
      out.entries[2] = {128, 0, 1, 8, 1, 2};
      out.count = format == Format::Q3_K ? 3 : 2;
      break;
    default: break;
  }
  return out;
}

template <Format Kind>
void write_integers(const std::uint8_t* values, int lane, std::uint8_t* group) {
  constexpr Planes layout = planes(Kind);
  for (int p = 0; p < layout.count; ++p) {
    const Plane& plane = layout.entries[p];
    const unsigned mask = (1U << plane.share) - 1U;
    // All four bytes are handled at once, because their bits do not overlap.
    std::uint32_t word = 0;
    for (int i = 0; i < plane.count; ++i) {
      std::uint32_t four = 0;
      std::memcpy(&four, values + 4 * (plane.first + i * plane.step), 4);
      word |= (four >> plane.from & mask * 0x01010101U) << i * plane.share;
    }
    std::memcpy(group + plane.offset + lane * 4, &word, 4);
  }
}

template <Format Kind>
void read_integers(const std::uint8_t* group, int lane, std::uint8_t* values) {
  constexpr Planes layout = planes(Kind);
  std::fill(values, values + kGroup, std::uint8_t{0});
  for (int p = 0; p < layout.count; ++p) {
    const Plane& plane = layout.entries[p];
    const unsigned mask = (1U << plane.share) - 1U;
    std::uint32_t word = 0;
    std::memcpy(&word, group + plane.offset + lane * 4, 4);
    for (int i = 0; i < plane.count; ++i) {
      std::uint8_t* at = values + 4 * (plane.first + i * plane.step);
      std::uint32_t four = 0;
      std::memcpy(&four, at, 4);
      four |= (word >> i * plane.share & mask * 0x01010101U) << plane.from;
      std::memcpy(at, &four, 4);
    }
  }
}

// Does the same for all outputs of a panel: vector i of `values` has 64 bytes, four of each output.
template <Format Kind>
void write_panel_integers(const std::uint8_t* values, std::uint8_t* group) {
  constexpr Planes layout = planes(Kind);
  for (int p = 0; p < layout.count; ++p) {
    const Plane& plane = layout.entries[p];
    const unsigned mask = (1U << plane.share) - 1U;
    std::uint8_t bytes[kVector] = {};
    for (int i = 0; i < plane.count; ++i) {
      const std::uint8_t* at = values + kVector * (plane.first + i * plane.step);
      for (int k = 0; k < kVector; ++k)
        bytes[k] =
            static_cast<std::uint8_t>(bytes[k] | (at[k] >> plane.from & mask) << i * plane.share);
    }
    std::copy_n(bytes, kVector, group + plane.offset);
  }
}

// Packs sixteen values of six bits; unpack.hpp says where they lie.
inline void write_six_bits(const int* values, int lane, std::uint8_t* p) {
  for (int j = 0; j < 8; ++j)
    p[16 * j + lane] = static_cast<std::uint8_t>((values[j] & 15) | (values[j + 8] & 15) << 4);
  for (int j = 0; j < 4; ++j) {
    int byte = 0;
    for (int t = 0; t < 4; ++t) byte |= (values[j + 4 * t] >> 4 & 3) << 2 * t;
    p[128 + 16 * j + lane] = static_cast<std::uint8_t>(byte);
  }
}

inline void read_six_bits(const std::uint8_t* p, int lane, int* values) {
  for (int j = 0; j < 16; ++j)
    values[j] = (p[16 * (j % 8) + lane] >> j / 8 * 4 & 15) |
                (p[128 + 16 * (j % 4) + lane] >> j / 4 * 2 & 3) << 4;
}

inline bool has_minimum(Format format) {
  return format == Format::Q4 || format == Format::Q5_1 || format == Format::Q2_K ||
         format == Format::Q4_K || format == Format::Q5_K;
}

// Packs the header of a block: d, then dmin where there is one, then the factors.
inline void write_header(Format format, const Block& block, int lane, std::uint8_t* header) {
  write16(header + 2 * lane, block.d);
  if (has_minimum(format)) write16(header + 32 + 2 * lane, block.dmin);
  int six[16];
  switch (format) {
    case Format::Q4_K:
    case Format::Q5_K:
      std::copy_n(block.factors, 8, six);
      std::copy_n(block.minima, 8, six + 8);
      return write_six_bits(six, lane, header + 64);
    case Format::Q3_K:
      for (int j = 0; j < 16; ++j) six[j] = block.factors[j] + 32;
      return write_six_bits(six, lane, header + 64);
    case Format::Q2_K:
      for (int j = 0; j < 16; ++j)
        header[64 + 16 * j + lane] =
            static_cast<std::uint8_t>(block.factors[j] | block.minima[j] << 4);
      return;
    case Format::Q6_K:
      for (int j = 0; j < 16; ++j)
        header[64 + 16 * j + lane] = static_cast<std::uint8_t>(block.factors[j]);
      return;
    case Format::IQ4_XS:
      for (int j = 0; j < 8; ++j)
        header[32 + 16 * j + lane] = static_cast<std::uint8_t>(block.factors[j]);
      return;
    default: return;
  }
}

inline void read_header(Format format, const std::uint8_t* header, int lane, Block& out) {
  std::fill(std::begin(out.factors), std::end(out.factors), 1);
  std::fill(std::begin(out.minima), std::end(out.minima), 0);
  out.d = read16(header + 2 * lane);
  if (has_minimum(format)) {
    out.dmin = read16(header + 32 + 2 * lane);
    out.minima[0] = -1;
  }
  int six[16];
  switch (format) {
    case Format::Q4_K:
    case Format::Q5_K:
      read_six_bits(header + 64, lane, six);
      std::copy_n(six, 8, out.factors);
      std::copy_n(six + 8, 8, out.minima);
      return;
    case Format::Q3_K:
      read_six_bits(header + 64, lane, six);
      for (int j = 0; j < 16; ++j) out.factors[j] = six[j] - 32;
      return;
    case Format::Q2_K:
      for (int j = 0; j < 16; ++j) {
        out.factors[j] = header[64 + 16 * j + lane] & 15;
        out.minima[j] = header[64 + 16 * j + lane] >> 4;
      }
      return;
    case Format::Q6_K:
      for (int j = 0; j < 16; ++j)
        out.factors[j] = static_cast<std::int8_t>(header[64 + 16 * j + lane]);
      return;
    case Format::IQ4_XS:
      for (int j = 0; j < 8; ++j)
        out.factors[j] = static_cast<std::int8_t>(header[32 + 16 * j + lane]);
      return;
    default: return;
  }
}

template <Format Kind>
void write_block(const Matrix& matrix, int target, int index, const Block& block) {
  constexpr Packing shape = packing(Kind);
  const int lane = target % kLanes;
  std::uint8_t* base = matrix.panel(target / kLanes) +
                       static_cast<std::size_t>(index) * static_cast<std::size_t>(shape.bytes());
  write_header(Kind, block, lane, base);
  for (int g = 0; g < shape.groups; ++g)
    write_integers<Kind>(block.values + kGroup * g, lane, base + shape.header + g * shape.data);
}
}  // namespace paradecode
