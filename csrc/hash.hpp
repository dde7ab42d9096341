// The hash of the noise for instruction sets that have no product of 64-bit lanes.
#pragma once

#include <cstdint>

namespace paradecode {
namespace {

struct PlainHash {
  // Returns the high 32 bits of the SplitMix64 finaliser of base + (id + 1) * golden, for ids first
  // .. + 15.
  static void hash16(std::uint64_t base, std::uint64_t first, std::uint32_t* out) {
    for (std::uint64_t i = 0; i < 16; ++i) {
      std::uint64_t z = base + (first + i + 1) * 0x9E3779B97F4A7C15ULL;
      z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
      z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
      out[i] = static_cast<std::uint32_t>((z ^ (z >> 31)) >> 32);
    }
  }
};

}  // namespace
}  // namespace paradecode
