// Matrix products over packed panels. A tile multiplies one panel (16 outputs) by up to kMaxRows
// rows, so that a weight is loaded and unpacked once for all of them. A row's result does not
// depend on the tile in which it is computed: inside a group of 32 inputs integers are summed, and
// over the groups float32 fused multiply-adds run in order.
#pragma once

#include "dispatch.hpp"
#include "types.hpp"
#include "unpack.hpp"

namespace paradecode {
namespace {

// How far ahead of the current group a tile prefetches, in bytes. It fetches first into the
// second-level cache, which can wait for more lines of memory at a time, and from there into the
// first.
inline constexpr std::size_t kFarAhead = 16384;
inline constexpr std::size_t kAhead = 2048;

// The number of rows whose dots are interleaved. With fewer the last dots would wait for one
// another.
inline constexpr int kTurns = 8;

template <std::size_t Bytes>
inline void prefetch_ahead(const std::uint8_t* p) {
  for (std::size_t line = 0; line < Bytes; line += 64) {
    Simd::prefetch_far(p + kFarAhead + line);
    Simd::prefetch(p + kAhead + line);
  }
}

template <Format Kind>
inline Simd::I dot(Simd::I sum, Simd::Bytes w, std::int32_t word) {
  if constexpr (has_offset(Kind)) return Simd::dot_bytes(sum, w, word);
  return Simd::dot_nibbles(sum, w, word);
}

// Rows take turns, so that consecutive instructions do not wait for one another.
template <int Rows, class Each>
inline void in_turns(Each each) {
#pragma GCC unroll 16
  for (int first = 0; first < Rows; first += kTurns)
    each(first, first + kTurns < Rows ? first + kTurns : Rows);
}

// Turns the dots of a group of 32 inputs into what is added to a sum of float32. `at` is the entry
// of a row's inputs. This version has one scale for the whole group.
template <Format Kind>
struct WholeGroup {
  using Scales = GroupScales<Kind>;
  static constexpr int kDots = 1;

  WholeGroup(const Scales& scales, int group) : scale(scales.scale(group)) {
    if constexpr (Scales::has_minimum) minimum = scales.minimum(group);
  }

  static Simd::I start(const Activations& input, std::int64_t at, int) {
    return has_offset(Kind) ? Simd::bytes_start(input.corrections[at]) : Simd::int_zero();
  }

  Simd::F add(const Simd::I* dots, const Activations& input, std::int64_t at, Simd::F sum) const {
    const Simd::F factor = Simd::mul(scale, Simd::all(input.scales[at]));
    sum = Simd::fma(Simd::to_float(dots[0]), factor, sum);
    if constexpr (Scales::has_minimum) sum = Simd::fma(minimum, Simd::all(input.sums[at]), sum);
    return sum;
  }

  Simd::F scale;
  Simd::F minimum = Simd::zero();
};

// This version has a scale, which is an integer, for each half of the group. The sums of halves are
// below 2^23 in size, so float32 multiplies and adds the integers exactly, in fewer instructions
// than integers.
template <Format Kind>
struct HalfGroups {
  using Scales = HalfScales<Kind>;
  static constexpr int kDots = 2;

  HalfGroups(const Scales& of, int group) : scales(of) {
    for (int half = 0; half < 2; ++half) {
      factors[half] = scales.factor(2 * group + half);
      if constexpr (Scales::has_minimum) minima[half] = scales.minimum_factor(2 * group + half);
    }
  }

  static Simd::I start(const Activations& input, std::int64_t at, int half) {
    if constexpr (Scales::has_minimum) return Simd::int_zero();
    return Simd::shift_left<Scales::offset_shift>(Simd::int_all(input.halves[2 * at + half]));
  }

  static Simd::F both(Simd::I first, Simd::I second, const Simd::F* by) {
    return Simd::fma(Simd::to_float(second), by[1], Simd::mul(Simd::to_float(first), by[0]));
  }

  Simd::F add(const Simd::I* dots, const Activations& input, std::int64_t at, Simd::F sum) const {
    const Simd::F scale = Simd::all(input.scales[at]);
    sum = Simd::fma(both(dots[0], dots[1], factors), Simd::mul(scales.scale, scale), sum);
    if constexpr (Scales::has_minimum) {
      const std::int32_t* halves = input.halves + 2 * at;
      const Simd::F taken = both(Simd::int_all(halves[0]), Simd::int_all(halves[1]), minima);
      sum = Simd::fma(taken, Simd::mul(scales.minimum, scale), sum);
    }
    return sum;
  }

