// Sixteen lanes as two AVX2 vectors, with FMA and F16C; AVX-VNNI dots where
// PARADECODE_AVXVNNI asks for them.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "hash.hpp"
#include "halves_x86.hpp"

namespace paradecode {
namespace {

struct Simd : PlainHash {
  struct F {
    __m256 a, b;
  };
  struct I {
    __m256i a, b;
  };
  using Bytes = I;
  static constexpr int kMaxRows = 4;

  static F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static void store(float* p, F v) {
    _mm256_storeu_ps(p, v.a);
    _mm256_storeu_ps(p + 8, v.b);
  }
  static __m128i half(const std::uint16_t* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  }
  static F load_f16(const std::uint16_t* p) {
    return {_mm256_cvtph_ps(half(p)), _mm256_cvtph_ps(half(p + 8))};
  }
  static __m256 widen(__m128i raw) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16));
  }
  static F load_bf16(const std::uint16_t* p) { return {widen(half(p)), widen(half(p + 8))}; }
  static void store_f16(std::uint16_t* p, F v) {
    constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v.a, mode));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(v.b, mode));
  }
  static F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static F all(float v) { return {_mm256_set1_ps(v), _mm256_set1_ps(v)}; }
  static F add(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
  static F sub(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
  static F mul(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
  static F div(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
  static F fma(F x, F y, F z) {
    return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
  }
  static F max(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
  static F min(F x, F y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
  // The two halves of the lanes are combined until one lane is left, in the same order in all sets.
  static float sum(F x) { return sum_of_8(_mm256_add_ps(x.a, x.b)); }
  static float top(F x) { return top_of_8(_mm256_max_ps(x.a, x.b)); }
  template <int C>
  static std::uint32_t compare(F x, F y) {
    return static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(x.a, y.a, C))) |
           static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(x.b, y.b, C))) << 8;
  }
  static std::uint32_t at_least(F x, F y) { return compare<_CMP_GE_OQ>(x, y); }
  static std::uint32_t greater(F x, F y) { return compare<_CMP_GT_OQ>(x, y); }
  static std::uint32_t is_nan(F x) { return compare<_CMP_UNORD_Q>(x, x); }

  static I int_zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  static I int_all(std::int32_t v) { return {_mm256_set1_epi32(v), _mm256_set1_epi32(v)}; }
  static I int_add(I x, I y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
  static std::int32_t int_sum(I x) {
    __m256i v = _mm256_add_epi32(x.a, x.b);
    v = _mm256_hadd_epi32(v, v);
    v = _mm256_hadd_epi32(v, v);
    return _mm_cvtsi128_si32(
        _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1)));
  }
  static std::int32_t int_top(I x) {
    const __m256i v = _mm256_max_epi32(x.a, x.b);
    __m128i w = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    w = _mm_max_epi32(w, _mm_shuffle_epi32(w, 0x4E));
    w = _mm_max_epi32(w, _mm_shuffle_epi32(w, 0xB1));
    return _mm_cvtsi128_si32(w);
  }
  static I int_max(I x, I y) { return {_mm256_max_epi32(x.a, y.a), _mm256_max_epi32(x.b, y.b)}; }
  static I int_and(I x, I y) { return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
  template <int N>
  static I shift_left(I x) {
    return {_mm256_slli_epi32(x.a, N), _mm256_slli_epi32(x.b, N)};
  }
  template <int N>
  static I shift_right(I x) {
    return {_mm256_srai_epi32(x.a, N), _mm256_srai_epi32(x.b, N)};
  }
  static I bits(F x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
  static F from_bits(I x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
  static F to_float(I x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
  static void int_store(std::int32_t* p, I x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.a);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), x.b);
  }
  static I int_load(const std::int32_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
  }
  static void store_low_bytes(void* p, I x) {
    alignas(32) std::int32_t wide[16];
    std::int8_t narrow[16];
    int_store(wide, x);
    for (int i = 0; i < 16; ++i) narrow[i] = static_cast<std::int8_t>(wide[i]);
    std::memcpy(p, narrow, 16);
  }

  static Bytes load_bytes(const std::uint8_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
  }
  static void store_bytes(std::uint8_t* p, Bytes v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v.a);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 32), v.b);
  }
  template <int Right, int Mask>
  static __m256i pick_half(__m256i v) {
    if constexpr (Right > 0) v = _mm256_srli_epi16(v, Right);
    if constexpr (Right < 0) v = _mm256_slli_epi16(v, -Right);
    return _mm256_and_si256(v, _mm256_set1_epi8(Mask));
  }
  template <int Right, int Mask>
  static Bytes pick(Bytes v) {
    return {pick_half<Right, Mask>(v.a), pick_half<Right, Mask>(v.b)};
  }
  static Bytes either(Bytes x, Bytes y) {
    return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)};
  }
  static Bytes repeat16(const std::uint8_t* p) {
    const __m256i table =
        _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return {table, table};
  }
  static Bytes look_up(Bytes table, Bytes index) {
    return {_mm256_shuffle_epi8(table.a, index.a), _mm256_shuffle_epi8(table.b, index.b)};
  }
  static __m128i eight(const std::uint8_t* p) {
    return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  }
  static I load_u8(const std::uint8_t* p) {
    return {_mm256_cvtepu8_epi32(eight(p)), _mm256_cvtepu8_epi32(eight(p + 8))};
  }
  static I load_i8(const std::uint8_t* p) {
    return {_mm256_cvtepi8_epi32(eight(p)), _mm256_cvtepi8_epi32(eight(p + 8))};
  }
