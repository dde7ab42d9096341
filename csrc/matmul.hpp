// Matrix products over packed panels. A tile multiplies one panel (16 outputs) by up to kMaxRows
// rows, so that a weight is loaded and unpacked once for all of them. A row's result does not
// depend on the tile in which it is computed: inside a group of 32 inputs integers are summed, and
// over the groups float32 fused multiply-adds run in order. Where blocks have 256 inputs, they run
// over the groups of a block, and then over the blocks.
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
inline Simd::I dot(Simd::I sum, Simd::Bytes w, const std::int32_t& word) {
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
// of a row's inputs. This version is a block of its own.
template <Format Kind>
struct WholeGroup {
  using Scales = GroupScales<Kind>;
  static constexpr int kParts = 1;

  WholeGroup(const Scales& of, int) : scales(of) {}

  static const std::int32_t* words(const Activations& input) { return input.words; }

  static Simd::I start(const Activations& input, std::int64_t at, int) {
    return has_offset(Kind) ? Simd::bytes_start(input.corrections[at]) : Simd::int_zero();
  }

  Simd::F add(Simd::I dots, int, const Activations& input, std::int64_t at, Simd::F sum) const {
    const Simd::F factor = Simd::mul(scales.scale, Simd::all(input.scales[at]));
    sum = Simd::fma(Simd::to_float(dots), factor, sum);
    if constexpr (Scales::has_minimum)
      sum = Simd::fma(scales.minimum, Simd::all(input.sums[at]), sum);
    return sum;
  }

  const Scales& scales;
};

// This version is one of a block's eight groups, and has a factor for each of its parts. Dots begin
// with the bits of a float, see WideInputs. They are below 2^22 in size, so that these bits stay
// those of a number between 2^(23 - shift) and twice that, and the difference is exact.
template <Format Kind>
struct BlockGroup {
  using Scales = BlockScales<Kind>;
  static constexpr int kParts = Scales::parts;

  BlockGroup(const Scales& scales, int group) {
#pragma GCC unroll 2
    for (int part = 0; part < kParts; ++part) factors[part] = scales.factor(kParts * group + part);
  }

  static const std::int32_t* words(const Activations& input) { return input.wide.words; }

  static Simd::I start(const Activations& input, std::int64_t at, int part) {
    const std::int32_t* starts = input.wide.starts + WideInputs::kStarts * at;
    if constexpr (has_offset(Kind))
      return Simd::int_add(Simd::bytes_start(input.wide.corrections[at]), Simd::int_all(starts[0]));
    return Simd::int_all(starts[Scales::has_minimum ? 0 : 1 + part]);
  }

  Simd::F add(Simd::I dots, int part, const Activations& input, std::int64_t at,
              Simd::F sum) const {
    const Simd::F scaled = Simd::sub(Simd::from_bits(dots), Simd::all(input.wide.bases[at]));
    return Simd::fma(scaled, factors[part], sum);
  }

  Simd::F factors[kParts];
};

// Adds the sums of a block to those of rows; `block` is the number of the first row's block.
template <Format Kind, int Rows>
inline void add_block(const BlockScales<Kind>& scales, const WideInputs& input, std::int64_t block,
                      const Simd::F* of_block, Simd::F* sums) {
  using Scales = BlockScales<Kind>;
  in_turns<Rows>([&](int first, int last) {
    Simd::F products[kTurns];
#pragma GCC unroll 16
    for (int r = first; r < last; ++r) products[r - first] = Simd::mul(of_block[r], scales.scale);
    if constexpr (Scales::has_minimum) {
      const std::int32_t* pairs = input.pairs + WideInputs::kPairs * block +
                                  (Scales::parts == 1 ? 0 : WideInputs::kGroupPairs);
      Simd::I taken[kTurns];
#pragma GCC unroll 16
      for (int r = first; r < last; ++r) taken[r - first] = Simd::int_zero();
#pragma GCC unroll 8
      for (int i = 0; i < Scales::pairs; ++i)
#pragma GCC unroll 16
        for (int r = first; r < last; ++r)
          taken[r - first] = Simd::dot_pairs(taken[r - first], scales.minima[i],
                                             pairs[WideInputs::kPairs * r + i]);
#pragma GCC unroll 16
      for (int r = first; r < last; ++r)
        products[r - first] =
            Simd::fma(Simd::to_float(taken[r - first]), scales.minimum, products[r - first]);
    }
#pragma GCC unroll 16
    for (int r = first; r < last; ++r)
      sums[r] = Simd::fma(products[r - first], Simd::all(input.scales[block + r]), sums[r]);
  });
}

template <Format Kind, bool Superblocks = has_superblocks(Kind)>
struct GroupOf {
  using Type = WholeGroup<Kind>;
};
template <Format Kind>
struct GroupOf<Kind, true> {
  using Type = BlockGroup<Kind>;
};

template <Format Kind, int Rows>
inline void add_group(const Simd::Bytes* w, const typename GroupOf<Kind>::Type& group,
                      const Activations& input, std::int64_t at, Simd::F* sums) {
  constexpr int parts = GroupOf<Kind>::Type::kParts;
  const std::int32_t* words = group.words(input) + 8 * at;
  in_turns<Rows>([&](int first, int last) {
#pragma GCC unroll 2
    for (int part = 0; part < parts; ++part) {
      Simd::I dots[kTurns];
#pragma GCC unroll 16
      for (int r = first; r < last; ++r) dots[r - first] = group.start(input, at + r, part);
#pragma GCC unroll 16
      for (int i = 0; i < 8 / parts; ++i) {
        const int at_word = part * (8 / parts) + i;
#pragma GCC unroll 16
        for (int r = first; r < last; ++r)
          dots[r - first] = dot<Kind>(dots[r - first], w[at_word], words[8 * r + at_word]);
      }
#pragma GCC unroll 16
      for (int r = first; r < last; ++r)
        sums[r] = group.add(dots[r - first], part, input, at + r, sums[r]);
    }
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
  constexpr int parts = GroupOf<Kind>::Type::kParts;
  const std::int32_t* words = group.words(input);
  typename Lanes::Eights eights[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) eights[i] = Lanes::eights(w[2 * i], w[2 * i + 1]);
#pragma GCC unroll 16
  for (int r = 0; r < Rows; r += 2) {
    const std::int64_t first = at + r;
    const std::int64_t second = r + 1 < Rows ? first + 1 : first;
#pragma GCC unroll 2
    for (int part = 0; part < parts; ++part) {
      auto pair = Lanes::pair(group.start(input, first, part), group.start(input, second, part));
#pragma GCC unroll 4
      for (int i = 4 * part / parts; i < 4 * (part + 1) / parts; ++i)
        pair =
            Lanes::dot_pair(pair, eights[i], words + 8 * first + 2 * i, words + 8 * second + 2 * i);
      sums[r] = group.add(Lanes::first_of(pair), part, input, first, sums[r]);
      if (r + 1 < Rows)
        sums[r + 1] = group.add(Lanes::second_of(pair), part, input, second, sums[r + 1]);
    }
  }
}

template <Format Kind, int Rows, class Lanes = Simd>
inline void tile_integer(const std::uint8_t* weight, int groups, const Activations& input, int row,
                         Simd::F* sums) {
  using Group = typename GroupOf<Kind>::Type;
  constexpr Packing shape = packing(Kind);
  std::int64_t at = input.entry(row, 0);
  std::int64_t block = has_superblocks(Kind) ? input.block(row, 0) : 0;
  Simd::F of_block[Rows];
  for (int done = 0; done < groups; done += shape.groups, block += kRowGroup) {
    prefetch_ahead<shape.header>(weight);
    const typename Group::Scales scales(weight);
    weight += shape.header;
    if constexpr (has_superblocks(Kind)) {
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r) of_block[r] = Simd::zero();
    }
    Simd::F* to = has_superblocks(Kind) ? of_block : sums;
    for (int g = 0; g < shape.groups; ++g, weight += shape.data, at += kRowGroup) {
      prefetch_ahead<shape.data>(weight);
      Simd::Bytes w[8];
      unpack_group<Kind>(weight, w);
      if constexpr (Rows > 1 && MultipliesPairs<Lanes>)
        add_group_to_pairs<Kind, Rows, Lanes>(w, Group(scales, g), input, at, to);
      else
        add_group<Kind, Rows>(w, Group(scales, g), input, at, to);
    }
    if constexpr (has_superblocks(Kind)) {
      add_block<Kind, Rows>(scales, input.wide, block, of_block, sums);
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
