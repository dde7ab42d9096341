// Draft heads are networks that guess the next tokens, level after level, in one call; core/head.py
// defines them.
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
  // Returns the bytes of the matrices that a level reads, and of those that only committed rows
  // pass.
  std::pair<std::size_t, std::size_t> bytes() const;
  // Reads the committed rows, and drafts. Returns a tree for each input, and the number of levels
  // that were run. Throws InvalidInput if anything is out of range.
  std::pair<std::vector<DraftTree>, int> draft(const std::vector<HeadInput>& inputs);

 private:
  std::mutex busy_;
  HeadRuns runs_;
};

}  // namespace paradecode
