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

// Returns whether the format has blocks of 256 inputs.
constexpr bool has_superblocks(Format kind) { return packing(kind).groups > 1; }

// Returns whether the format's blocks of 32 or 256 inputs have a scale for every 16 inputs.
constexpr bool has_half_scales(Format kind) {
  return kind == Format::Q2_K || kind == Format::Q3_K || kind == Format::Q6_K;
}

// Returns whether the format's integers are stored with 128 added.
constexpr bool has_offset(Format kind) {
  return kind == Format::Q8 || kind == Format::IQ4_NL || kind == Format::IQ4_XS;
}

template <Format Kind>
inline void unpack_group(const std::uint8_t* p, Simd::Bytes* w) {
  if constexpr (Kind == Format::Q8) {
    unroll<8>([&](auto i) { w[i.value] = Simd::load_bytes(p + 64 * i.value); });
  } else if constexpr (Kind == Format::Q2_K || Kind == Format::Q3_K) {
    const Simd::Bytes plane[2] = {Simd::load_bytes(p), Simd::load_bytes(p + 64)};
    unroll<8>([&](auto i) { w[i.value] = Simd::pick<2 * (i.value % 4), 3>(plane[i.value / 4]); });
    if constexpr (Kind == Format::Q3_K) {
      const Simd::Bytes third = Simd::load_bytes(p + 128);
      unroll<8>([&](auto i) {
        w[i.value] = Simd::either(w[i.value], Simd::pick<i.value - 2, 4>(third));
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
    if constexpr (Kind == Format::IQ4_NL || Kind == Format::IQ4_XS) {
      const Simd::Bytes levels = Simd::repeat16(kLevels);
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

// The numbers by which a group's integers are multiplied, and which are added: a weight is scale *
// integer + minimum, in float32 as GGUF's readers compute it.
template <Format Kind>
struct GroupScales {
  static constexpr bool has_minimum = !has_offset(Kind);

  explicit GroupScales(const std::uint8_t* header) : header_(header), scale_(load_scale(header)) {
    if constexpr (Kind == Format::Q4_K || Kind == Format::Q5_K) {
      unpack_six_bits(header + 64, factors_);
      negative_ = Simd::sub(Simd::zero(), load_scale(header + 32));
    }
  }

  Simd::F scale(int group) const {
    if constexpr (Kind == Format::Q4_K || Kind == Format::Q5_K)
      return Simd::mul(scale_, Simd::to_float(Simd::load_u8(factors_ + 16 * group)));
    else if constexpr (Kind == Format::IQ4_XS)
      return Simd::mul(scale_, Simd::to_float(Simd::load_i8(header_ + 32 + 16 * group)));
    else
      return scale_;
  }

  Simd::F minimum(int group) const {
    if constexpr (Kind == Format::Q4_K || Kind == Format::Q5_K)
      return Simd::mul(negative_, Simd::to_float(Simd::load_u8(factors_ + 128 + 16 * group)));
    else if constexpr (Kind == Format::Q4_0)
      return Simd::mul(scale_, Simd::all(-8.0F));
    else if constexpr (Kind == Format::Q5_0)
      return Simd::mul(scale_, Simd::all(-16.0F));
    else
      return load_scale(header_ + 32);
  }

 private:
  const std::uint8_t* header_;
  Simd::F scale_;
  Simd::F negative_ = Simd::zero();
  alignas(64) std::uint8_t factors_[256];
};

// This version has a scale for every 16 inputs: an integer, times one float for the block.
template <Format Kind>
struct HalfScales {
  static constexpr bool has_minimum = Kind == Format::Q2_K;
  // The number of bits by which -4 times a sum of inputs is shifted, to subtract the offset of the
  // integers.
  static constexpr int offset_shift = Kind == Format::Q6_K ? 3 : 0;

  explicit HalfScales(const std::uint8_t* header) : header_(header), scale(load_scale(header)) {
    if constexpr (Kind == Format::Q3_K) unpack_six_bits(header + 64, factors_);
    // The minimum is multiplied by -4 times a sum of inputs.
    if constexpr (has_minimum) minimum = Simd::mul(load_scale(header + 32), Simd::all(0.25F));
  }

  Simd::F factor(int half) const { return Simd::to_float(integer_factor(half)); }

  Simd::F minimum_factor(int half) const {
    return Simd::to_float(Simd::shift_right<4>(Simd::load_u8(header_ + 64 + 16 * half)));
  }

 private:
  Simd::I integer_factor(int half) const {
    if constexpr (Kind == Format::Q2_K)
      return Simd::int_and(Simd::load_u8(header_ + 64 + 16 * half), Simd::int_all(15));
    else if constexpr (Kind == Format::Q3_K)
      return Simd::int_add(Simd::load_u8(factors_ + 16 * half), Simd::int_all(-32));
    else
      return Simd::load_i8(header_ + 64 + 16 * half);
  }

  const std::uint8_t* header_;
  alignas(64) std::uint8_t factors_[256];

 public:
  Simd::F scale;
  Simd::F minimum = Simd::zero();
};

}  // namespace
}  // namespace paradecode
