#include "pack.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <vector>

#include "dispatch.hpp"
#include "half.hpp"
#include "traffic.hpp"

namespace paradecode {
namespace {

std::uint16_t read16(const std::uint8_t* p) {
  std::uint16_t value = 0;
  std::memcpy(&value, p, 2);
  return value;
}

void write16(std::uint8_t* p, std::uint16_t value) { std::memcpy(p, &value, 2); }

float read_float(const std::uint8_t* p) {
  float value = 0;
  std::memcpy(&value, p, 4);
  return value;
}

float bf16_to_float(std::uint16_t half) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16);
}

std::uint16_t float_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<std::uint16_t>(bits >> 16 | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + (bits >> 16 & 1U)) >> 16);
}

// The source whose blocks a format holds.
Source own_source(Format format) {
  for (int i = 0; i < kSources; ++i)
    if (own_format(static_cast<Source>(i)) == format) return static_cast<Source>(i);
  return Source::F32;
}

// Bytes of a vector: of four inputs, those of 16 outputs.
constexpr int kVector = 4 * kLanes;

// A plane of 64 bytes has, for 16 outputs, four bytes each. `Share` bits of vector `first + i`
// (inputs 4 (first + i) .. + 3) of a group lie at bit i * Share, taken from bit `from` on.
struct Plane {
  int offset;  // bytes from the group's start
  int first;
  int step;  // vectors from one to the next
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
    std::uint32_t word = 0;  // The four bytes at once: their shares do not meet.
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

// The same for all outputs of a panel: vector i of `values` has 64 bytes, four of each output.
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

// Sixteen values of six bits; unpack.hpp says where they lie.
void write_six_bits(const int* values, int lane, std::uint8_t* p) {
  for (int j = 0; j < 8; ++j)
    p[16 * j + lane] = static_cast<std::uint8_t>((values[j] & 15) | (values[j + 8] & 15) << 4);
  for (int j = 0; j < 4; ++j) {
    int byte = 0;
    for (int t = 0; t < 4; ++t) byte |= (values[j + 4 * t] >> 4 & 3) << 2 * t;
    p[128 + 16 * j + lane] = static_cast<std::uint8_t>(byte);
  }
}

void read_six_bits(const std::uint8_t* p, int lane, int* values) {
  for (int j = 0; j < 16; ++j)
    values[j] = (p[16 * (j % 8) + lane] >> j / 8 * 4 & 15) |
                (p[128 + 16 * (j % 4) + lane] >> j / 4 * 2 & 3) << 4;
}

bool has_minimum(Format format) {
  return format == Format::Q4 || format == Format::Q5_1 || format == Format::Q2_K ||
         format == Format::Q4_K || format == Format::Q5_K;
}

// The header of a block: d, then dmin where there is one, then the factors.
void write_header(Format format, const Block& block, int lane, std::uint8_t* header) {
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

void read_header(Format format, const std::uint8_t* header, int lane, Block& out) {
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

Block round_to_4(const float* values) {
  Block out{};
  const auto [low, high] = std::minmax_element(values, values + kGroup);
  out.dmin = float_to_half(*low);
  const float base = half_to_float(out.dmin);
  out.d = float_to_half((*high - base) / 15.0F);
  const float scale = half_to_float(out.d);
  for (int i = 0; i < kGroup; ++i) {
    const float level = scale > 0 ? std::nearbyint((values[i] - base) / scale) : 0.0F;
    out.values[i] = static_cast<std::uint8_t>(std::clamp(level, 0.0F, 15.0F));
  }
  return out;
}

// The value of the largest magnitude becomes -16 times the scale.
Block round_to_5(const float* values) {
  Block out{};
  float extreme = 0;
  for (int i = 0; i < kGroup; ++i)
    if (std::fabs(values[i]) > std::fabs(extreme)) extreme = values[i];
  out.d = float_to_half(extreme / -16.0F);
  const float scale = half_to_float(out.d);
  for (int i = 0; i < kGroup; ++i) {
    const float level = scale != 0 ? std::nearbyint(values[i] / scale) + 16.0F : 16.0F;
    out.values[i] = static_cast<std::uint8_t>(std::clamp(level, 0.0F, 31.0F));
  }
  return out;
}

Block round_to_8(const float* values) {
  Block out{};
  float largest = 0;
  for (int i = 0; i < kGroup; ++i) largest = std::max(largest, std::fabs(values[i]));
  out.d = float_to_half(largest / 127.0F);
  const float scale = half_to_float(out.d);
  for (int i = 0; i < kGroup; ++i) {
    const float level = scale > 0 ? std::nearbyint(values[i] / scale) : 0.0F;
    out.values[i] = static_cast<std::uint8_t>(std::clamp(level, -127.0F, 127.0F) + 128.0F);
  }
  return out;
}

// One group of narrow_panel. Loops run over all outputs of the panel, so that compilers make
// vectors of them.
void narrow_group(const std::uint8_t* from, std::uint8_t* to, Narrowed& out) {
  const std::uint8_t* values = from + packing(Format::Q8).header;
  std::uint8_t high[kVector] = {};
  std::uint8_t low[kVector];
  std::fill_n(low, kVector, std::uint8_t{255});
  for (int at = 0; at < kVector * kGroup / 4; at += kVector)
    for (int k = 0; k < kVector; ++k) {
      const std::uint8_t value = values[at + k];
      high[k] = value > high[k] ? value : high[k];
      low[k] = value < low[k] ? value : low[k];
    }
  float scale[kVector];   // of 8 bits
  float narrow[kVector];  // of 5 bits
  float ratio[kVector];
  for (int lane = 0; lane < kLanes; ++lane) {
    const int first = 4 * lane;
    const int top = *std::max_element(high + first, high + first + 4) - 128;
    const int bottom = *std::min_element(low + first, low + first + 4) - 128;
    const float own = half_to_float(read16(from + 2 * lane));
    // As in round_to_5: the value of the largest magnitude becomes -16.
    const float extreme = own * static_cast<float>(top > -bottom ? top : bottom);
    const std::uint16_t half = float_to_half(extreme / -16.0F);
    write16(to + 2 * lane, half);
    const float wide = half_to_float(half);
    const float levels = own / wide;
    std::fill_n(scale + first, 4, own);
    std::fill_n(narrow + first, 4, wide);
    std::fill_n(ratio + first, 4, std::isfinite(levels) ? levels : 0.0F);
    out.largest[lane] = std::fabs(extreme);
    out.least[lane] = 16.0F * std::fabs(wide);
  }
  constexpr float round = 0x1.8p23F;  // Added to a small number, it leaves no bits for a fraction.
  float error[kVector] = {};
  std::uint8_t levels[kVector * kGroup / 4];
  for (int at = 0; at < kVector * kGroup / 4; at += kVector)
    for (int k = 0; k < kVector; ++k) {
      const float value = static_cast<float>(values[at + k]) - 128.0F;
      const float level = std::clamp(value * ratio[k] + round - round, -16.0F, 15.0F);
      const float left = value * scale[k] - level * narrow[k];
      error[k] += left * left;
      levels[at + k] = static_cast<std::uint8_t>(static_cast<int>(level) + 16);
    }
  write_panel_integers<Format::Q5_0>(levels, to + packing(Format::Q5_0).header);
  for (int lane = 0; lane < kLanes; ++lane) {
    const float* four = error + 4 * lane;
    out.error[lane] = four[0] + four[1] + four[2] + four[3];
  }
}

// Blocks of the matrix's own kind as they are.
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

// Other 4-bit blocks in a Q4 matrix: scales and minima are rounded to half precision.
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

// One row of a 16- or 32-bit format. Copies bits where the source has the same format.
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

void narrow_panel(const Matrix& from, const Matrix& to, int panel, Narrowed* out) {
  count_bytes(from.panel_bytes + to.panel_bytes);
  for (int g = 0; g < from.groups; ++g)
    narrow_group(from.panel(panel) + g * packing(Format::Q8).bytes(),
                 to.panel(panel) + g * packing(Format::Q5_0).bytes(), out[g]);
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
