// Draft heads: networks that guess what follows, level after level, in one call; core/head.py
// says what they are.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "head_input.hpp"
#include "head_networks.hpp"
#include "head_pass.hpp"
#include "head_tree.hpp"

namespace paradecode {

class DraftHead {
 public:
  // Throws InvalidInput if the networks do not fit together.
  DraftHead(HeadNetworks networks, int threads);

  std::shared_ptr<HeadMemory> memory() const {
    return std::make_shared<HeadMemory>(runs_.networks, runs_.logit_store);
  }
  int features() const { return runs_.networks.features(); }
  // Bytes of the matrices that a level reads, and those that only enter it (committed rows).
  std::pair<std::size_t, std::size_t> bytes() const;
  // Takes the rows in, and drafts. Returns a tree for each input, and the levels that were run.
  // Throws InvalidInput if anything is out of range.
  std::pair<std::vector<DraftTree>, int> draft(const std::vector<HeadInput>& inputs);

 private:
  std::mutex busy_;
  HeadRuns runs_;
};

}  // namespace paradecode
