#include "pack.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "half.hpp"

namespace paradecode {
namespace {

constexpr int kSuperBlock = 256;  // of Q4_K
constexpr int kQ40Block = 18;
constexpr int kQ41Block = 20;
constexpr int kQ80Block = 34;
constexpr int kQ4KBlock = 144;

std::uint16_t read16(const std::uint8_t* p) {
  std::uint16_t value = 0;
  std::memcpy(&value, p, 2);
  return value;
}

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

// The scale and minimum of sub-block `index` of a Q4_K super-block, six bits each.
void q4k_scales(const std::uint8_t* packed, int index, int& scale, int& minimum) {
  if (index < 4) {
    scale = packed[index] & 63;
    minimum = packed[index + 4] & 63;
  } else {
    scale = (packed[index + 4] & 15) | (packed[index - 4] >> 6) << 4;
    minimum = packed[index + 4] >> 4 | (packed[index] >> 6) << 4;
  }
}

struct Group4 {
  std::uint8_t values[kGroup];
  std::uint16_t scale;
  std::uint16_t minimum;
};

struct Group8 {
  std::int8_t values[kGroup];
  std::uint16_t scale;
};

void write_group(const Matrix& matrix, int target, int group, const Group4& in) {
  std::uint8_t* base = matrix.panel(target / kLanes) + static_cast<std::size_t>(group) * 320;
  const int lane = target % kLanes;
  for (int i = 0; i < kGroup / 2; ++i)
    base[(i / 4) * 64 + lane * 4 + i % 4] =
        static_cast<std::uint8_t>(in.values[i] | in.values[i + 16] << 4);
  std::memcpy(base + 256 + 2 * lane, &in.scale, 2);
  std::memcpy(base + 288 + 2 * lane, &in.minimum, 2);
}

void write_group(const Matrix& matrix, int target, int group, const Group8& in) {
  std::uint8_t* base = matrix.panel(target / kLanes) + static_cast<std::size_t>(group) * 544;
  const int lane = target % kLanes;
  for (int i = 0; i < kGroup; ++i)
    base[(i / 4) * 64 + lane * 4 + i % 4] = static_cast<std::uint8_t>(in.values[i] + 128);
  std::memcpy(base + 512 + 2 * lane, &in.scale, 2);
}

Group4 round_to_4(const float* values) {
  Group4 out{};
  const auto [low, high] = std::minmax_element(values, values + kGroup);
  out.minimum = float_to_half(*low);
  const float base = half_to_float(out.minimum);
  out.scale = float_to_half((*high - base) / 15.0F);
  const float scale = half_to_float(out.scale);
  for (int i = 0; i < kGroup; ++i) {
    const float level = scale > 0 ? std::nearbyint((values[i] - base) / scale) : 0.0F;
    out.values[i] = static_cast<std::uint8_t>(std::clamp(level, 0.0F, 15.0F));
  }
  return out;
}

Group8 round_to_8(const float* values) {
  Group8 out{};
  float largest = 0;
  for (int i = 0; i < kGroup; ++i) largest = std::max(largest, std::fabs(values[i]));
  out.scale = float_to_half(largest / 127.0F);
  const float scale = half_to_float(out.scale);
  for (int i = 0; i < kGroup; ++i) {
    const float level = scale > 0 ? std::nearbyint(values[i] / scale) : 0.0F;
    out.values[i] = static_cast<std::int8_t>(std::clamp(level, -127.0F, 127.0F));
  }
  return out;
}

// Four-bit blocks as they are. Returns false for sources that are not four-bit.
bool pack_nibbles(const Matrix& matrix, int target, Source source, const std::uint8_t* row) {
  Group4 group{};
  for (int g = 0; g < matrix.groups; ++g) {
    const std::uint8_t* nibbles = nullptr;
    if (source == Source::Q4_0) {
      const std::uint8_t* block = row + g * kQ40Block;
      group.scale = read16(block);
      group.minimum = float_to_half(-8.0F * half_to_float(group.scale));
      nibbles = block + 2;
    } else if (source == Source::Q4_1) {
      const std::uint8_t* block = row + g * kQ41Block;
      group.scale = read16(block);
      group.minimum = read16(block + 2);
      nibbles = block + 4;
    } else if (source == Source::Q4_K) {
      const std::uint8_t* block = row + g / 8 * kQ4KBlock;
      int scale = 0;
      int minimum = 0;
      q4k_scales(block + 4, g % 8, scale, minimum);
      group.scale = float_to_half(half_to_float(read16(block)) * static_cast<float>(scale));
      group.minimum =
          float_to_half(-half_to_float(read16(block + 2)) * static_cast<float>(minimum));
      const std::uint8_t* pair = block + 16 + g % 8 / 2 * 32;  // low nibbles: even sub-block
      for (int i = 0; i < kGroup; ++i)
        group.values[i] = g % 2 == 0 ? pair[i] & 15 : static_cast<std::uint8_t>(pair[i] >> 4);
    } else {
      return false;
    }
    if (nibbles != nullptr)
      for (int i = 0; i < kGroup / 2; ++i) {
        group.values[i] = nibbles[i] & 15;
        group.values[i + 16] = static_cast<std::uint8_t>(nibbles[i] >> 4);
      }
    write_group(matrix, target, g, group);
  }
  return true;
}

void pack_bytes(const Matrix& matrix, int target, const std::uint8_t* row) {
  Group8 group{};
  for (int g = 0; g < matrix.groups; ++g) {
    const std::uint8_t* block = row + g * kQ80Block;
    group.scale = read16(block);
    std::memcpy(group.values, block + 2, kGroup);
    write_group(matrix, target, g, group);
  }
}

void decode(Source source, const std::uint8_t* row, int cols, float* out) {
  int scale = 0;
  int minimum = 0;
  for (int i = 0; i < cols; ++i) {
    const int g = i / kGroup;
    const int k = i % kGroup;
    const auto nibble = [&](const std::uint8_t* p) {
      return static_cast<float>(k < 16 ? p[k] & 15 : p[k - 16] >> 4);
    };
    switch (source) {
      case Source::F32: out[i] = read_float(row + 4 * i); break;
      case Source::F16: out[i] = half_to_float(read16(row + 2 * i)); break;
      case Source::BF16: out[i] = bf16_to_float(read16(row + 2 * i)); break;
      case Source::Q4_0: {
        const std::uint8_t* block = row + g * kQ40Block;
        out[i] = half_to_float(read16(block)) * (nibble(block + 2) - 8.0F);
        break;
      }
      case Source::Q4_1: {
        const std::uint8_t* block = row + g * kQ41Block;
        out[i] =
            half_to_float(read16(block)) * nibble(block + 4) + half_to_float(read16(block + 2));
        break;
      }
      case Source::Q8_0: {
        const std::uint8_t* block = row + g * kQ80Block;
        out[i] = half_to_float(read16(block)) *
                 static_cast<float>(static_cast<std::int8_t>(block[2 + k]));
        break;
      }
      case Source::Q4_K: {
        const std::uint8_t* block = row + g / 8 * kQ4KBlock;
        q4k_scales(block + 4, g % 8, scale, minimum);
        const std::uint8_t* pair = block + 16 + g % 8 / 2 * 32;
        const int value = g % 2 == 0 ? pair[k] & 15 : pair[k] >> 4;
        out[i] = half_to_float(read16(block)) * static_cast<float>(scale * value) -
                 half_to_float(read16(block + 2)) * static_cast<float>(minimum);
        break;
      }
    }
  }
}

// One value of a 16- or 32-bit format. Copies bits where the source has the same format.
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
    std::memcpy(base + 2 * at, &half, 2);
  }
}

}  // namespace

