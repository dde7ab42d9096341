// Sixteen lanes as four NEON vectors, with the dot products of ARMv8.2, and int8 matrices where
// PARADECODE_I8MM asks for them. Functions are always inlined, because GCC would leave calls in
// inner loops.
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#include "hash.hpp"

namespace paradecode {
namespace {

struct Simd : PlainHash {
  struct F {
    float32x4_t v[4];
  };
  struct I {
    int32x4_t v[4];
  };
  struct Bytes {
    uint8x16_t v[4];
  };
  static constexpr int kMaxRows = 4;

  template <class Out, class Part>
  [[gnu::always_inline]] static Out each(Part part) {
    Out out;
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) out.v[i] = part(i);
    return out;
  }

  [[gnu::always_inline]] static F load(const float* p) {
    return each<F>([&](int i) { return vld1q_f32(p + 4 * i); });
  }
  [[gnu::always_inline]] static void store(float* p, F x) {
    for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, x.v[i]);
  }
  [[gnu::always_inline]] static F load_f16(const std::uint16_t* p) {
    return each<F>([&](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))); });
  }
  [[gnu::always_inline]] static F load_bf16(const std::uint16_t* p) {
    return each<F>([&](int i) {
      return vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(vld1_u16(p + 4 * i)), 16));
    });
  }
  [[gnu::always_inline]] static void store_f16(std::uint16_t* p, F x) {
    for (int i = 0; i < 4; ++i) vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(x.v[i])));
  }
  [[gnu::always_inline]] static F zero() { return all(0.0F); }
  [[gnu::always_inline]] static F all(float value) {
    return each<F>([&](int) { return vdupq_n_f32(value); });
  }
  [[gnu::always_inline]] static F add(F x, F y) {
    return each<F>([&](int i) { return vaddq_f32(x.v[i], y.v[i]); });
  }
  [[gnu::always_inline]] static F sub(F x, F y) {
    return each<F>([&](int i) { return vsubq_f32(x.v[i], y.v[i]); });
  }
  [[gnu::always_inline]] static F mul(F x, F y) {
    return each<F>([&](int i) { return vmulq_f32(x.v[i], y.v[i]); });
  }
  [[gnu::always_inline]] static F div(F x, F y) {
    return each<F>([&](int i) { return vdivq_f32(x.v[i], y.v[i]); });
  }
  [[gnu::always_inline]] static F fma(F x, F y, F z) {
    return each<F>([&](int i) { return vfmaq_f32(z.v[i], x.v[i], y.v[i]); });
  }
  // x > y ? x : y; the maximum instruction of NEON treats NaN differently.
  [[gnu::always_inline]] static float32x4_t larger(float32x4_t x, float32x4_t y) {
    return vbslq_f32(vcgtq_f32(x, y), x, y);
  }
  [[gnu::always_inline]] static F max(F x, F y) {
    return each<F>([&](int i) { return larger(x.v[i], y.v[i]); });
  }
  [[gnu::always_inline]] static F min(F x, F y) {
    return each<F>([&](int i) { return vbslq_f32(vcltq_f32(x.v[i], y.v[i]), x.v[i], y.v[i]); });
  }
  // The two halves of the lanes are combined until one lane is left, in the same order in all sets.
  [[gnu::always_inline]] static float sum(F x) {
    const float32x4_t v = vaddq_f32(vaddq_f32(x.v[0], x.v[2]), vaddq_f32(x.v[1], x.v[3]));
    const float32x2_t w = vadd_f32(vget_low_f32(v), vget_high_f32(v));
    return vget_lane_f32(w, 0) + vget_lane_f32(w, 1);
  }
  [[gnu::always_inline]] static float top(F x) {
    float32x4_t v = larger(larger(x.v[0], x.v[2]), larger(x.v[1], x.v[3]));
    v = larger(v, vextq_f32(v, v, 2));
    return vgetq_lane_f32(larger(v, vextq_f32(v, v, 1)), 0);
  }
  // Returns one bit for each lane.
  template <class Test>
  [[gnu::always_inline]] static std::uint32_t mask(Test test) {
    const std::uint32_t places[4] = {1, 2, 4, 8};
    std::uint32_t out = 0;
    for (int i = 0; i < 4; ++i) out |= vaddvq_u32(vandq_u32(test(i), vld1q_u32(places))) << (4 * i);
    return out;
  }
  [[gnu::always_inline]] static std::uint32_t at_least(F x, F y) {
    return mask([&](int i) { return vcgeq_f32(x.v[i], y.v[i]); });
  }
  [[gnu::always_inline]] static std::uint32_t greater(F x, F y) {
    return mask([&](int i) { return vcgtq_f32(x.v[i], y.v[i]); });
  }
  [[gnu::always_inline]] static std::uint32_t is_nan(F x) {
    return mask([&](int i) { return vmvnq_u32(vceqq_f32(x.v[i], x.v[i])); });
  }

  [[gnu::always_inline]] static I int_zero() { return int_all(0); }
  [[gnu::always_inline]] static I int_all(std::int32_t value) {
    return each<I>([&](int) { return vdupq_n_s32(value); });
  }
  [[gnu::always_inline]] static I int_add(I x, I y) {
    return each<I>([&](int i) { return vaddq_s32(x.v[i], y.v[i]); });
  }
  [[gnu::always_inline]] static std::int32_t int_sum(I x) {
    return vaddvq_s32(vaddq_s32(vaddq_s32(x.v[0], x.v[1]), vaddq_s32(x.v[2], x.v[3])));
  }
  [[gnu::always_inline]] static std::int32_t int_top(I x) {
    return vmaxvq_s32(vmaxq_s32(vmaxq_s32(x.v[0], x.v[1]), vmaxq_s32(x.v[2], x.v[3])));
  }
  [[gnu::always_inline]] static I int_max(I x, I y) {
    return each<I>([&](int i) { return vmaxq_s32(x.v[i], y.v[i]); });
  }
  [[gnu::always_inline]] static I int_and(I x, I y) {
    return each<I>([&](int i) { return vandq_s32(x.v[i], y.v[i]); });
  }
  template <int N>
  [[gnu::always_inline]] static I shift_left(I x) {
    return each<I>([&](int i) { return vshlq_n_s32(x.v[i], N); });
  }
  template <int N>
  [[gnu::always_inline]] static I shift_right(I x) {  // arithmetic
    return each<I>([&](int i) { return vshrq_n_s32(x.v[i], N); });
  }
  [[gnu::always_inline]] static I bits(F x) {
    return each<I>([&](int i) { return vreinterpretq_s32_f32(x.v[i]); });
  }
  [[gnu::always_inline]] static F from_bits(I x) {
    return each<F>([&](int i) { return vreinterpretq_f32_s32(x.v[i]); });
  }
  [[gnu::always_inline]] static F to_float(I x) {
    return each<F>([&](int i) { return vcvtq_f32_s32(x.v[i]); });
  }
  [[gnu::always_inline]] static void int_store(std::int32_t* p, I x) {
    for (int i = 0; i < 4; ++i) vst1q_s32(p + 4 * i, x.v[i]);
  }
  [[gnu::always_inline]] static I int_load(const std::int32_t* p) {
    return each<I>([&](int i) { return vld1q_s32(p + 4 * i); });
  }
  [[gnu::always_inline]] static void store_low_bytes(void* p, I x) {
    const int16x8_t low = vcombine_s16(vmovn_s32(x.v[0]), vmovn_s32(x.v[1]));
    const int16x8_t high = vcombine_s16(vmovn_s32(x.v[2]), vmovn_s32(x.v[3]));
    vst1q_s8(static_cast<std::int8_t*>(p), vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
  }

  [[gnu::always_inline]] static Bytes load_bytes(const std::uint8_t* p) {
    return each<Bytes>([&](int i) { return vld1q_u8(p + 16 * i); });
  }
  [[gnu::always_inline]] static void store_bytes(std::uint8_t* p, Bytes x) {
    for (int i = 0; i < 4; ++i) vst1q_u8(p + 16 * i, x.v[i]);
  }
  template <int Right, int Mask>
  [[gnu::always_inline]] static Bytes pick(Bytes x) {
    return each<Bytes>([&](int i) {
      uint8x16_t moved = x.v[i];
      if constexpr (Right > 0) moved = vshrq_n_u8(moved, Right);
      if constexpr (Right < 0) moved = vshlq_n_u8(moved, -Right);
      return vandq_u8(moved, vdupq_n_u8(Mask));
    });
  }
  [[gnu::always_inline]] static Bytes either(Bytes x, Bytes y) {
    return each<Bytes>([&](int i) { return vorrq_u8(x.v[i], y.v[i]); });
  }
  [[gnu::always_inline]] static Bytes repeat16(const std::uint8_t* p) {
    return each<Bytes>([&](int) { return vld1q_u8(p); });
  }
  [[gnu::always_inline]] static Bytes look_up(Bytes table, Bytes index) {
    return each<Bytes>([&](int i) { return vqtbl1q_u8(table.v[i], index.v[i]); });
  }
  [[gnu::always_inline]] static I load_u8(const std::uint8_t* p) {
    const uint8x16_t raw = vld1q_u8(p);
    const uint16x8_t half[2] = {vmovl_u8(vget_low_u8(raw)), vmovl_u8(vget_high_u8(raw))};
    return {vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(half[0]))),
            vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(half[0]))),
            vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(half[1]))),
            vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(half[1])))};
  }
  [[gnu::always_inline]] static I load_i8(const std::uint8_t* p) {
    const int8x16_t raw = vreinterpretq_s8_u8(vld1q_u8(p));
    const int16x8_t half[2] = {vmovl_s8(vget_low_s8(raw)), vmovl_s8(vget_high_s8(raw))};
    return {vmovl_s16(vget_low_s16(half[0])), vmovl_s16(vget_high_s16(half[0])),
            vmovl_s16(vget_low_s16(half[1])), vmovl_s16(vget_high_s16(half[1]))};
  }
