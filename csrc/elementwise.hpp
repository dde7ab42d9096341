// Norms, activation quantiser and activation functions over `Simd`, the sixteen lanes of the
// translation unit.
#pragma once

#include <bit>
#include <cmath>

#include "types.hpp"

namespace paradecode {
namespace {

// Adding this number rounds a float to the nearest even integer, and leaves that in the low bits.
inline constexpr float kRounder = 12582912.0F;

// Computes e^x to about 1 ulp: x = n ln 2 + r, a polynomial in r, and n added to the exponent.
inline Simd::F exp_lanes(Simd::F x) {
  // Comparisons keep a NaN only if it is the second operand.
  x = Simd::max(Simd::all(-87.3F), Simd::min(Simd::all(88.3F), x));
  const Simd::F shifted = Simd::fma(x, Simd::all(1.44269504F), Simd::all(kRounder));
  const Simd::F n = Simd::sub(shifted, Simd::all(kRounder));
  Simd::F r = Simd::fma(n, Simd::all(-0.693145752F), x);
  r = Simd::fma(n, Simd::all(-1.42860677e-6F), r);
  Simd::F p = Simd::all(1.98756912e-4F);
  p = Simd::fma(p, r, Simd::all(1.39819994e-3F));
  p = Simd::fma(p, r, Simd::all(8.33345186e-3F));
  p = Simd::fma(p, r, Simd::all(4.16657962e-2F));
  p = Simd::fma(p, r, Simd::all(1.66666657e-1F));
  p = Simd::fma(p, r, Simd::all(0.5F));
  p = Simd::fma(Simd::mul(p, r), r, Simd::add(r, Simd::all(1.0F)));
  const Simd::I power =
      Simd::shift_left<23>(Simd::int_add(Simd::bits(shifted), Simd::int_all(127)));
  return Simd::mul(p, Simd::from_bits(power));
}

inline void rms_norm(const float* values, const float* weight, int size, int padded, float epsilon,
                     float* out) {
  Simd::F squares = Simd::zero();
  for (int i = 0; i < padded; i += kLanes) {
    const Simd::F x = Simd::load(values + i);
    squares = Simd::fma(x, x, squares);
  }
  const float mean = Simd::sum(squares) / static_cast<float>(size);
  const Simd::F scale = Simd::all(1.0F / std::sqrt(mean + epsilon));
  for (int i = 0; i < padded; i += kLanes)
    Simd::store(out + i,
                Simd::mul(Simd::mul(Simd::load(values + i), scale), Simd::load(weight + i)));
}

// Numbers beyond `size` count as the mean does: for nothing.
inline void layer_norm(const float* values, const float* weight, const float* bias, int size,
                       int padded, float epsilon, float* out) {
  Simd::F sum = Simd::zero();
  for (int i = 0; i < padded; i += kLanes) sum = Simd::add(sum, Simd::load(values + i));
  const Simd::F mean = Simd::all(Simd::sum(sum) / static_cast<float>(size));
  Simd::F squares = Simd::zero();
  for (int i = 0; i < padded; i += kLanes) {
    Simd::F x = Simd::sub(Simd::load(values + i), mean);
    if (i + kLanes > size) {
      float lanes[kLanes];
      Simd::store(lanes, x);
      for (int k = size > i ? size - i : 0; k < kLanes; ++k) lanes[k] = 0.0F;
      x = Simd::load(lanes);
    }
    squares = Simd::fma(x, x, squares);
  }
  const float variance = Simd::sum(squares) / static_cast<float>(size);
  const Simd::F scale = Simd::all(1.0F / std::sqrt(variance + epsilon));
  for (int i = 0; i < padded; i += kLanes) {
    const Simd::F x = Simd::mul(Simd::sub(Simd::load(values + i), mean), scale);
    const Simd::F y = Simd::mul(x, Simd::load(weight + i));
    Simd::store(out + i, bias == nullptr ? y : Simd::add(y, Simd::load(bias + i)));
  }
}

// Computes x times the sigmoid of t.
inline Simd::F gated(Simd::F x, Simd::F t) {
  const Simd::F e = exp_lanes(Simd::sub(Simd::zero(), t));
  return Simd::div(x, Simd::add(Simd::all(1.0F), e));
}

struct Silu {
  static Simd::F of(Simd::F x) { return gated(x, x); }
};

// (1 + tanh t) / 2 is the sigmoid of 2 t; here t = sqrt(2 / pi) (x + 0.044715 x^3).
struct GeluTanh {
  static Simd::F of(Simd::F x) {
    const Simd::F slope =
        Simd::fma(Simd::mul(x, x), Simd::all(0.0713548163F), Simd::all(1.59576912F));
    return gated(x, Simd::mul(x, slope));
  }
};

struct Relu {
  static Simd::F of(Simd::F x) { return Simd::max(Simd::zero(), x); }
};

struct Relu2 {
  static Simd::F of(Simd::F x) {
    const Simd::F y = Relu::of(x);
    return Simd::mul(y, y);
  }
};

// max(x, 0) - |x| erfc(|x| / sqrt 2) / 2, with the fit of erfc of Numerical Recipes (6.2): its
// relative error is 1.2e-7. Beyond 14 the second term is next to nothing.
struct Gelu {
  static Simd::F of(Simd::F x) {
    const Simd::F size = Simd::min(
        Simd::all(14.0F), Simd::from_bits(Simd::int_and(Simd::bits(x), Simd::int_all(0x7FFFFFFF))));
    const Simd::F z = Simd::mul(size, Simd::all(0.707106781F));
    const Simd::F t = Simd::div(Simd::all(1.0F), Simd::fma(z, Simd::all(0.5F), Simd::all(1.0F)));
    constexpr float fit[] = {-0.82215223F, 1.48851587F, -1.13520398F, 0.27886807F, -0.18628806F,
                             0.09678418F,  0.37409196F, 1.00002368F,  -1.26551223F};
    Simd::F p = Simd::all(0.17087277F);
    for (const float next : fit) p = Simd::fma(p, t, Simd::all(next));
    const Simd::F e = exp_lanes(Simd::sub(p, Simd::mul(z, z)));
    const Simd::F tail = Simd::mul(Simd::mul(size, Simd::all(0.5F)), Simd::mul(t, e));
    return Simd::sub(Simd::max(Simd::zero(), x), tail);
  }
};

template <class Function>
inline void activate(float* gate, const float* up, int count) {
  if (up == nullptr) {
    for (int i = 0; i < count; i += kLanes)
      Simd::store(gate + i, Function::of(Simd::load(gate + i)));
    return;
  }
  for (int i = 0; i < count; i += kLanes)
    Simd::store(gate + i, Simd::mul(Function::of(Simd::load(gate + i)), Simd::load(up + i)));
}

// gpt-oss's: gate sigmoid(1.702 gate) (up + 1), with gate at most 7 and up within 7.
inline void swiglu_oai(float* gate, const float* up, int count) {
  const Simd::F most = Simd::all(7.0F);
  for (int i = 0; i < count; i += kLanes) {
    const Simd::F g = Simd::min(most, Simd::load(gate + i));
    const Simd::F u = Simd::max(Simd::all(-7.0F), Simd::min(most, Simd::load(up + i)));
    const Simd::F made = gated(g, Simd::mul(g, Simd::all(1.702F)));
    Simd::store(gate + i, Simd::mul(made, Simd::add(u, Simd::all(1.0F))));
  }
}

inline void cap(float* values, float cap, std::int64_t count) {
  const Simd::F one = Simd::all(1.0F);
  const Simd::F twice = Simd::all(2.0F / cap);
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const Simd::F e = exp_lanes(Simd::mul(Simd::load(values + i), twice));
    const Simd::F tanh = Simd::div(Simd::sub(e, one), Simd::add(e, one));
    Simd::store(values + i, Simd::mul(Simd::all(cap), tanh));
  }
}

// Some of the sums and some of their numbers, which stay in registers while the rows are read.
template <int Outs, int Chunks>
inline void add_block(const float* const* rows, int count, const RowFactors& by, int first, int at,
                      float* const* outs) {
  Simd::F sum[Outs][Chunks];
#pragma GCC unroll 16
  for (int o = 0; o < Outs; ++o)
#pragma GCC unroll 16
    for (int c = 0; c < Chunks; ++c) sum[o][c] = Simd::load(outs[first + o] + at + c * kLanes);
  for (int i = 0; i < count; ++i) {
    Simd::F row[Chunks];
#pragma GCC unroll 16
    for (int c = 0; c < Chunks; ++c) row[c] = Simd::load(rows[i] + at + c * kLanes);
#pragma GCC unroll 16
    for (int o = 0; o < Outs; ++o) {
      const Simd::F factor = Simd::all(by.values[(first + o) * by.of_sum + i * by.of_row]);
#pragma GCC unroll 16
      for (int c = 0; c < Chunks; ++c) sum[o][c] = Simd::fma(factor, row[c], sum[o][c]);
    }
  }
#pragma GCC unroll 16
  for (int o = 0; o < Outs; ++o)
#pragma GCC unroll 16
    for (int c = 0; c < Chunks; ++c) Simd::store(outs[first + o] + at + c * kLanes, sum[o][c]);
}

template <int Outs>
inline void add_to(const float* const* rows, int count, const RowFactors& by, int first, int size,
                   float* const* outs) {
  constexpr int chunks = Simd::kMaxRows >= 8 ? 4 : 2;
  int at = 0;
  for (; at + chunks * kLanes <= size; at += chunks * kLanes)
    add_block<Outs, chunks>(rows, count, by, first, at, outs);
  for (; at < size; at += kLanes) add_block<Outs, 1>(rows, count, by, first, at, outs);
}

inline void add_rows(const float* const* rows, int count, const RowFactors& by, int size,
                     float* const* outs, int sums) {
  constexpr int together = Simd::kMaxRows / 2;
  int first = 0;
  for (; first + together <= sums; first += together)
    add_to<together>(rows, count, by, first, size, outs);
  for (; first < sums; ++first) add_to<1>(rows, count, by, first, size, outs);
}

inline void dots(const float* by, const float* const* rows, int count, int size, float* out) {
  const int whole = size / kLanes * kLanes;
  float ends[2 * kLanes] = {};
  for (int k = whole; k < size; ++k) ends[k - whole] = by[k];
  for (int i = 0; i < count; ++i) {
    Simd::F sum = Simd::zero();
    for (int k = 0; k < whole; k += kLanes)
      sum = Simd::fma(Simd::load(by + k), Simd::load(rows[i] + k), sum);
    if (whole < size) {
      for (int k = whole; k < size; ++k) ends[kLanes + k - whole] = rows[i][k];
      sum = Simd::fma(Simd::load(ends), Simd::load(ends + kLanes), sum);
    }
    out[i] = Simd::sum(sum);
  }
}

// The bits of the largest magnitude of 32 values. As integers, magnitudes order like floats and a
// NaN is above them all.
inline std::int32_t largest_bits(const float* values) {
  const Simd::I magnitude_bits = Simd::int_all(0x7FFFFFFF);
  return Simd::int_top(
      Simd::int_max(Simd::int_and(Simd::bits(Simd::load(values)), magnitude_bits),
                    Simd::int_and(Simd::bits(Simd::load(values + kLanes)), magnitude_bits)));
}

// The scale by which values are rounded to signed bytes: a byte stands for (largest magnitude /
// 127).
struct ByteScale {
  explicit ByteScale(float largest) {
    if (largest < 1e-30F) return;  // the inverse could overflow
    scale = largest * (1.0F / 127.0F);
    inverse = 127.0F / largest;
  }