  const Scales& scales;
  Simd::F factors[2];
  Simd::F minima[2] = {Simd::zero(), Simd::zero()};
};

template <Format Kind, bool Halves = has_half_scales(Kind)>
struct GroupOf {
  using Type = WholeGroup<Kind>;
};
template <Format Kind>
struct GroupOf<Kind, true> {
  using Type = HalfGroups<Kind>;
};

template <Format Kind, int Rows>
inline void add_group(const Simd::Bytes* w, const typename GroupOf<Kind>::Type& group,
                      const Activations& input, std::int64_t at, Simd::F* sums) {
  constexpr int parts = GroupOf<Kind>::Type::kDots;
  const std::int32_t* words = input.words + 8 * at;
  in_turns<Rows>([&](int first, int last) {
    Simd::I dots[kTurns][parts];
#pragma GCC unroll 16
    for (int r = first; r < last; ++r)
#pragma GCC unroll 2
      for (int part = 0; part < parts; ++part)
        dots[r - first][part] = group.start(input, at + r, part);
#pragma GCC unroll 16
    for (int i = 0; i < 8; ++i)
#pragma GCC unroll 16
      for (int r = first; r < last; ++r) {
        Simd::I& sum = dots[r - first][i * parts / 8];
        sum = dot<Kind>(sum, w[i], words[8 * r + i]);
      }
#pragma GCC unroll 16
    for (int r = first; r < last; ++r) sums[r] = group.add(dots[r - first], input, at + r, sums[r]);
  });
}

// Whether `Lanes` multiplies two rows at a time, as processors with int8 matrices do.
template <class Lanes>
concept MultipliesPairs = requires { typename Lanes::Pair; };

// This version takes two rows at a time. If their number is odd, the last row is paired with
// itself.
template <Format Kind, int Rows, MultipliesPairs Lanes>
inline void add_group_to_pairs(const Simd::Bytes* w, const typename GroupOf<Kind>::Type& group,
                               const Activations& input, std::int64_t at, Simd::F* sums) {
  constexpr int parts = GroupOf<Kind>::Type::kDots;
  typename Lanes::Eights eights[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) eights[i] = Lanes::eights(w[2 * i], w[2 * i + 1]);
#pragma GCC unroll 16
  for (int r = 0; r < Rows; r += 2) {
    const std::int64_t first = at + r;
    const std::int64_t second = r + 1 < Rows ? first + 1 : first;
    Simd::I dots[2][parts];
#pragma GCC unroll 2
    for (int part = 0; part < parts; ++part) {
      auto pair = Lanes::pair(group.start(input, first, part), group.start(input, second, part));
#pragma GCC unroll 4
      for (int i = 4 * part / parts; i < 4 * (part + 1) / parts; ++i)
        pair = Lanes::dot_pair(pair, eights[i], input.words + 8 * first + 2 * i,
                               input.words + 8 * second + 2 * i);
      dots[0][part] = Lanes::first_of(pair);
      dots[1][part] = Lanes::second_of(pair);
    }
    sums[r] = group.add(dots[0], input, first, sums[r]);
    if (r + 1 < Rows) sums[r + 1] = group.add(dots[1], input, second, sums[r + 1]);
  }
}

template <Format Kind, int Rows, class Lanes = Simd>
inline void tile_integer(const std::uint8_t* weight, int groups, const Activations& input, int row,
                         Simd::F* sums) {
  using Group = typename GroupOf<Kind>::Type;
  constexpr Packing block = packing(Kind);
  std::int64_t at = input.entry(row, 0);
  for (int done = 0; done < groups; done += block.groups) {
    prefetch_ahead<block.header>(weight);
    const typename Group::Scales scales(weight);
    weight += block.header;
    for (int g = 0; g < block.groups; ++g, weight += block.data, at += kRowGroup) {
      prefetch_ahead<block.data>(weight);
      Simd::Bytes w[8];
      unpack_group<Kind>(weight, w);
      if constexpr (Rows > 1 && MultipliesPairs<Lanes>)
        add_group_to_pairs<Kind, Rows, Lanes>(w, Group(scales, g), input, at, sums);
      else
        add_group<Kind, Rows>(w, Group(scales, g), input, at, sums);
    }
  }
}

template <Format Kind>
inline Simd::F load_weights(const std::uint8_t* p) {
  if constexpr (Kind == Format::F32) return Simd::load(reinterpret_cast<const float*>(p));
  if constexpr (Kind == Format::F16)
    return Simd::load_f16(reinterpret_cast<const std::uint16_t*>(p));
  if constexpr (Kind == Format::BF16)
    return Simd::load_bf16(reinterpret_cast<const std::uint16_t*>(p));
}

// With few rows several panels are computed at a time; otherwise additions would wait for one
// another.
template <Format Kind, int Rows, int Panels>
inline void tile_float(const Matrix& weight, int panel, const Activations& input, int row,
                       Simd::F (*sums)[Rows]) {
  constexpr std::size_t step = kLanes * (Kind == Format::F32 ? 4 : 2);
  const std::uint8_t* w[Panels];
#pragma GCC unroll 16
  for (int p = 0; p < Panels; ++p) w[p] = weight.panel(panel + p);
  const float* x = input.values + input.value(row, 0);
  for (int k = 0; k < weight.cols; ++k, x += kRowGroup) {
    Simd::F loaded[Panels];
#pragma GCC unroll 16
    for (int p = 0; p < Panels; ++p)
      loaded[p] = load_weights<Kind>(w[p] + static_cast<std::size_t>(k) * step);
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      const Simd::F value = Simd::all(x[r]);
#pragma GCC unroll 16
      for (int p = 0; p < Panels; ++p) sums[p][r] = Simd::fma(loaded[p], value, sums[p][r]);
    }
  }
}

struct Output {
  float* values;
  std::int64_t stride;
  const float* bias;
  bool add;
};

template <int Rows>
inline void finish(const Simd::F* sums, const Output& out, int panel_offset, int row) {
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r) {
    float* at = out.values + (row + r) * out.stride + panel_offset * kLanes;
    Simd::F value = sums[r];
    if (out.bias != nullptr) value = Simd::add(value, Simd::load(out.bias + panel_offset * kLanes));
    if (out.add) value = Simd::add(Simd::load(at), value);
    Simd::store(at, value);
  }
}