#if defined(PARADECODE_I8MM)
  [[gnu::always_inline]] static I dot_nibbles(I sum, Bytes w, std::int32_t word) {
    const int8x16_t x = vreinterpretq_s8_s32(vdupq_n_s32(word));
    return each<I>([&](int i) { return vusdotq_s32(sum.v[i], w.v[i], x); });
  }
  [[gnu::always_inline]] static I bytes_start(std::int32_t correction) {
    return int_all(correction);
  }
  [[gnu::always_inline]] static Bytes prepare_bytes(Bytes w) { return w; }

  // Vectors with 8 inputs of two outputs each.
  struct Eights {
    uint8x16_t v[8];
  };
  [[gnu::always_inline]] static Eights eights(Bytes low, Bytes high) {
    Eights out;
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const uint32x4_t a = vreinterpretq_u32_u8(low.v[i]);
      const uint32x4_t b = vreinterpretq_u32_u8(high.v[i]);
      out.v[2 * i] = vreinterpretq_u8_u32(vzip1q_u32(a, b));
      out.v[2 * i + 1] = vreinterpretq_u8_u32(vzip2q_u32(a, b));
    }
    return out;
  }
  // The sums of two rows: vectors of two outputs, for each of which both rows stand side by side.
  struct Pair {
    int32x4_t v[8];
  };
  [[gnu::always_inline]] static Pair pair(I first, I second) {
    Pair out;
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      out.v[2 * i] = vzip1q_s32(first.v[i], second.v[i]);
      out.v[2 * i + 1] = vzip2q_s32(first.v[i], second.v[i]);
    }
    return out;
  }
  [[gnu::always_inline]] static I first_of(Pair x) {
    return each<I>([&](int i) { return vuzp1q_s32(x.v[2 * i], x.v[2 * i + 1]); });
  }
  [[gnu::always_inline]] static I second_of(Pair x) {
    return each<I>([&](int i) { return vuzp2q_s32(x.v[2 * i], x.v[2 * i + 1]); });
  }
  // Adds the dots of eight weights and eight signed bytes of each row.
  [[gnu::always_inline]] static Pair dot_pair(Pair sum, Eights w, const std::int32_t* first,
                                              const std::int32_t* second) {
    const int8x16_t x = vreinterpretq_s8_s32(vcombine_s32(vld1_s32(first), vld1_s32(second)));
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) sum.v[i] = vusmmlaq_s32(sum.v[i], w.v[i], x);
    return sum;
  }