  float scale = 0.0F;
  float inverse = 0.0F;
};

// Writes sixteen values as bytes, and returns their sum.
inline std::int32_t to_bytes(const float* values, Simd::F inverse, std::int32_t* words) {
  const Simd::I raw = Simd::bits(Simd::fma(Simd::load(values), inverse, Simd::all(kRounder)));
  Simd::store_low_bytes(words, raw);
  return Simd::int_sum(Simd::shift_right<24>(Simd::shift_left<24>(raw)));
}

inline void quantise(const float* values, int group, int groups, int row, const Activations& out) {
  for (int g = group; g < group + groups; ++g, values += kGroup) {
    const ByteScale by(std::bit_cast<float>(largest_bits(values)));
    const Simd::F inverse = Simd::all(by.inverse);
    const std::int64_t at = out.entry(row, g);
    const std::int32_t sum = to_bytes(values, inverse, out.words + 8 * at) +
                             to_bytes(values + kLanes, inverse, out.words + 8 * at + 4);
    out.scales[at] = by.scale;
    out.sums[at] = by.scale * static_cast<float>(sum);
    out.corrections[at] = -128 * sum;
  }
}

// Two numbers of 16 bits, the first in the lower half.
inline std::int32_t pair_of(std::int32_t low, std::int32_t high) {
  return static_cast<std::int32_t>((static_cast<std::uint32_t>(high) << 16) |
                                   (static_cast<std::uint32_t>(low) & 0xFFFFU));
}

// A group's sum in eighths of the block's scale.
inline std::int32_t eighths(std::int32_t sum, std::int32_t shift) {
  const std::int32_t whole = (sum * (1 << (WideInputs::kEighths + 1))) >> shift;
  return (whole + 1) >> 1;
}

inline void quantise_wide(const float* values, int block, int blocks, int row,
                          const Activations& out) {
  constexpr int groups = kSuperBlock / kGroup;
  const WideInputs& wide = out.wide;
  for (int b = block; b < block + blocks; ++b, values += kSuperBlock) {
    std::int32_t largest[groups];
    std::int32_t most = 0;
    for (int g = 0; g < groups; ++g) {
      largest[g] = largest_bits(values + g * kGroup);
      most = largest[g] > most ? largest[g] : most;
    }
    const ByteScale by(std::bit_cast<float>(most));
    const std::int64_t whole = out.block(row, b);
    wide.scales[whole] = by.scale;
    std::int32_t* pairs = wide.pairs + WideInputs::kPairs * whole;
    std::int32_t before = 0;
    for (int g = 0; g < groups; ++g) {
      // The largest power of two by which the group's values may be multiplied.
      const std::int32_t room = (most - largest[g]) >> 23;
      const std::int32_t shift = room < WideInputs::kMostShift ? room : WideInputs::kMostShift;
      const Simd::F inverse = Simd::all(by.inverse * static_cast<float>(1 << shift));
      const float* from = values + g * kGroup;
      const std::int64_t at = out.entry(row, b * groups + g);
      const std::int32_t first = to_bytes(from, inverse, wide.words + 8 * at);
      const std::int32_t second = to_bytes(from + kLanes, inverse, wide.words + 8 * at + 4);
      const std::int32_t base = std::bit_cast<std::int32_t>(kRounder) - (shift << 23);
      wide.bases[at] = std::bit_cast<float>(base);
      std::int32_t* starts = wide.starts + WideInputs::kStarts * at;
      starts[0] = base;
      starts[1] = base - 32 * first;
      starts[2] = base - 32 * second;
      wide.corrections[at] = -128 * (first + second);
      pairs[WideInputs::kGroupPairs + g] = pair_of(eighths(first, shift), eighths(second, shift));
      const std::int32_t sum = eighths(first + second, shift);
      if (g % 2 == 1) pairs[g / 2] = pair_of(before, sum);
      before = sum;
    }
  }
}

inline void to_f16(const float* values, std::uint16_t* out, int count) {
  for (int i = 0; i < count; i += kLanes) Simd::store_f16(out + i, Simd::load(values + i));
}

}  // namespace
}  // namespace paradecode
