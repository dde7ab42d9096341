// Computes logarithms, exponentials, cosines and sines whose bits do not depend on the C library,
// and sets the state of the floating-point unit that all arithmetic here expects.
#pragma once

#include <array>
#include <bit>
#include <cfenv>
#include <cmath>
#include <cstdint>

#include "processor.hpp"

#if defined(PARADECODE_X86)
#include <immintrin.h>
#endif

namespace paradecode {

// kLn2High has 32 bits, so that its products are exact.
inline constexpr double kLn2High = 6.93147180369123816490e-01;
inline constexpr double kLn2Low = 1.90821492927058770002e-10;

inline constexpr auto kInverseFactorials = [] {
  std::array<double, 18> out{};
  double factorial = 1;
  for (std::size_t k = 0; k < out.size(); ++k) {
    if (k > 0) factorial *= static_cast<double>(k);
    out[k] = 1 / factorial;
  }
  return out;
}();

// Computes the natural logarithm to about 1 ulp.
inline double exact_log(double x) {
  if (!(x > 0)) return x == 0 ? -INFINITY : NAN;
  if (x > 1.7976931348623157e308) return x;
  int power = 0;
  if (x < 0x1p-1022) {
    x *= 0x1p54;
    power = -54;
  }
  auto bits = std::bit_cast<std::uint64_t>(x);
  power += static_cast<int>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0xFFFFFFFFFFFFFULL) | 0x3FF0000000000000ULL);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++power;
  }
  // log m = 2 artanh s, with s = (m - 1) / (m + 1).
  const double f = m - 1.0;
  const double s = f / (2.0 + f);
  const double z = s * s;
  double series = 2.0 / 23.0;
  for (int k = 21; k >= 3; k -= 2) series = series * z + 2.0 / k;
  const double half = 0.5 * f * f;
  const double e = power;
  return e * kLn2High - ((half - (s * (half + z * series) + e * kLn2Low)) - f);
}

// Computes e^x to about 1 ulp.
inline double exact_exp(double x) {
  if (!(x > -746.0)) return std::isnan(x) ? x : 0.0;
  if (x > 709.79) return INFINITY;
  constexpr double rounder = 6755399441055744.0;  // 1.5 * 2^52
  const double n = (x * 1.4426950408889634 + rounder) - rounder;
  const double r = (x - n * kLn2High) - n * kLn2Low;
  double sum = kInverseFactorials[13];
  for (int k = 12; k >= 0; --k) sum = sum * r + kInverseFactorials[static_cast<std::size_t>(k)];
  const auto power = [](int k) {
    return std::bit_cast<double>(static_cast<std::uint64_t>(k + 1023) << 52);
  };
  const int whole = static_cast<int>(n);
  return sum * power(whole / 2) * power(whole - whole / 2);
}

// Computes cosine and sine of an angle below 10^8, rounded from double precision.
inline void exact_turn(double angle, float& cosine, float& sine) {
  constexpr double rounder = 6755399441055744.0;
  const double quarters = (angle * 0.63661977236758134308 + rounder) - rounder;
  const double r =
      (angle - quarters * 1.57079632673412561417e+00) - quarters * 6.07710050650619224932e-11;
  const double z = r * r;
  double c = kInverseFactorials[16];
  double s = kInverseFactorials[17];
  for (int k = 14; k >= 0; k -= 2) c = kInverseFactorials[static_cast<std::size_t>(k)] - z * c;
  for (int k = 15; k >= 1; k -= 2) s = kInverseFactorials[static_cast<std::size_t>(k)] - z * s;
  s *= r;
  switch (static_cast<std::int64_t>(quarters) & 3) {
    case 0: cosine = static_cast<float>(c), sine = static_cast<float>(s); break;
    case 1: cosine = static_cast<float>(-s), sine = static_cast<float>(c); break;
    case 2: cosine = static_cast<float>(-c), sine = static_cast<float>(-s); break;
    default: cosine = static_cast<float>(s), sine = static_cast<float>(-c); break;
  }
}

// Sets rounding to nearest with subnormal numbers while the object lives, whatever the caller set.
class FloatState {
 public:
#if defined(PARADECODE_X86)
  FloatState() : saved_(_mm_getcsr()) {
    if (saved_ != kDefault) _mm_setcsr(kDefault);
  }
  ~FloatState() {
    if (saved_ != kDefault) _mm_setcsr(saved_);
  }

 private:
  static constexpr unsigned kDefault = 0x1F80;
  unsigned saved_;
#else
  FloatState() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~FloatState() { std::fesetenv(&saved_); }

 private:
  std::fenv_t saved_;
#endif

 public:
  FloatState(const FloatState&) = delete;
  FloatState& operator=(const FloatState&) = delete;
};

}  // namespace paradecode
