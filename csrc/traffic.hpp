// Counts how many bytes a forward moves, to check that a request moves no bytes of others' rows.
#pragma once

#include <cstddef>
#include <cstdint>

namespace paradecode {

// The bytes that this thread has read or written so far: weights, keys and values, logits, and
// memory that it took from the system. Each chunk is counted where it is processed. What the
// threads of a team move in a job is added to the caller's count. Rows of inputs are not counted,
// because caches hold them.
inline constinit thread_local std::uint64_t moved_bytes = 0;

namespace {
[[maybe_unused]] inline void count_bytes(std::size_t bytes) { moved_bytes += bytes; }
}  // namespace

// The bytes of one forward.
struct Traffic {
  std::int64_t rows = 0;
  std::int64_t context = 0;  // number of tokens in the cache that its spans see, added up
  std::uint64_t bytes = 0;
  std::int64_t experts = 0;  // to which rows were sent, added up over the layers; no shared ones
};

}  // namespace paradecode
