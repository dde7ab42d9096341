// The tile registers of AMX, used by their instructions, because the compilers' own functions do
// not declare that they read and write memory. Register numbers are those of matmul_tiles.hpp.
#pragma once

#include <cstdint>

namespace paradecode {
namespace {

// The configuration that LDTILECFG reads.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};

struct Tiles {
  // Sums are 16 x 16 integers, inputs 16 rows of `input_bytes`, weights 4 inputs of 16 outputs a
  // row.
  static void configure(int input_bytes) {
    TileConfig config;
    for (int tile = 0; tile < 8; ++tile) {
      const bool inputs = tile == 4 || tile == 5;
      config.row_bytes[tile] = static_cast<std::uint16_t>(inputs ? input_bytes : 64);
      config.rows[tile] = static_cast<std::uint8_t>(tile < 6 ? 16 : input_bytes / 4);
    }
    asm volatile("ldtilecfg %0" : : "m"(config));
  }
  // Releases the tiles, which saves 8 KB at every change of threads.
  static void release() { asm volatile("tilerelease" : : : "memory"); }

  template <int Tile>
  static void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(Tile));
  }
  template <int Tile>
  static void load(const void* from, std::int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(Tile) : "memory");
  }
  template <int Tile>
  static void store(void* to, std::int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(Tile) : "memory");
  }
  // Computes sum += signed bytes of inputs x unsigned bytes of weights.
  template <int Sum, int Inputs, int Weights>
  static void dot() {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(Sum), "i"(Inputs), "i"(Weights));
  }
};

}  // namespace
}  // namespace paradecode
