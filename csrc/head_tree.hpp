// From a head's logits to a tree of guesses; backends/heads/tree.py has the same in Python.
#pragma once

#include <cstdint>
#include <vector>

#include "logits.hpp"

namespace paradecode {

// How the tokens of a draft are ranked, and how large its tree may get.
struct TreeLimits {
  std::int64_t count = 0;  // nodes
  int width = 0;           // children of a node, and expanded nodes of a level
  int depth = 0;
  double least = 0;  // reach below which a node is not expanded
  Warp warp;
  std::vector<std::uint64_t> keys;  // of the noise of each level; may be empty
};

struct Ranked {
  std::int32_t token;
  double chance;
};

struct DraftTree {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> parents;
  std::vector<float> chances;
};

// The likeliest tokens of a row, best first, in the target's ids. Empty if the row has no sound
// numbers.
std::vector<Ranked> ranked(const LogitRows& logits, int row, const TreeLimits& limits,
                           std::size_t level, const std::vector<std::int32_t>& to_target);

// A tree in the making. Nodes are numbered as they come; -1 is the root.
class GrowingTree {
 public:
  explicit GrowingTree(const TreeLimits& limits) : limits_(limits) {}

  // Adds the children of each node of a level; returns the nodes to expand, likeliest first.
  std::vector<std::int32_t> extend(const std::vector<std::int32_t>& level,
                                   const std::vector<Ranked>* children, int depth);
  // The likeliest paths through levels that do not know of one another.
  void cross(const std::vector<Ranked>* levels, std::size_t count);
  // The nodes that are likeliest to be reached.
  DraftTree best() const;

  std::int32_t token(std::int32_t node) const { return at(node).token; }
  std::int32_t parent(std::int32_t node) const { return at(node).parent; }

 private:
  struct Node {
    std::int32_t token;
    std::int32_t parent;
    double chance;
    double reach;
  };
  const Node& at(std::int32_t node) const { return nodes_[static_cast<std::size_t>(node)]; }
  double reach(std::int32_t node) const { return node < 0 ? 1.0 : at(node).reach; }
  std::int32_t add(std::int32_t parent, const Ranked& child);

  const TreeLimits& limits_;
  std::vector<Node> nodes_;
};

}  // namespace paradecode