#if defined(PARADECODE_AVXVNNI)
  static I dot_nibbles(I sum, Bytes w, std::int32_t word) {
    const __m256i x = _mm256_set1_epi32(word);
    return {_mm256_dpbusd_avx_epi32(sum.a, w.a, x), _mm256_dpbusd_avx_epi32(sum.b, w.b, x)};
  }
  static I bytes_start(std::int32_t correction) { return int_all(correction); }
  static Bytes prepare_bytes(Bytes w) { return w; }
  static I dot_bytes(I sum, Bytes w, std::int32_t word) { return dot_nibbles(sum, w, word); }
#else
  static __m256i pairs(__m256i sum, __m256i products) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(products, _mm256_set1_epi16(1)));
  }
  static I dot_nibbles(I sum, Bytes w, std::int32_t word) {  // 2 * 15 * 128 fits 16 bits
    const __m256i x = _mm256_set1_epi32(word);
    return {pairs(sum.a, _mm256_maddubs_epi16(w.a, x)), pairs(sum.b, _mm256_maddubs_epi16(w.b, x))};
  }
  // The 16-bit pair sums of unsigned bytes would saturate, so the offset of 128 is taken off first
  // and the sign moves to the activation: 2 * 128 * 127 fits.
  static I bytes_start(std::int32_t) { return int_zero(); }
  static Bytes prepare_bytes(Bytes w) {
    const __m256i top = _mm256_set1_epi8(static_cast<char>(0x80));
    return {_mm256_xor_si256(w.a, top), _mm256_xor_si256(w.b, top)};
  }
  static I dot_bytes(I sum, Bytes w, std::int32_t word) {
    const __m256i x = _mm256_set1_epi32(word);
    return {pairs(sum.a, _mm256_maddubs_epi16(_mm256_abs_epi8(w.a), _mm256_sign_epi8(x, w.a))),
            pairs(sum.b, _mm256_maddubs_epi16(_mm256_abs_epi8(w.b), _mm256_sign_epi8(x, w.b)))};
  }
#endif
  // Adds to each lane the products of its two 16-bit integers with those of `word`.
  static I dot_pairs(I sum, I pairs_of, std::int32_t word) {
    const __m256i x = _mm256_set1_epi32(word);
    return int_add(sum, {_mm256_madd_epi16(pairs_of.a, x), _mm256_madd_epi16(pairs_of.b, x)});
  }
  static void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
  static void prefetch_far(const void* p) {  // into the second-level cache
    _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1);
  }
};

}  // namespace
}  // namespace paradecode
