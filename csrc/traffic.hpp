// How many bytes a forward moves, to see that none pays for more than its own rows.
#pragma once

#include <cstddef>
#include <cstdint>

namespace paradecode {

// Bytes that this thread has read or written so far: weights, keys and values, logits, and memory
// that it took from the system. Each is counted where it is done, a chunk at a time. What the
// threads of a team move in a job is the caller's. Rows of inputs, which caches hold, are left out.
inline constinit thread_local std::uint64_t moved_bytes = 0;

namespace {
[[maybe_unused]] inline void count_bytes(std::size_t bytes) { moved_bytes += bytes; }
}  // namespace

// Of one forward.
struct Traffic {
  std::int64_t rows = 0;
  std::int64_t context = 0;  // tokens in the cache that its spans see, added up
  std::uint64_t bytes = 0;
};

}  // namespace paradecode
