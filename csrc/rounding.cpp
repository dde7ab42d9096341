#include "rounding.hpp"

#include <algorithm>
#include <cmath>

#include "half.hpp"
#include "panels.hpp"
#include "traffic.hpp"

namespace paradecode {
namespace {

// Rounds one group for narrow_panel. The loops run over all outputs of the panel, so that compilers
// can vectorise them.
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
  float scale[kVector];   // scales of the 8-bit integers
  float narrow[kVector];  // scales of the 5-bit integers
  float ratio[kVector];
  for (int lane = 0; lane < kLanes; ++lane) {
    const int first = 4 * lane;
    const int top = *std::max_element(high + first, high + first + 4) - 128;
    const int bottom = *std::min_element(low + first, low + first + 4) - 128;
    const float own = half_to_float(read16(from + 2 * lane));
    // As in round_to_5, the value of the largest magnitude becomes -16.
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
  constexpr float round = 0x1.8p23F;  // Adding it to a small number leaves no bits for a fraction.
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
}  // namespace

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
void narrow_panel(const Matrix& from, const Matrix& to, int panel, Narrowed* out) {
  count_bytes(from.panel_bytes + to.panel_bytes);
  for (int g = 0; g < from.groups; ++g)
    narrow_group(from.panel(panel) + g * packing(Format::Q8).bytes(),
                 to.panel(panel) + g * packing(Format::Q5_0).bytes(), out[g]);
}
}  // namespace paradecode
