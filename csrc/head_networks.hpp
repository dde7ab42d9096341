// What a draft head is made of; core/head.py says what it does.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "network.hpp"

namespace paradecode {

// Numbers of a head of attention.
inline constexpr int kMostHeadSize = 1024;
inline constexpr int kMostDepth = 64;

// A layer: what comes before its attention (queries, keys, values and the rest, side by side), and
// what comes after it.
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
  int width = 0;  // of a state
  std::shared_ptr<const Network> enter;
  std::vector<HeadBlock> blocks;
  std::vector<std::shared_ptr<const Network>> outs;
  std::shared_ptr<const Network> back;  // or null: a draft's next row is given the state
  std::vector<std::int32_t> to_target;  // or empty: the ids are the target's
  // Features and token of the rows behind the last committed one; empty: level after level.
  std::vector<float> mask;
  std::int64_t mask_token = 0;

  // Throws InvalidInput if the networks do not fit together.
  void check() const;

  // Numbers of a row that enters.
  int features() const { return enter->widths()[0]; }
  // Numbers that a block's second network goes on with, beside what was mixed.
  int after_rest(std::size_t block) const {
    const Network& after = *blocks[block].after;
    return after.inputs() == 2 ? after.widths()[1] : 0;
  }

 private:
  void check_block(std::size_t b) const;
};

}  // namespace paradecode
