// Matrix products with `Tiles`, registers of 16 rows that one instruction multiplies (AMX). It
// multiplies 16 rows by the 16 outputs of a panel at a time. The integers of a group equal the dots
// of matmul.hpp, and the same code scales and adds them, so the bits are the same.
#pragma once

#include "matmul.hpp"

namespace paradecode {
namespace {

// Groups of sixteen rows that share an unpacked group of weights.
inline constexpr int kTileBlocks = 4;
// From this many rows on, a tile that is not full is faster than dots.
inline constexpr int kLeastTileRows = 8;
// The tile registers: sums, then inputs and weights of each part of a group.
inline constexpr int kSumTiles = 4;
inline constexpr int kInputTile = 4;
inline constexpr int kWeightTile = 6;

struct TileSums {
  alignas(64) float values[kTileBlocks * kRowGroup][kLanes];

  void clear() {
    for (auto& row : values) Simd::store(row, Simd::zero());
  }
};

// Adds the products of a group. `weights` are 8 vectors as unpack_group makes them. `at` is the
// entry of the first row's inputs, and `stride` is the number of entries between blocks of rows.
template <class Tiles, class Group>
inline void add_tiles(const std::uint8_t* weights, const Group& group, const Activations& input,
                      std::int64_t at, std::int64_t stride, int blocks, TileSums& sums) {
  constexpr int parts = Group::kParts;
  constexpr int row_bytes = kGroup / parts;
  alignas(64) std::int32_t dots[kTileBlocks][parts][kRowGroup][kLanes];
  unroll<parts>([&](auto part) {
    Tiles::template load<kWeightTile + part.value>(weights + part.value * 16 * row_bytes, 64);
  });
  unroll<kTileBlocks>([&](auto block) {
    if (block.value >= blocks) return;
    const auto* inputs = reinterpret_cast<const std::uint8_t*>(Group::words(input) +
                                                               8 * (at + block.value * stride));
    unroll<parts>([&](auto part) {
      constexpr int sum = (block.value * parts + part.value) % kSumTiles;
      Tiles::template zero<sum>();
      Tiles::template load<kInputTile + part.value>(inputs + part.value * row_bytes, kGroup);
      Tiles::template dot<sum, kInputTile + part.value, kWeightTile + part.value>();
      Tiles::template store<sum>(dots[block.value][part.value], 64);
    });
  });
  for (int block = 0; block < blocks; ++block)
    for (int r = 0; r < kRowGroup; ++r) {
      const std::int64_t entry = at + block * stride + r;
      float* to = sums.values[block * kRowGroup + r];
      Simd::F sum = Simd::load(to);
#pragma GCC unroll 2
      for (int part = 0; part < parts; ++part)
        sum = group.add(
            Simd::int_add(Simd::int_load(dots[block][part][r]), Group::start(input, entry, part)),
            part, input, entry, sum);
      Simd::store(to, sum);
    }
}

template <class Tiles, Format Kind>
inline void sum_tiles(const std::uint8_t* weight, int groups, const Activations& input, int row,
                      int blocks, TileSums& sums) {
  using Group = typename GroupOf<Kind>::Type;
  constexpr Packing shape = packing(Kind);
  std::int64_t at = input.entry(row, 0);
  const std::int64_t stride = input.entry(row + kRowGroup, 0) - at;
  TileSums of_block;
  for (int done = 0; done < groups; done += shape.groups) {
    prefetch_ahead<shape.header>(weight);
    const typename Group::Scales scales(weight);
    weight += shape.header;
    if constexpr (has_superblocks(Kind)) of_block.clear();
    TileSums& to = has_superblocks(Kind) ? of_block : sums;
    for (int g = 0; g < shape.groups; ++g, weight += shape.data, at += kRowGroup) {
      prefetch_ahead<shape.data>(weight);
      alignas(64) std::uint8_t unpacked[8 * 64];
      const std::uint8_t* bytes = weight;
      if constexpr (Kind != Format::Q8) {  // its bytes lie as a tile wants them already
        Simd::Bytes w[8];
        unpack_group<Kind>(weight, w);
        unroll<8>([&](auto i) { Simd::store_bytes(unpacked + 64 * i.value, w[i.value]); });
        bytes = unpacked;
      }
      add_tiles<Tiles>(bytes, Group(scales, g), input, at, stride, blocks, to);
    }
    if constexpr (has_superblocks(Kind))
      for (int r = 0; r < blocks * kRowGroup; ++r) {
        const Simd::F added = Simd::load(of_block.values[r]);
        Simd::F sum = Simd::load(sums.values[r]);
        add_block<Kind, 1>(scales, input.wide, input.block(row + r, done / shape.groups), &added,
                           &sum);
        Simd::store(sums.values[r], sum);
      }
  }
}

template <class Tiles, Format Kind>
inline void matmul_tiled(const Matrix& weight, int panel, int panels, const Activations& input,
                         int row, int rows, const Output& out) {
  constexpr int most = kTileBlocks * kRowGroup;
  Tiles::configure(kGroup / GroupOf<Kind>::Type::kParts);
  for (int p = 0; p < panels; ++p)
    for (int first = 0; first < rows; first += most) {
      const int now = rows - first < most ? rows - first : most;
      TileSums sums;
      sums.clear();
      // Rows that were not asked for may fill the last sixteen; their results are not written.
      sum_tiles<Tiles, Kind>(weight.panel(panel + p), weight.groups, input, row + first,
                             (now + kRowGroup - 1) / kRowGroup, sums);
      for (int r = 0; r < now; ++r) {
        const Simd::F sum = Simd::load(sums.values[r]);
        finish<1>(&sum, out, p, first + r);
      }
    }
  Tiles::release();
}

}  // namespace
}  // namespace paradecode
