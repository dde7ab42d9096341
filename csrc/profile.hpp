// Measures how long each part of a forward takes, for `paradecode info --profile`.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <iterator>

namespace paradecode {

enum class Part : int {
  Plan,
  Embed,
  Prepare,  // norms, and rounding inputs to integers
  Queries,  // queries, keys and values
  Rotate,   // rotation of queries and keys, and writing to the cache
  Attend,
  Output,
  Inner,     // gate and up projections
  Activate,  // swiglu, and rounding its result to integers
  Down,
  Head,
  Waiting,  // for other threads
};
inline constexpr const char* kPartNames[] = {"plan",   "embed",     "norm",   "qkv",
                                             "rope",   "attention", "output", "gate+up",
                                             "swiglu", "down",      "head",   "waiting"};
inline constexpr std::size_t kParts = std::size(kPartNames);
using PartSeconds = std::array<double, kParts>;

// The time of one thread; every moment belongs to exactly one part.
class alignas(64) Stopwatch {
 public:
  void restart(Part part) {
    seconds_.fill(0);
    part_ = part;
    since_ = Clock::now();
  }
  // Counts the time from now on for `part`. Returns the part for which it was counted before.
  Part enter(Part part) {
    const auto now = Clock::now();
    const Part before = part_;
    seconds_[static_cast<std::size_t>(before)] +=
        std::chrono::duration<double>(now - since_).count();
    part_ = part;
    since_ = now;
    return before;
  }
  const PartSeconds& seconds() const { return seconds_; }

 private:
  using Clock = std::chrono::steady_clock;
  PartSeconds seconds_{};
  Part part_ = Part::Waiting;
  Clock::time_point since_;
};

}  // namespace paradecode