std::size_t source_row_bytes(Source source, int cols) {
  const auto n = static_cast<std::size_t>(cols);
  switch (source) {
    case Source::F32: return 4 * n;
    case Source::F16:
    case Source::BF16: return 2 * n;
    case Source::Q4_0: return n / kGroup * kQ40Block;
    case Source::Q4_1: return n / kGroup * kQ41Block;
    case Source::Q8_0: return n / kGroup * kQ80Block;
    case Source::Q4_K: return n / kSuperBlock * kQ4KBlock;
  }
  return 0;
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
  if (matrix.format == Format::Q4 && pack_nibbles(matrix, target, source, row)) return;
  if (matrix.format == Format::Q8 && source == Source::Q8_0) {
    pack_bytes(matrix, target, row);
    return;
  }
  thread_local std::vector<float> values;
  values.assign(static_cast<std::size_t>(matrix.groups) * kGroup, 0.0F);
  decode(source, row, matrix.cols, values.data());
  if (!is_integer(matrix.format)) {
    pack_floats(matrix, target, source, row, values.data());
    return;
  }
  for (int g = 0; g < matrix.groups; ++g) {
    const float* group = values.data() + static_cast<std::size_t>(g) * kGroup;
    if (matrix.format == Format::Q4)
      write_group(matrix, target, g, round_to_4(group));
    else
      write_group(matrix, target, g, round_to_8(group));
  }
}

void unpack_row(const Matrix& matrix, int row, float* out) {
  const std::uint8_t* base = matrix.panel(row / kLanes);
  const int lane = row % kLanes;
  for (int i = 0; i < matrix.cols; ++i) {
    const int k = i % kGroup;
    const std::size_t at = static_cast<std::size_t>(i) * kLanes + static_cast<std::size_t>(lane);
    switch (matrix.format) {
      case Format::Q4: {
        const std::uint8_t* group = base + static_cast<std::size_t>(i / kGroup) * 320;
        const std::uint8_t pair = group[(k % 16 / 4) * 64 + lane * 4 + k % 4];
        const float scale = half_to_float(read16(group + 256 + 2 * lane));
        const float minimum = half_to_float(read16(group + 288 + 2 * lane));
        out[i] = scale * static_cast<float>(k < 16 ? pair & 15 : pair >> 4) + minimum;
        break;
      }
      case Format::Q8: {
        const std::uint8_t* group = base + static_cast<std::size_t>(i / kGroup) * 544;
        const int value = group[(k / 4) * 64 + lane * 4 + k % 4] - 128;
        out[i] = half_to_float(read16(group + 512 + 2 * lane)) * static_cast<float>(value);
        break;
      }
      case Format::BF16: out[i] = bf16_to_float(read16(base + 2 * at)); break;
      case Format::F16: out[i] = half_to_float(read16(base + 2 * at)); break;
      case Format::F32: out[i] = read_float(base + 4 * at); break;
    }
  }
}

}  // namespace paradecode
