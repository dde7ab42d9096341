#include "pack.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "dispatch.hpp"
#include "half.hpp"
#include "panels.hpp"
#include "rounding.hpp"
#include "traffic.hpp"

namespace paradecode {
namespace {

float read_float(const std::uint8_t* p) {
  float value = 0;
  std::memcpy(&value, p, 4);
  return value;
}
// Returns the source whose blocks a format holds.
Source own_source(Format format) {
  for (int i = 0; i < kSources; ++i)
    if (own_format(static_cast<Source>(i)) == format) return static_cast<Source>(i);
  return Source::F32;
}
// Copies blocks of the matrix's own kind unchanged.
void pack_blocks(const Matrix& matrix, int target, Source source, const std::uint8_t* row) {
  const BlockShape shape = block_shape(source);
  Block block;
  with_format(matrix.format, [&](auto kind) {
    if constexpr (is_integer(kind.value))
      for (int index = 0; index * shape.size < matrix.cols; ++index) {
        read_block(source, row + index * shape.bytes, block);
        write_block<kind.value>(matrix, target, index, block);
      }
  });
}

// Packs other 4-bit blocks into a Q4 matrix; scales and minima are rounded to half precision.
void pack_nibbles(const Matrix& matrix, int target, Source source, const std::uint8_t* row) {
  const BlockShape shape = block_shape(source);
  Block block;
  Block group{};
  for (int g = 0; g < matrix.groups; ++g) {
    const int inside = g % (shape.size / kGroup);
    if (inside == 0) read_block(source, row + g * kGroup / shape.size * shape.bytes, block);
    const float d = half_to_float(block.d);
    group.d = float_to_half(d * static_cast<float>(block.factors[inside]));
    group.dmin =
        float_to_half(source == Source::Q4_0
                          ? -8.0F * d
                          : -half_to_float(block.dmin) * static_cast<float>(block.minima[inside]));
    std::copy_n(block.values + inside * kGroup, kGroup, group.values);
    write_block<Format::Q4>(matrix, target, g, group);
  }
}

void decode(Source source, const std::uint8_t* row, int cols, float* out) {
  const BlockShape shape = block_shape(source);
  Block block;
  for (int i = 0; i < cols; i += shape.size) {
    const std::uint8_t* p = row + static_cast<std::size_t>(i / shape.size * shape.bytes);
    switch (source) {
      case Source::F32: out[i] = read_float(p); break;
      case Source::F16: out[i] = half_to_float(read16(p)); break;
      case Source::BF16: out[i] = bf16_to_float(read16(p)); break;
      default: read_block(source, p, block); block_values(source, block, out + i);
    }
  }
}

// Packs one row of a 16- or 32-bit format. Bits are copied if the source has the same format.
void pack_floats(const Matrix& matrix, int target, Source source, const std::uint8_t* row,
                 const float* values) {
  std::uint8_t* base = matrix.panel(target / kLanes);
  const std::size_t lane = static_cast<std::size_t>(target % kLanes);
  for (int i = 0; i < matrix.cols; ++i) {
    const std::size_t at = static_cast<std::size_t>(i) * kLanes + lane;
    if (matrix.format == Format::F32) {
      std::memcpy(base + 4 * at, values + i, 4);
      continue;
    }
    std::uint16_t half = 0;
    if (matrix.format == Format::F16)
      half = source == Source::F16 ? read16(row + 2 * i) : float_to_half(values[i]);
    else
      half = source == Source::BF16 ? read16(row + 2 * i) : float_to_bf16(values[i]);
    write16(base + 2 * at, half);
  }
}

}  // namespace

std::size_t source_row_bytes(Source source, int cols) {
  const BlockShape shape = block_shape(source);
  return static_cast<std::size_t>(cols / shape.size) * static_cast<std::size_t>(shape.bytes);
}

bool fits(Format format, int cols) {
  const int groups = (cols + kGroup - 1) / kGroup;
  return !is_integer(format) || groups % packing(format).groups == 0;
}

Matrix make_matrix(Arena& arena, Format format, int rows, int cols) {
  Matrix out;
  out.format = format;
  out.rows = rows;
  out.cols = cols;
  out.panels = (rows + 2 * kLanes - 1) / (2 * kLanes) * 2;
  out.groups = (cols + kGroup - 1) / kGroup;
  out.panel_bytes = panel_bytes(format, out.groups);
  out.pair_stride = 2 * out.panel_bytes;
  out.data = arena.take(static_cast<std::size_t>(out.panels) * out.panel_bytes);
  return out;
}

void make_interleaved(Arena& arena, Format format, int rows, int cols, Matrix& first,
                      Matrix& second) {
  const int panels = (rows + 2 * kLanes - 1) / (2 * kLanes) * 2;
  first = make_matrix(arena, format, 2 * panels * kLanes, cols);
  first.rows = rows;
  first.panels = panels;
  first.pair_stride = 4 * first.panel_bytes;
  second = first;
  second.data = first.data + 2 * first.panel_bytes;
}
void pack_row(const Matrix& matrix, int target, Source source, const std::uint8_t* row) {
  count_bytes(source_row_bytes(source, matrix.cols) + matrix.panel_bytes / kLanes);
  if (is_integer(matrix.format) && own_format(source) == matrix.format)
    return pack_blocks(matrix, target, source, row);
  const bool nibbles = source == Source::Q4_0 || source == Source::Q4_K;
  if (matrix.format == Format::Q4 && nibbles) return pack_nibbles(matrix, target, source, row);
  thread_local std::vector<float> values;
  values.assign(static_cast<std::size_t>(matrix.groups) * kGroup, 0.0F);
  decode(source, row, matrix.cols, values.data());
  if (!is_integer(matrix.format)) return pack_floats(matrix, target, source, row, values.data());
  for (int g = 0; g < matrix.groups; ++g) {
    const float* group = values.data() + static_cast<std::size_t>(g) * kGroup;
    if (matrix.format == Format::Q4)
      write_block<Format::Q4>(matrix, target, g, round_to_4(group));
    else if (matrix.format == Format::Q5_0)
      write_block<Format::Q5_0>(matrix, target, g, round_to_5(group));
    else
      write_block<Format::Q8>(matrix, target, g, round_to_8(group));
  }
}

void unpack_row(const Matrix& matrix, int row, float* out) {
  count_bytes(matrix.panel_bytes / kLanes + static_cast<std::size_t>(matrix.cols) * sizeof(float));
  const std::uint8_t* base = matrix.panel(row / kLanes);
  const int lane = row % kLanes;
  if (!is_integer(matrix.format)) {
    for (int i = 0; i < matrix.cols; ++i) {
      const std::size_t at = static_cast<std::size_t>(i) * kLanes + static_cast<std::size_t>(lane);
      if (matrix.format == Format::F32)
        out[i] = read_float(base + 4 * at);
      else
        out[i] = matrix.format == Format::F16 ? half_to_float(read16(base + 2 * at))
                                              : bf16_to_float(read16(base + 2 * at));
    }
    return;
  }
  const Packing shape = packing(matrix.format);
  const Source source = own_source(matrix.format);
  Block block;
  float values[kSuperBlock];
  for (int at = 0; at < matrix.cols; at += shape.groups * kGroup, base += shape.bytes()) {
    read_header(matrix.format, base, lane, block);
    with_format(matrix.format, [&](auto kind) {
      for (int g = 0; g < shape.groups; ++g)
        read_integers<kind.value>(base + shape.header + g * shape.data, lane,
                                  block.values + kGroup * g);
    });
    block_values(source, block, values);
    std::copy_n(values, std::min(shape.groups * kGroup, matrix.cols - at), out + at);
  }
}

}  // namespace paradecode