#else
  // The dot product of ARMv8.2 takes signed bytes on both sides. Integers of up to 7 bits stay
  // unchanged, and for others the offset of 128 is subtracted first.
  [[gnu::always_inline]] static I dot_nibbles(I sum, Bytes w, std::int32_t word) {
    const int8x16_t x = vreinterpretq_s8_s32(vdupq_n_s32(word));
    return each<I>([&](int i) { return vdotq_s32(sum.v[i], vreinterpretq_s8_u8(w.v[i]), x); });
  }
  [[gnu::always_inline]] static I bytes_start(std::int32_t) { return int_zero(); }
  [[gnu::always_inline]] static Bytes prepare_bytes(Bytes w) {
    return each<Bytes>([&](int i) { return veorq_u8(w.v[i], vdupq_n_u8(0x80)); });
  }
#endif
  [[gnu::always_inline]] static I dot_bytes(I sum, Bytes w, std::int32_t word) {
    return dot_nibbles(sum, w, word);
  }
  // Adds to each lane the products of its two 16-bit integers with those of `word`.
  [[gnu::always_inline]] static I dot_pairs(I sum, I pairs, std::int32_t word) {
    const std::int32_t low = static_cast<std::int16_t>(word);
    return each<I>([&](int i) {
      const int32x4_t lower = vshrq_n_s32(vshlq_n_s32(pairs.v[i], 16), 16);
      const int32x4_t with_low = vmlaq_n_s32(sum.v[i], lower, low);
      return vmlaq_n_s32(with_low, vshrq_n_s32(pairs.v[i], 16), word >> 16);
    });
  }
  [[gnu::always_inline]] static void prefetch(const void* p) { __builtin_prefetch(p); }
  [[gnu::always_inline]] static void prefetch_far(const void* p) { __builtin_prefetch(p, 0, 2); }
};

}  // namespace
}  // namespace paradecode
