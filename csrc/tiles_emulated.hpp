// Tile registers in software, as the manual defines them, for the self test. They run the kernels
// of matmul_tiles.hpp on processors without AMX, and stop where a real tile would raise an error.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace paradecode {
namespace {

struct EmulatedTile {
  int rows = 0;  // 0 if not configured
  int row_bytes = 0;
  std::uint8_t bytes[16][64];
};

struct Tiles {
  static void expect(bool condition) {
    if (condition) return;
    std::fputs("failed: an operation on tiles that the processor would refuse\n", stderr);
    std::abort();
  }
  static EmulatedTile& at(int tile) {
    thread_local EmulatedTile tiles[8];
    return tiles[tile];
  }
  static EmulatedTile& configured(int tile) {
    expect(at(tile).rows > 0);
    return at(tile);
  }

  static void configure(int input_bytes) {
    expect(input_bytes > 0 && input_bytes <= 64 && input_bytes % 4 == 0);
    for (int tile = 0; tile < 8; ++tile) {
      at(tile) = {};
      at(tile).rows = tile < 6 ? 16 : input_bytes / 4;
      at(tile).row_bytes = tile == 4 || tile == 5 ? input_bytes : 64;
    }
  }
  static void release() {
    for (int tile = 0; tile < 8; ++tile) at(tile).rows = 0;
  }
  template <int Tile>
  static void zero() {
    std::memset(configured(Tile).bytes, 0, sizeof at(Tile).bytes);
  }
  // Bytes beyond a tile's rows and columns become zero.
  template <int Tile>
  static void load(const void* from, std::int64_t stride) {
    EmulatedTile& to = configured(Tile);
    zero<Tile>();
    for (int row = 0; row < to.rows; ++row)
      std::memcpy(to.bytes[row], static_cast<const std::uint8_t*>(from) + row * stride,
                  static_cast<std::size_t>(to.row_bytes));
  }
  template <int Tile>
  static void store(void* to, std::int64_t stride) {
    const EmulatedTile& from = configured(Tile);
    for (int row = 0; row < from.rows; ++row)
      std::memcpy(static_cast<std::uint8_t*>(to) + row * stride, from.bytes[row],
                  static_cast<std::size_t>(from.row_bytes));
  }
  template <int Sum, int Inputs, int Weights>
  static void dot() {
    EmulatedTile& sums = configured(Sum);
    const EmulatedTile& inputs = configured(Inputs);
    const EmulatedTile& weights = configured(Weights);
    static_assert(Sum != Inputs && Sum != Weights && Inputs != Weights);
    expect(sums.rows == inputs.rows && sums.row_bytes == weights.row_bytes &&
           inputs.row_bytes / 4 == weights.rows);
    for (int row = 0; row < sums.rows; ++row)
      for (int column = 0; column < sums.row_bytes / 4; ++column) {
        std::int32_t sum = 0;
        std::memcpy(&sum, sums.bytes[row] + 4 * column, 4);
        for (int k = 0; k < weights.rows; ++k)
          for (int i = 0; i < 4; ++i)
            sum += static_cast<std::int8_t>(inputs.bytes[row][4 * k + i]) *
                   weights.bytes[k][4 * column + i];
        std::memcpy(sums.bytes[row] + 4 * column, &sum, 4);
      }
  }
};

}  // namespace
}  // namespace paradecode
