// Sixteen lanes as arrays: plain C++ for any processor, vectorised by the compiler where it can.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "half.hpp"
#include "hash.hpp"

namespace paradecode {
namespace {

struct Simd : PlainHash {
  struct F {
    float v[16];
  };
  struct I {
    std::int32_t v[16];
  };
  struct Bytes {
    std::uint8_t v[64];
  };
  static constexpr int kMaxRows = 2;  // a larger number would double the time to compile

  template <class Out, class Lane>
  static Out each(Lane lane) {
    Out out;
    for (int i = 0; i < 16; ++i) out.v[i] = lane(i);
    return out;
  }

  static F load(const float* p) {
    return each<F>([&](int i) { return p[i]; });
  }
  static void store(float* p, const F& x) { std::memcpy(p, x.v, sizeof x.v); }
  static F load_f16(const std::uint16_t* p) {
    return each<F>([&](int i) { return half_to_float(p[i]); });
  }
  static F load_bf16(const std::uint16_t* p) {
    return each<F>(
        [&](int i) { return std::bit_cast<float>(static_cast<std::uint32_t>(p[i]) << 16); });
  }
  static void store_f16(std::uint16_t* p, const F& x) {
    for (int i = 0; i < 16; ++i) p[i] = float_to_half(x.v[i]);
  }
  static F zero() { return all(0.0F); }
  static F all(float value) {
    return each<F>([&](int) { return value; });
  }
  static F add(const F& x, const F& y) {
    return each<F>([&](int i) { return x.v[i] + y.v[i]; });
  }
  static F sub(const F& x, const F& y) {
    return each<F>([&](int i) { return x.v[i] - y.v[i]; });
  }
  static F mul(const F& x, const F& y) {
    return each<F>([&](int i) { return x.v[i] * y.v[i]; });
  }
  static F div(const F& x, const F& y) {
    return each<F>([&](int i) { return x.v[i] / y.v[i]; });
  }
  static F fma(const F& x, const F& y, const F& z) {
    return each<F>([&](int i) { return std::fma(x.v[i], y.v[i], z.v[i]); });
  }
  static F max(const F& x, const F& y) {
    return each<F>([&](int i) { return x.v[i] > y.v[i] ? x.v[i] : y.v[i]; });
  }
  static F min(const F& x, const F& y) {
    return each<F>([&](int i) { return x.v[i] < y.v[i] ? x.v[i] : y.v[i]; });
  }
  // The two halves of the lanes are combined until one lane is left, in the same order in all sets.
  static float sum(F x) {
    for (int width = 8; width > 0; width /= 2)
      for (int i = 0; i < width; ++i) x.v[i] += x.v[i + width];
    return x.v[0];
  }
  static float top(F x) {
    for (int width = 8; width > 0; width /= 2)
      for (int i = 0; i < width; ++i) x.v[i] = x.v[i] > x.v[i + width] ? x.v[i] : x.v[i + width];
    return x.v[0];
  }
  template <class Test>
  static std::uint32_t mask(Test test) {
    std::uint32_t out = 0;
    for (int i = 0; i < 16; ++i) out |= static_cast<std::uint32_t>(test(i)) << i;
    return out;
  }
  static std::uint32_t at_least(const F& x, const F& y) {
    return mask([&](int i) { return x.v[i] >= y.v[i]; });
  }
  static std::uint32_t greater(const F& x, const F& y) {
    return mask([&](int i) { return x.v[i] > y.v[i]; });
  }
  static std::uint32_t is_nan(const F& x) {
    return mask([&](int i) { return x.v[i] != x.v[i]; });
  }

