// Matrix products over packed panels. A tile multiplies one panel (16 outputs) by up to kMaxRows
// rows, so that a weight is loaded and unpacked once for all of them. What a row gets does not
// depend on the tile it is in: integers inside a group of 32 inputs, and float32 fused
// multiply-adds over the groups in order.
#pragma once

#include <utility>

#include "types.hpp"

namespace paradecode {
namespace {

// How far ahead of the current group a tile prefetches.
inline constexpr std::size_t kPrefetchBytes = 4096;

// Rows whose dots are interleaved.
inline constexpr int kTurns = 4;

template <std::size_t Bytes>
inline void prefetch_ahead(const std::uint8_t* p) {
  for (std::size_t line = 0; line < Bytes; line += 64) Simd::prefetch(p + kPrefetchBytes + line);
}

template <int Rows>
inline void tile_q4(const std::uint8_t* weight, int groups, const Activations& input, int row,
                    Simd::F* sums) {
  std::int64_t at = input.entry(row, 0);
  for (int g = 0; g < groups; ++g, weight += 320, at += kRowGroup) {
    prefetch_ahead<320>(weight);
    const std::int32_t* words = input.words + 8 * at;
    const float* scales = input.scales + at;
    const float* weighted = input.sums + at;
    Simd::Bytes w[8];
#pragma GCC unroll 16
    for (int i = 0; i < 4; ++i) {
      const Simd::Bytes raw = Simd::load_bytes(weight + 64 * i);
      w[i] = Simd::low_nibbles(raw);
      w[i + 4] = Simd::high_nibbles(raw);
    }
    const auto* halves = reinterpret_cast<const std::uint16_t*>(weight + 256);
    const Simd::F scale = Simd::load_f16(halves);
    const Simd::F minimum = Simd::load_f16(halves + kLanes);
    // Rows take turns, so that consecutive instructions do not wait for one another.
#pragma GCC unroll 16
    for (int first = 0; first < Rows; first += kTurns) {
      const int last = first + kTurns < Rows ? first + kTurns : Rows;
      Simd::I dots[kTurns];
#pragma GCC unroll 16
      for (int r = first; r < last; ++r) dots[r - first] = Simd::int_zero();
#pragma GCC unroll 16
      for (int i = 0; i < 8; ++i)
#pragma GCC unroll 16
        for (int r = first; r < last; ++r)
          dots[r - first] = Simd::dot_nibbles(dots[r - first], w[i], words[8 * r + i]);
#pragma GCC unroll 16
      for (int r = first; r < last; ++r) {
        const Simd::F dot = Simd::to_float(dots[r - first]);
        sums[r] = Simd::fma(dot, Simd::mul(scale, Simd::all(scales[r])), sums[r]);
        sums[r] = Simd::fma(minimum, Simd::all(weighted[r]), sums[r]);
      }
    }
  }
}

template <int Rows>
inline void tile_q8(const std::uint8_t* weight, int groups, const Activations& input, int row,
                    Simd::F* sums) {
  std::int64_t at = input.entry(row, 0);
  for (int g = 0; g < groups; ++g, weight += 544, at += kRowGroup) {
    prefetch_ahead<544>(weight);
    const std::int32_t* words = input.words + 8 * at;
    const float* scales = input.scales + at;
    const std::int32_t* corrections = input.corrections + at;
    Simd::Bytes w[8];
#pragma GCC unroll 16
    for (int i = 0; i < 8; ++i) w[i] = Simd::prepare_bytes(Simd::load_bytes(weight + 64 * i));
    const Simd::F scale = Simd::load_f16(reinterpret_cast<const std::uint16_t*>(weight + 512));
#pragma GCC unroll 16
    for (int first = 0; first < Rows; first += kTurns) {
      const int last = first + kTurns < Rows ? first + kTurns : Rows;
      Simd::I dots[kTurns];
#pragma GCC unroll 16
      for (int r = first; r < last; ++r) dots[r - first] = Simd::bytes_start(corrections[r]);
#pragma GCC unroll 16
      for (int i = 0; i < 8; ++i)
#pragma GCC unroll 16
        for (int r = first; r < last; ++r)
          dots[r - first] = Simd::dot_bytes(dots[r - first], w[i], words[8 * r + i]);
#pragma GCC unroll 16
      for (int r = first; r < last; ++r) {
        const Simd::F dot = Simd::to_float(dots[r - first]);
        sums[r] = Simd::fma(dot, Simd::mul(scale, Simd::all(scales[r])), sums[r]);
      }
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

// Few rows need several panels at a time, or they would wait for each other's additions.
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
    if constexpr (Kind == Format::Q4)
      tile_q4<Rows>(weight.panel(panel), weight.groups, input, row, sums);
    else
      tile_q8<Rows>(weight.panel(panel), weight.groups, input, row, sums);
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

inline void matmul(const Matrix& weight, int panel, int panels, const Activations& input, int row,
                   int rows, float* out, std::int64_t out_stride, const float* bias, bool add) {
  const Output output{out, out_stride, bias, add};
  switch (weight.format) {
    case Format::Q4: return matmul_as<Format::Q4>(weight, panel, panels, input, row, rows, output);
    case Format::Q8: return matmul_as<Format::Q8>(weight, panel, panels, input, row, rows, output);
    case Format::BF16:
      return matmul_as<Format::BF16>(weight, panel, panels, input, row, rows, output);
    case Format::F16:
      return matmul_as<Format::F16>(weight, panel, panels, input, row, rows, output);
    case Format::F32:
      return matmul_as<Format::F32>(weight, panel, panels, input, row, rows, output);
  }
}

}  // namespace
}  // namespace paradecode
