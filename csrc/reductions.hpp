// Reductions over one row of logits. The row is padded to a multiple of 64 with -inf.
#pragma once

#include <bit>
#include <cmath>

#include "elementwise.hpp"
#include "types.hpp"

namespace paradecode {
namespace {

inline void best(const float* row, std::int64_t size, float* value, std::int64_t* index,
                 bool* nan) {
  Simd::F top[4];
  for (auto& lanes : top) lanes = Simd::all(-INFINITY);
  std::uint32_t unordered = 0;
  for (std::int64_t i = 0; i < size; i += 4 * kLanes)
    for (int k = 0; k < 4; ++k) {
      const Simd::F x = Simd::load(row + i + k * kLanes);
      unordered |= Simd::is_nan(x);
      top[k] = Simd::max(top[k], x);
    }
  *nan = unordered != 0;
  *value = Simd::top(Simd::max(Simd::max(top[0], top[1]), Simd::max(top[2], top[3])));
  *index = 0;
  const Simd::F goal = Simd::all(*value);
  for (std::int64_t i = 0; i < size; i += kLanes) {
    const std::uint32_t hit = Simd::at_least(Simd::load(row + i), goal);
    if (hit != 0) {
      *index = i + std::countr_zero(hit);
      return;
    }
  }
}

inline void block_best(const float* row, std::int64_t blocks, float* out) {
  for (std::int64_t b = 0; b < blocks; ++b, row += 64) {
    const Simd::F low = Simd::max(Simd::load(row), Simd::load(row + 16));
    const Simd::F high = Simd::max(Simd::load(row + 32), Simd::load(row + 48));
    out[b] = Simd::top(Simd::max(low, high));
  }
}

// Computes e^x for x <= 0 in double precision so that compilers can vectorise it; 0 below -700.
inline double exp_double(double x) {
  const double clamped = x < -700.0 ? -700.0 : x;
  constexpr double rounder = 6755399441055744.0;  // 1.5 * 2^52
  const double shifted = clamped * 1.4426950408889634 + rounder;
  const double n = shifted - rounder;
  const double r = (clamped - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10;
  double p = 1.0 / 6227020800.0;
  p = p * r + 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  const auto power = (std::bit_cast<std::uint64_t>(shifted) + 1023U) << 52;
  const double value = p * std::bit_cast<double>(power);
  return x < -700.0 ? 0.0 : value;
}

inline double fold(double* lanes) {
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int k = 0; k < half; ++k) lanes[k] += lanes[k + half];
  return lanes[0];
}

inline double exp_sum(const float* row, std::int64_t size, double top, double temperature) {
  constexpr int piece = 64;  // compilers vectorise a loop that only maps arrays to arrays
  double sums[kLanes] = {};
  for (std::int64_t i = 0; i < size; i += piece) {
    double w[piece];
    for (int k = 0; k < piece; ++k)
      w[k] = exp_double(static_cast<double>(row[i + k]) / temperature - top);
    for (int k = 0; k < piece; ++k) sums[k % kLanes] += w[k];
  }
  return fold(sums);
}

template <bool kMoment>
inline void softmax_sums_as(const float* row, std::int64_t size, float top, double* mass,
                            double* moment) {
  const Simd::F largest = Simd::all(top);
  const Simd::F least = Simd::all(-87.3F);  // e^-87.3 is negligible, also as a factor
  double masses[kLanes] = {};
  double moments[kLanes] = {};
  for (std::int64_t i = 0; i < size; i += 4 * kLanes) {
    Simd::F w[4];
    Simd::F wx[4];
    for (int k = 0; k < 4; ++k) {
      const Simd::F x = Simd::max(Simd::sub(Simd::load(row + i + k * kLanes), largest), least);
      w[k] = exp_lanes(x);
      if (kMoment) wx[k] = Simd::mul(w[k], x);
    }
    float sums[kLanes];
    Simd::store(sums, Simd::add(Simd::add(w[0], w[1]), Simd::add(w[2], w[3])));
    for (int k = 0; k < kLanes; ++k) masses[k] += static_cast<double>(sums[k]);
    if (kMoment) {
      Simd::store(sums, Simd::add(Simd::add(wx[0], wx[1]), Simd::add(wx[2], wx[3])));
      for (int k = 0; k < kLanes; ++k) moments[k] += static_cast<double>(sums[k]);
    }
  }
  *mass = fold(masses);
  if (kMoment) *moment = fold(moments);
}

inline void softmax_sums(const float* row, std::int64_t size, float top, double* mass,
                         double* moment) {
  if (moment == nullptr)
    softmax_sums_as<false>(row, size, top, mass, moment);
  else
    softmax_sums_as<true>(row, size, top, mass, moment);
}

inline std::int64_t collect(const float* row, std::int64_t size, float threshold,
                            std::int32_t* ids) {
  const Simd::F goal = Simd::all(threshold);
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < size; i += kLanes) {
    std::uint32_t hit = Simd::at_least(Simd::load(row + i), goal);
    for (; hit != 0; hit &= hit - 1)
      ids[count++] = static_cast<std::int32_t>(i + std::countr_zero(hit));
  }
  return count;
}

// The noise is -log(-log u) with u in (0, 1), and -log u >= 1 - u, so it is at most -log(1 - u).
// With h the 32 random bits, 1 - u >= (2^32 - h) / 2^32 - 2^-33; its float exponent bounds the
// logarithm from above to within ln 2.
inline std::int64_t noisy_candidates(const float* row, std::int64_t begin, std::int64_t end,
                                     float inverse_temperature, float floor, std::uint64_t base,
                                     std::int32_t* ids) {
  std::int64_t count = 0;
  const Simd::F inverse = Simd::all(inverse_temperature);
  const Simd::F goal = Simd::all(floor);
  const Simd::F most = Simd::all(22.89F);
  for (std::int64_t i = begin; i < end; i += kLanes) {
    const Simd::F scaled = Simd::mul(Simd::load(row + i), inverse);
    if (Simd::greater(Simd::add(scaled, most), goal) == 0) continue;
    std::uint32_t hashes[kLanes];
    Simd::hash16(base, static_cast<std::uint64_t>(i), hashes);
    std::int32_t halves[kLanes];
    // Half of the complement fits a signed integer; truncation only lowers it, so the bound
    // stays one.
    for (int k = 0; k < kLanes; ++k) halves[k] = static_cast<std::int32_t>(~hashes[k] >> 1);
    const Simd::F tail = Simd::add(Simd::to_float(Simd::int_load(halves)), Simd::all(0.2F));
    // floor(log2) from the exponent bits. The conversion may round a value up to the next power
    // of two, hence the small slack below.
    const Simd::I exponent = Simd::shift_right<23>(Simd::bits(tail));
    const Simd::F log2 = Simd::to_float(Simd::int_add(exponent, Simd::int_all(-127 - 31)));
    const Simd::F noise = Simd::fma(log2, Simd::all(-0.6931472F), Simd::all(1e-3F));
    std::uint32_t hit = Simd::greater(Simd::add(scaled, noise), goal);
    for (; hit != 0; hit &= hit - 1)
      ids[count++] = static_cast<std::int32_t>(i + std::countr_zero(hit));
  }
  return count;
}

}  // namespace
}  // namespace paradecode