template <Format Kind, int Rows>
inline void tile(const Matrix& weight, int panel, int offset, const Activations& input, int row,
                 int row_offset, const Output& out) {
  if constexpr (is_integer(Kind)) {
    Simd::F sums[Rows];
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) sums[r] = Simd::zero();
    tile_integer<Kind, Rows>(weight.panel(panel), weight.groups, input, row, sums);
    finish<Rows>(sums, out, offset, row_offset);
  } else {
    Simd::F sums[1][Rows];
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) sums[0][r] = Simd::zero();
    tile_float<Kind, Rows, 1>(weight, panel, input, row, sums);
    finish<Rows>(sums[0], out, offset, row_offset);
  }
}

template <Format Kind, int Panels>
inline void one_row_panels(const Matrix& weight, int panel, int offset, const Activations& input,
                           int row, int row_offset, const Output& out) {
  Simd::F sums[Panels][1];
#pragma GCC unroll 16
  for (int p = 0; p < Panels; ++p) sums[p][0] = Simd::zero();
  tile_float<Kind, 1, Panels>(weight, panel, input, row, sums);
#pragma GCC unroll 16
  for (int p = 0; p < Panels; ++p) finish<1>(sums[p], out, offset + p, row_offset);
}

template <Format Kind, int Rows>
inline void tile_of(int rows, const Matrix& weight, int panel, int offset, const Activations& input,
                    int row, int row_offset, const Output& out) {
  if constexpr (Rows == 1) {
    tile<Kind, 1>(weight, panel, offset, input, row, row_offset, out);
  } else {
    if (rows == Rows)
      tile<Kind, Rows>(weight, panel, offset, input, row, row_offset, out);
    else
      tile_of<Kind, Rows - 1>(rows, weight, panel, offset, input, row, row_offset, out);
  }
}

template <Format Kind>
inline void matmul_as(const Matrix& weight, int panel, int panels, const Activations& input,
                      int row, int rows, const Output& out) {
  int done = 0;
  if constexpr (!is_integer(Kind)) {
    if (rows == 1)
      for (; done + 4 <= panels; done += 4)
        one_row_panels<Kind, 4>(weight, panel + done, done, input, row, 0, out);
  }
  // A tile never leaves its group of interleaved rows: `row` is a multiple of 16.
  static_assert(kRowGroup % Simd::kMaxRows == 0);
  constexpr int most = Simd::kMaxRows;
  for (; done < panels; ++done) {
    for (int r = 0; r < rows; r += most) {
      const int now = rows - r < most ? rows - r : most;
      tile_of<Kind, most>(now, weight, panel + done, done, input, row + r, r, out);
    }
  }
}

}  // namespace
}  // namespace paradecode
