// Reads packed integers and their scales as vectors of `Simd`; pack.cpp writes them.
//
// The integers of a group are eight vectors: vector i holds inputs 4i .. 4i + 3 of 16 outputs.
//   4 bits  64 bytes hold vector i in the low and vector i + 4 in the high half of each byte.
//   5 bits  besides these, a plane of 64 bytes: bit i is the fifth bit of vector i.
//   6 bits  besides, two planes: bits 2i and 2i + 1 are the upper bits of vector i (or 4 + i).
//   2 bits  two planes, likewise; 3 bits: besides, a plane with one bit of each vector.
//   8 bits  the vectors as they are.
#pragma once

#include "types.hpp"

namespace paradecode {
namespace {

// Calls each(Index<0>()), each(Index<1>()), ...; the indices are compile-time constants for shifts.
template <int I>
struct Index {
  static constexpr int value = I;
};

template <int Count, int I = 0, class Each>
inline void unroll(Each each) {
  if constexpr (I < Count) {
    each(Index<I>());
    unroll<Count, I + 1>(each);
  }
}

// Returns whether the format's blocks of 256 inputs have a scale for every 16 inputs.
constexpr bool has_half_scales(Format kind) {
  return kind == Format::Q2_K || kind == Format::Q3_K || kind == Format::Q6_K;
}

// Returns whether the format's integers are stored with 128 added.
constexpr bool has_offset(Format kind) { return kind == Format::Q8 || has_levels(kind); }

// Integers of Q3_K are unpacked eight times as large, so that their offset is the 32 of Q6_K.
inline constexpr int kEights = 3;  // bits of them

template <Format Kind>
inline void unpack_group(const std::uint8_t* p, Simd::Bytes* w) {
  if constexpr (Kind == Format::Q8) {
    unroll<8>([&](auto i) { w[i.value] = Simd::load_bytes(p + 64 * i.value); });
  } else if constexpr (Kind == Format::Q2_K || Kind == Format::Q3_K) {
    const Simd::Bytes plane[2] = {Simd::load_bytes(p), Simd::load_bytes(p + 64)};
    constexpr int up = Kind == Format::Q3_K ? kEights : 0;
    unroll<8>([&](auto i) {
      w[i.value] = Simd::pick<2 * (i.value % 4) - up, 3 << up>(plane[i.value / 4]);
    });
    if constexpr (Kind == Format::Q3_K) {
      const Simd::Bytes third = Simd::load_bytes(p + 128);
      unroll<8>([&](auto i) {
        w[i.value] = Simd::either(w[i.value], Simd::pick<i.value - 2 - up, 4 << up>(third));
      });
    }
  } else {
    unroll<4>([&](auto i) {
      const Simd::Bytes raw = Simd::load_bytes(p + 64 * i.value);
      w[i.value] = Simd::pick<0, 15>(raw);
      w[i.value + 4] = Simd::pick<4, 15>(raw);
    });
    if constexpr (Kind == Format::Q5_0 || Kind == Format::Q5_1 || Kind == Format::Q5_K) {
      const Simd::Bytes fifth = Simd::load_bytes(p + 256);
      unroll<8>([&](auto i) {
        w[i.value] = Simd::either(w[i.value], Simd::pick<i.value - 4, 16>(fifth));
      });
    }
    if constexpr (Kind == Format::Q6_K) {
      const Simd::Bytes plane[2] = {Simd::load_bytes(p + 256), Simd::load_bytes(p + 320)};
      unroll<8>([&](auto i) {
        const Simd::Bytes upper = Simd::pick<2 * (i.value % 4) - 4, 48>(plane[i.value / 4]);
        w[i.value] = Simd::either(w[i.value], upper);
      });
    }
    if constexpr (has_levels(Kind)) {
      const Simd::Bytes levels = Simd::repeat16(Kind == Format::MXFP4 ? kFloatLevels : kLevels);
      unroll<8>([&](auto i) { w[i.value] = Simd::look_up(levels, w[i.value]); });
    }
  }
  if constexpr (has_offset(Kind))
    unroll<8>([&](auto i) { w[i.value] = Simd::prepare_bytes(w[i.value]); });
}

// Reads sixteen values of 6 bits for each of 16 outputs, as bytes [value][output]. The low four
// bits are 128 bytes, with value j in the low and value j + 8 in the high halves. The upper bits
// are 64 bytes: bits 2t and 2t + 1 of byte [j][output] belong to value j + 4t.
inline void unpack_six_bits(const std::uint8_t* p, std::uint8_t* out) {
  const Simd::Bytes low = Simd::load_bytes(p);
  const Simd::Bytes high = Simd::load_bytes(p + 64);
  const Simd::Bytes upper = Simd::load_bytes(p + 128);
  Simd::store_bytes(out, Simd::either(Simd::pick<0, 15>(low), Simd::pick<-4, 48>(upper)));
  Simd::store_bytes(out + 64, Simd::either(Simd::pick<0, 15>(high), Simd::pick<-2, 48>(upper)));
  Simd::store_bytes(out + 128, Simd::either(Simd::pick<4, 15>(low), Simd::pick<0, 48>(upper)));
  Simd::store_bytes(out + 192, Simd::either(Simd::pick<4, 15>(high), Simd::pick<2, 48>(upper)));
}

inline Simd::F load_scale(const std::uint8_t* p) {
  return Simd::load_f16(reinterpret_cast<const std::uint16_t*>(p));
}

// The numbers by which the integers of a block of 32 are multiplied, and which are added: a weight
// is scale * integer + minimum, in float32 as GGUF's readers compute it.
template <Format Kind>
struct GroupScales {
  static constexpr bool has_minimum = !has_offset(Kind);

