// The inputs that a request gives a draft head.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cache.hpp"
#include "head_networks.hpp"
#include "head_tree.hpp"

namespace paradecode {

inline constexpr std::int64_t kMostHeadRows = std::int64_t{1} << 24;

// The keys and values of one request.
class HeadMemory {
 public:
  // `made_by` identifies the head to which the memory belongs.
  HeadMemory(const HeadNetworks& networks, std::shared_ptr<const void> made_by);
  // Makes room for `slots`, and keeps the present contents.
  void need(std::int64_t slots);
  std::size_t bytes() const { return cache.bytes(); }

  const std::shared_ptr<const void> maker;
  Cache cache;
  std::vector<std::int32_t> pages;
  std::int64_t known = 0;  // number of slots that were written
};

// The input of core.head.HeadDraft. The pointers belong to the caller.
struct HeadInput {
  HeadMemory* memory = nullptr;
  std::int64_t length = 0;          // number of committed rows in the memory
  const float* features = nullptr;  // [rows, width of the input of the network `enter`]
  std::vector<std::int64_t> tokens;
  std::int64_t start = 0;  // position of the first row
  TreeLimits limits;

  // Throws InvalidInput if anything is out of range for a head of these networks.
  void check(const HeadNetworks& networks) const;
};

}  // namespace paradecode
