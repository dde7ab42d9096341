// Where the time of a forward goes, for `paradecode info --profile`.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <iterator>

namespace paradecode {

enum class Part : int {
  Plan,
  Embed,
  Prepare,  // norms, and inputs to integers
  Queries,  // and keys and values
  Rotate,   // and what is put into the cache
  Attend,
  Output,
  Inner,     // gate and up
  Activate,  // swiglu, and its result to integers
  Down,
  Head,
  Waiting,  // for other threads
};
inline constexpr const char* kPartNames[] = {"plan",   "embed",     "norm",   "qkv",
                                             "rope",   "attention", "output", "gate+up",
                                             "swiglu", "down",      "head",   "waiting"};
inline constexpr std::size_t kParts = std::size(kPartNames);
using PartSeconds = std::array<double, kParts>;

// One thread's time, every moment of which belongs to some part.
class alignas(64) Stopwatch {
 public:
  void restart(Part part) {
    seconds_.fill(0);
    part_ = part;
    since_ = Clock::now();
  }
  // From now on time belongs to `part`. Returns the part it belonged to.
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
