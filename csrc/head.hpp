// Draft heads: networks that guess what follows, level after level, in one call; core/head.py says
// what they are.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "cache.hpp"
#include "head_tree.hpp"
#include "network.hpp"
#include "network_run.hpp"
#include "team.hpp"

namespace paradecode {

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

  // Numbers that a block's second network goes on with, beside what was mixed.
  int after_rest(std::size_t block) const {
    const Network& after = *blocks[block].after;
    return after.inputs() == 2 ? after.widths()[1] : 0;
  }
};

// Keys and values of one request.
class HeadMemory {
 public:
  explicit HeadMemory(const HeadNetworks& networks);
  // Makes room for `slots`; keeps what is there.
  void need(std::int64_t slots);
  std::size_t bytes() const { return cache.bytes(); }

  Cache cache;
  std::vector<std::int32_t> pages;
  std::int64_t known = 0;  // slots that were written
};

// What core.head.HeadDraft says. The pointers belong to the caller.
struct HeadInput {
  HeadMemory* memory = nullptr;
  std::int64_t length = 0;          // committed rows in the memory
  const float* features = nullptr;  // [rows, numbers of the enter network's input]
  std::vector<std::int64_t> tokens;
  std::int64_t start = 0;  // position of the first row
  TreeLimits limits;
};

class DraftHead {
 public:
  // Throws InvalidInput if the networks do not fit together.
  DraftHead(HeadNetworks networks, int threads);

  std::shared_ptr<HeadMemory> memory() const { return std::make_shared<HeadMemory>(networks_); }
  int features() const { return networks_.enter->widths()[0]; }
  // Bytes of the matrices that a level reads, and those that only enter it (committed rows).
  std::pair<std::size_t, std::size_t> bytes() const;
  // Takes the rows in, and drafts. Returns a tree for each input, and the levels that were run.
  // Throws InvalidInput if anything is out of range.
  std::pair<std::vector<DraftTree>, int> draft(const std::vector<HeadInput>& inputs);

 private:
  friend class HeadPass;
  struct Member {
    Buffer<float> scores;
  };

  void check() const;
  void check_input(const HeadInput& input) const;

  const HeadNetworks networks_;
  std::shared_ptr<Team> team_;
  std::shared_ptr<LogitStore> logit_store_;
  std::mutex busy_;
  std::unique_ptr<NetworkRun> enter_;
  std::unique_ptr<NetworkRun> back_;
  std::vector<std::unique_ptr<NetworkRun>> before_;
  std::vector<std::unique_ptr<NetworkRun>> after_;
  std::vector<std::unique_ptr<NetworkRun>> outs_;
  std::vector<Member> members_;
};

}  // namespace paradecode
