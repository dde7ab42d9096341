// Counter-based noise, as core/noise.py defines it.
#pragma once

#include <cstdint>

#include "exact.hpp"

namespace paradecode {

// Returns noise.gumbel of one token.
inline double gumbel(std::uint64_t key, std::int32_t id) {
  std::uint64_t z = key + (static_cast<std::uint64_t>(id) + 1) * 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  z ^= z >> 31;
  const double uniform = (static_cast<double>(z >> 32) + 0.5) * 0x1p-32;
  return -exact_log(-exact_log(uniform));
}

}  // namespace paradecode
