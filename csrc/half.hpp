// Converts half precision and bfloat16 without instructions for them. The results are those of the
// hardware conversions, bit for bit.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

namespace paradecode {
namespace {

[[maybe_unused]] inline float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16;
  const std::uint32_t rest = half & 0x7FFFU;
  if (rest >= 0x7C00U) {
    return std::bit_cast<float>(sign | 0x7F800000U | (rest & 0x3FFU) << 13 |
                                ((rest & 0x3FFU) != 0 ? 0x400000U : 0U));
  }
  // Subnormal halves become normal floats through the multiplication, which is exact.
  const float magnitude = std::bit_cast<float>(rest << 13) * 0x1p112F;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
}

[[maybe_unused]] inline std::uint16_t float_to_half(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000U);
  const std::uint32_t rest = bits & 0x7FFFFFFFU;
  if (rest > 0x7F800000U) return static_cast<std::uint16_t>(sign | 0x7E00U | (rest >> 13 & 0x3FFU));
  if (rest >= 0x477FF000U) return static_cast<std::uint16_t>(sign | 0x7C00U);  // rounds to infinity
  if (rest < 0x38800000U) {
    // Adding 0.5 aligns the subnormal half's last bit with the float's, so the addition rounds.
    const float shifted = std::bit_cast<float>(rest) + 0.5F;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3F000000U));
  }
  const std::uint32_t odd = rest >> 13 & 1U;
  return static_cast<std::uint16_t>(sign | ((rest - 0x38000000U + 0xFFFU + odd) >> 13));
}

[[maybe_unused]] inline float bf16_to_float(std::uint16_t half) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16);
}

[[maybe_unused]] inline std::uint16_t float_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<std::uint16_t>(bits >> 16 | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + (bits >> 16 & 1U)) >> 16);
}
[[maybe_unused]] inline std::uint16_t read16(const std::uint8_t* p) {
  std::uint16_t value = 0;
  std::memcpy(&value, p, 2);
  return value;
}

[[maybe_unused]] inline void write16(std::uint8_t* p, std::uint16_t value) {
  std::memcpy(p, &value, 2);
}

}  // namespace
}  // namespace paradecode