  explicit GroupScales(const std::uint8_t* header) : scale(load_scale(header)) {
    if constexpr (Kind == Format::Q4_0)
      minimum = Simd::mul(scale, Simd::all(-8.0F));
    else if constexpr (Kind == Format::Q5_0)
      minimum = Simd::mul(scale, Simd::all(-16.0F));
    else if constexpr (has_minimum)
      minimum = load_scale(header + 32);
  }

  Simd::F scale;
  Simd::F minimum = Simd::zero();
};

// Those of a block of 256: a weight is scale * factor * integer + 8 * minimum * its integer.
// Factors and minima are for 32 inputs each, or for 16.
template <Format Kind>
class BlockScales {
 public:
  static constexpr bool has_minimum =
      Kind == Format::Q2_K || Kind == Format::Q4_K || Kind == Format::Q5_K;
  static constexpr int parts = has_half_scales(Kind) ? 2 : 1;  // of a group
  static constexpr int pairs = 4 * parts;

  explicit BlockScales(const std::uint8_t* header) : scale(load_scale(header)), header_(header) {
    if constexpr (Kind == Format::Q3_K) scale = Simd::mul(scale, Simd::all(0.125F));
    if constexpr (has_six_bits) unpack_six_bits(header + 64, factors_);
    if constexpr (has_minimum) {
      minimum = Simd::mul(load_scale(header + 32), Simd::all(-0.125F));  // of sums in eighths
      unroll<pairs>([&](auto i) {
        minima[i.value] = Simd::int_add(minimum_of(2 * i.value),
                                        Simd::shift_left<16>(minimum_of(2 * i.value + 1)));
      });
    }
  }

  Simd::F factor(int index) const {
    if constexpr (Kind == Format::Q2_K)
      return Simd::to_float(
          Simd::int_and(Simd::load_u8(header_ + 64 + 16 * index), Simd::int_all(15)));
    else if constexpr (Kind == Format::Q3_K)
      return Simd::to_float(
          Simd::int_add(Simd::load_u8(factors_ + 16 * index), Simd::int_all(-32)));
    else if constexpr (has_six_bits)
      return Simd::to_float(Simd::load_u8(factors_ + 16 * index));
    else
      return Simd::to_float(
          Simd::load_i8(header_ + (Kind == Format::IQ4_XS ? 32 : 64) + 16 * index));
  }

  Simd::F scale;
  Simd::F minimum = Simd::zero();
  Simd::I minima[has_minimum ? pairs : 1];  // the integers of two each, 16 bits wide

 private:
  static constexpr bool has_six_bits =
      Kind == Format::Q3_K || Kind == Format::Q4_K || Kind == Format::Q5_K;

  Simd::I minimum_of(int index) const {
    if constexpr (Kind == Format::Q2_K)
      return Simd::shift_right<4>(Simd::load_u8(header_ + 64 + 16 * index));
    else
      return Simd::load_u8(factors_ + 128 + 16 * index);
  }

  const std::uint8_t* header_;
  alignas(64) std::uint8_t factors_[has_six_bits ? 256 : 1];
};

}  // namespace
}  // namespace paradecode
