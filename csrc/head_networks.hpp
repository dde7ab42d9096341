// The networks that a draft head consists of; core/head.py says what it does.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "network.hpp"

namespace paradecode {

// The sizes and numbers of a head's attention.
inline constexpr int kMostHeadSize = 1024;
inline constexpr int kMostDepth = 64;

// A layer has two networks: one computes what its attention needs (queries, keys, values and the
// rest, side by side), the other one continues after it.
struct HeadBlock {
  std::shared_ptr<const Network> before;
  std::shared_ptr<const Network> after;
  int heads = 0;
  int kv_heads = 0;
  int size = 0;
  std::vector<double> frequencies;  // [size / 2]
  float epsilon = 0;
  std::vector<float> q_norm;  // [size], or empty
  std::vector<float> k_norm;
};

struct HeadNetworks {
  int width = 0;  // width of a state
  std::shared_ptr<const Network> enter;
  std::vector<HeadBlock> blocks;
  std::vector<std::shared_ptr<const Network>> outs;
  std::shared_ptr<const Network> back;  // if null, a draft's next row is given the state itself
  std::vector<std::int32_t> to_target;  // empty if the ids are the target's
  // Feature and token of each row behind the last committed one. If empty, levels run one by one.
  std::vector<float> mask;
  std::int64_t mask_token = 0;

  // Throws InvalidInput if the networks do not fit together.
  void check() const;

  // Returns the width of a row that enters.
  int features() const { return enter->widths()[0]; }
  // Returns how many numbers a block's second network reads beside the result of the attention.
  int after_rest(std::size_t block) const {
    const Network& after = *blocks[block].after;
    return after.inputs() == 2 ? after.widths()[1] : 0;
  }

 private:
  void check_block(std::size_t b) const;
};

}  // namespace paradecode