  static I int_zero() { return int_all(0); }
  static I int_all(std::int32_t value) {
    return each<I>([&](int) { return value; });
  }
  static std::int32_t wrap(std::uint32_t value) { return static_cast<std::int32_t>(value); }
  static std::uint32_t raw(std::int32_t value) { return static_cast<std::uint32_t>(value); }
  static I int_add(const I& x, const I& y) {
    return each<I>([&](int i) { return wrap(raw(x.v[i]) + raw(y.v[i])); });
  }
  static std::int32_t int_sum(const I& x) {
    std::uint32_t sum = 0;
    for (int i = 0; i < 16; ++i) sum += raw(x.v[i]);
    return wrap(sum);
  }
  static std::int32_t int_top(const I& x) {
    std::int32_t top = x.v[0];
    for (int i = 1; i < 16; ++i) top = x.v[i] > top ? x.v[i] : top;
    return top;
  }
  static I int_max(const I& x, const I& y) {
    return each<I>([&](int i) { return x.v[i] > y.v[i] ? x.v[i] : y.v[i]; });
  }
  static I int_and(const I& x, const I& y) {
    return each<I>([&](int i) { return x.v[i] & y.v[i]; });
  }
  template <int N>
  static I shift_left(const I& x) {
    return each<I>([&](int i) { return wrap(raw(x.v[i]) << N); });
  }
  template <int N>
  static I shift_right(const I& x) {
    return each<I>([&](int i) { return x.v[i] >> N; });
  }
  static I bits(const F& x) { return std::bit_cast<I>(x); }
  static F from_bits(const I& x) { return std::bit_cast<F>(x); }
  static F to_float(const I& x) {
    return each<F>([&](int i) { return static_cast<float>(x.v[i]); });
  }
  static void int_store(std::int32_t* p, const I& x) { std::memcpy(p, x.v, sizeof x.v); }
  static I int_load(const std::int32_t* p) {
    return each<I>([&](int i) { return p[i]; });
  }
  static void store_low_bytes(void* p, const I& x) {
    std::int8_t narrow[16];
    for (int i = 0; i < 16; ++i) narrow[i] = static_cast<std::int8_t>(x.v[i]);
    std::memcpy(p, narrow, sizeof narrow);
  }

  static Bytes load_bytes(const std::uint8_t* p) {
    Bytes out;
    std::memcpy(out.v, p, sizeof out.v);
    return out;
  }
  template <class Lane>
  static Bytes each_byte(Lane lane) {
    Bytes out;
    for (int i = 0; i < 64; ++i) out.v[i] = static_cast<std::uint8_t>(lane(i));
    return out;
  }
  static void store_bytes(std::uint8_t* p, const Bytes& x) { std::memcpy(p, x.v, sizeof x.v); }
  template <int Right, int Mask>
  static Bytes pick(const Bytes& x) {
    return each_byte([&](int i) {
      return (Right >= 0 ? x.v[i] >> (Right >= 0 ? Right : 0)
                         : x.v[i] << (Right < 0 ? -Right : 0)) &
             Mask;
    });
  }
  static Bytes either(const Bytes& x, const Bytes& y) {
    return each_byte([&](int i) { return x.v[i] | y.v[i]; });
  }
  static Bytes repeat16(const std::uint8_t* p) {
    return each_byte([&](int i) { return p[i % 16]; });
  }
  static Bytes look_up(const Bytes& table, const Bytes& index) {
    return each_byte([&](int i) { return table.v[index.v[i]]; });
  }
  static I load_u8(const std::uint8_t* p) {
    return each<I>([&](int i) { return std::int32_t{p[i]}; });
  }
  static I load_i8(const std::uint8_t* p) {
    return each<I>([&](int i) { return std::int32_t{static_cast<std::int8_t>(p[i])}; });
  }
  static I dot_nibbles(const I& sum, const Bytes& w, std::int32_t word) {
    std::int8_t x[4];
    std::memcpy(x, &word, 4);
    return each<I>([&](int i) {
      return sum.v[i] + w.v[4 * i] * x[0] + w.v[4 * i + 1] * x[1] + w.v[4 * i + 2] * x[2] +
             w.v[4 * i + 3] * x[3];
    });
  }
  static I bytes_start(std::int32_t correction) { return int_all(correction); }
  static Bytes prepare_bytes(const Bytes& w) { return w; }
  static I dot_bytes(const I& sum, const Bytes& w, std::int32_t word) {
    return dot_nibbles(sum, w, word);
  }
  static std::int32_t upper(std::int32_t x) { return x >> 16; }
  static std::int32_t lower(std::int32_t x) { return static_cast<std::int16_t>(x); }
  // Adds to each lane the products of its two 16-bit integers with those of `word`.
  static I dot_pairs(const I& sum, const I& pairs, std::int32_t word) {
    return each<I>([&](int i) {
      return sum.v[i] + lower(pairs.v[i]) * lower(word) + upper(pairs.v[i]) * upper(word);
    });
  }
  static void prefetch(const void*) {}
  static void prefetch_far(const void*) {}
};

}  // namespace
}  // namespace paradecode
