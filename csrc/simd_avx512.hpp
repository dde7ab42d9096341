// Sixteen lanes with AVX512 and VNNI.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "halves_x86.hpp"

namespace paradecode {
namespace {

struct Simd {
  using F = __m512;
  using I = __m512i;
  using Bytes = __m512i;
  static constexpr int kMaxRows = 8;  // more would not fit the registers

  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F v) { _mm512_storeu_ps(p, v); }
  static F load_f16(const std::uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static F load_bf16(const std::uint16_t* p) {
    const __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16));
  }
  static void store_f16(std::uint16_t* p, F v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static F zero() { return _mm512_setzero_ps(); }
  static F all(float v) { return _mm512_set1_ps(v); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }  // a > b ? a : b
  static F min(F a, F b) { return _mm512_min_ps(a, b); }
  // The two halves of the lanes are combined until one lane is left, in the same order in all sets.
  static __m256 low(F a) { return _mm512_castps512_ps256(a); }
  static __m256 high(F a) { return _mm512_extractf32x8_ps(a, 1); }
  static float sum(F a) { return sum_of_8(_mm256_add_ps(low(a), high(a))); }
  static float top(F a) { return top_of_8(_mm256_max_ps(low(a), high(a))); }
  static std::uint32_t at_least(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
  static std::uint32_t greater(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
  static std::uint32_t is_nan(F a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }

  static I int_zero() { return _mm512_setzero_si512(); }
  static I int_all(std::int32_t v) { return _mm512_set1_epi32(v); }
  static I int_add(I a, I b) { return _mm512_add_epi32(a, b); }
  static std::int32_t int_sum(I a) { return _mm512_reduce_add_epi32(a); }
  static std::int32_t int_top(I a) { return _mm512_reduce_max_epi32(a); }
  static I int_max(I a, I b) { return _mm512_max_epi32(a, b); }
  static I int_and(I a, I b) { return _mm512_and_si512(a, b); }
  template <int N>
  static I shift_left(I a) {
    return _mm512_slli_epi32(a, N);
  }
  template <int N>
  static I shift_right(I a) {  // arithmetic
    return _mm512_srai_epi32(a, N);
  }
  static I bits(F a) { return _mm512_castps_si512(a); }
  static F from_bits(I a) { return _mm512_castsi512_ps(a); }
  static F to_float(I a) { return _mm512_cvtepi32_ps(a); }
  static void store_low_bytes(void* p, I a) {
    _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a));
  }
  static void int_store(std::int32_t* p, I a) { _mm512_storeu_si512(p, a); }
  static I int_load(const std::int32_t* p) { return _mm512_loadu_si512(p); }

  static Bytes load_bytes(const std::uint8_t* p) { return _mm512_loadu_si512(p); }
  static void store_bytes(std::uint8_t* p, Bytes v) { _mm512_storeu_si512(p, v); }
  // Shifts each byte right by Right bits (left if negative), and masks it.
  template <int Right, int Mask>
  static Bytes pick(Bytes v) {
    if constexpr (Right > 0) v = _mm512_srli_epi16(v, Right);
    if constexpr (Right < 0) v = _mm512_slli_epi16(v, -Right);
    return _mm512_and_si512(v, _mm512_set1_epi8(Mask));
  }
  static Bytes either(Bytes a, Bytes b) { return _mm512_or_si512(a, b); }
  static Bytes repeat16(const std::uint8_t* p) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  // table[index] for indices below 16.
  static Bytes look_up(Bytes table, Bytes index) { return _mm512_shuffle_epi8(table, index); }
  static I load_u8(const std::uint8_t* p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static I load_i8(const std::uint8_t* p) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  // Adds to each lane the dot of its four unsigned bytes with the four signed bytes of `word`. GCC
  // does not find out by itself that the instruction can repeat a word of memory.
  static I dot_nibbles(I sum, Bytes w, const std::int32_t& word) {
#if defined(__GNUC__) && !defined(__clang__)
    asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(word));
    return sum;
#else
    return _mm512_dpbusd_epi32(sum, w, _mm512_set1_epi32(word));
#endif
  }
  static I bytes_start(std::int32_t correction) { return _mm512_set1_epi32(correction); }
  static Bytes prepare_bytes(Bytes w) { return w; }
  static I dot_bytes(I sum, Bytes w, const std::int32_t& word) { return dot_nibbles(sum, w, word); }
  // Adds to each lane the products of its two 16-bit integers with those of `word`.
  static I dot_pairs(I sum, I pairs, std::int32_t word) {
    return _mm512_dpwssd_epi32(sum, pairs, _mm512_set1_epi32(word));
  }
  static void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
  static void prefetch_far(const void* p) {  // into the second-level cache
    _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1);
  }

  // Returns the high 32 bits of the SplitMix64 finaliser of base + (id + 1) * golden, for ids first
  // .. + 15.
  static void hash16(std::uint64_t base, std::uint64_t first, std::uint32_t* out) {
    const __m512i golden = _mm512_set1_epi64(static_cast<long long>(0x9E3779B97F4A7C15ULL));
    const __m512i steps = _mm512_set_epi64(8, 7, 6, 5, 4, 3, 2, 1);
    for (int half = 0; half < 2; ++half) {
      const auto offset = static_cast<long long>(first) + 8 * half;
      const __m512i id = _mm512_add_epi64(_mm512_set1_epi64(offset), steps);
      __m512i z = _mm512_add_epi64(_mm512_set1_epi64(static_cast<long long>(base)),
                                   _mm512_mullo_epi64(id, golden));
      z = _mm512_xor_si512(z, _mm512_srli_epi64(z, 30));
      z = _mm512_mullo_epi64(z, _mm512_set1_epi64(static_cast<long long>(0xBF58476D1CE4E5B9ULL)));
      z = _mm512_xor_si512(z, _mm512_srli_epi64(z, 27));
      z = _mm512_mullo_epi64(z, _mm512_set1_epi64(static_cast<long long>(0x94D049BB133111EBULL)));
      z = _mm512_xor_si512(z, _mm512_srli_epi64(z, 31));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 8 * half),
                          _mm512_cvtepi64_epi32(_mm512_srli_epi64(z, 32)));
    }
  }
};

}  // namespace
}  // namespace paradecode
