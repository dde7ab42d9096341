// Measures the highest speeds of this machine, to compare a forward with them.
#pragma once

#include <cstdint>

namespace paradecode {

// Returns the bytes a second at which `threads` read a buffer of `bytes`, in the best of a few
// passes.
double read_bandwidth(std::int64_t bytes, int threads);
// Returns the products of two bytes a second that so many threads compute on registers.
double dot_peak(int threads);
// Returns the fused multiply-adds of float32 a second that so many threads compute on registers.
double float_peak(int threads);

}  // namespace paradecode
