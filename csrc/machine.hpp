// What this machine can do at best, to judge a forward against.
#pragma once

#include <cstdint>

namespace paradecode {

// Bytes a second at which this many threads read a buffer of `bytes`: the best of a few passes.
double read_bandwidth(std::int64_t bytes, int threads);
// Products of two bytes a second that this many threads make out of registers.
double dot_peak(int threads);
// Fused multiply-adds of float32 a second, likewise.
double float_peak(int threads);

}  // namespace paradecode
