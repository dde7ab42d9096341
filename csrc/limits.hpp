// Loops that only do what limits the speed of a forward: read memory, and multiply bytes.
#pragma once

#include "matmul.hpp"
#include "types.hpp"

namespace paradecode {
namespace {

// Reads `bytes` (a multiple of 512), and returns a value that depends on all of them.
inline std::int32_t read_all(const std::uint8_t* data, std::int64_t bytes) {
  Simd::I sums[8];
  for (auto& sum : sums) sum = Simd::int_zero();
  for (std::int64_t at = 0; at < bytes; at += 512) {
    for (int i = 0; i < 8; ++i)
      sums[i] = Simd::int_add(
          sums[i], Simd::int_load(reinterpret_cast<const std::int32_t*>(data + at + 64 * i)));
  }
  for (int i = 1; i < 8; ++i) sums[0] = Simd::int_add(sums[0], sums[i]);
  std::int32_t lanes[kLanes];
  Simd::int_store(lanes, sums[0]);
  std::int32_t out = 0;
  for (const std::int32_t lane : lanes) out ^= lane;
  return out;
}

// The number of products that one step of `multiply` makes.
inline constexpr int kDotProducts = 12 * 64;

// Runs `steps` times twelve independent dots of 64 bytes (or three of 256) on registers.
template <class Lanes = Simd>
inline std::int32_t multiply(std::int64_t steps) {
  std::uint8_t raw[64];
  for (int i = 0; i < 64; ++i) raw[i] = static_cast<std::uint8_t>(i % 16);
  const Simd::Bytes weight = Simd::load_bytes(raw);
  Simd::I sums[12];
#pragma GCC unroll 12
  for (auto& sum : sums) sum = Simd::int_zero();
  // Changing operands prevent the compiler from computing the sum at once.
  const auto word_of = [](std::int64_t step) {
    return static_cast<std::int32_t>(step & 0x01010101);
  };
  if constexpr (MultipliesPairs<Lanes>) {
    const auto eights = Lanes::eights(weight, weight);
    typename Lanes::Pair pairs[3];
    for (auto& pair : pairs) pair = Lanes::pair(sums[0], sums[1]);
    for (std::int64_t step = 0; step < steps; ++step) {
      const std::int32_t words[2] = {word_of(step), word_of(step)};
#pragma GCC unroll 3
      for (auto& pair : pairs) pair = Lanes::dot_pair(pair, eights, words, words);
    }
    for (int i = 0; i < 3; ++i) {
      sums[2 * i] = Lanes::first_of(pairs[i]);
      sums[2 * i + 1] = Lanes::second_of(pairs[i]);
    }
  } else {
    for (std::int64_t step = 0; step < steps; ++step) {
      const std::int32_t word = word_of(step);
#pragma GCC unroll 12
      for (int i = 0; i < 12; ++i) sums[i] = Simd::dot_nibbles(sums[i], weight, word);
    }
  }
  std::int32_t lanes[kLanes];
#pragma GCC unroll 12
  for (int i = 1; i < 12; ++i) sums[0] = Simd::int_add(sums[0], sums[i]);
  Simd::int_store(lanes, sums[0]);
  return lanes[0];
}

// The number of multiplications and additions of one step of `multiply_floats`.
inline constexpr int kFloatProducts = 12 * kLanes;

// Runs `steps` times twelve independent fused multiply-adds on registers.
inline std::int32_t multiply_floats(std::int64_t steps) {
  const Simd::F factor = Simd::all(0.5F);
  Simd::F sums[12];
  for (auto& sum : sums) sum = Simd::zero();
  for (std::int64_t step = 0; step < steps; ++step) {
    const Simd::F number = Simd::all(static_cast<float>(step & 1));
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) sums[i] = Simd::fma(sums[i], factor, number);
  }
  for (int i = 1; i < 12; ++i) sums[0] = Simd::add(sums[0], sums[i]);
  return static_cast<std::int32_t>(Simd::sum(sums[0]));
}

}  // namespace
}  // namespace paradecode
