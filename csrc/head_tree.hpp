// Builds a tree of guesses from a head's logits; backends/heads/tree.py is the same in Python.
#pragma once

#include <cstdint>
#include <vector>

#include "logits.hpp"

namespace paradecode {

// Says how the tokens of a draft are ranked, and how large its tree may become.
struct TreeLimits {
  std::int64_t count = 0;  // number of nodes
  int width = 0;           // number of children of a node, and of expanded nodes of a level
  int depth = 0;
  double least = 0;  // reach below which a node is not expanded
  Warp warp;
  std::vector<std::uint64_t> keys;  // keys of the noise of each level; may be empty
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

// Returns the likeliest tokens of a row, best first, in the target's ids. The result is empty if
// the row has no finite numbers.
std::vector<Ranked> ranked(const LogitRows& logits, int row, const TreeLimits& limits,
                           std::size_t level, const std::vector<std::int32_t>& to_target);

// A tree that is being built. Nodes are numbered in the order in which they are added; -1 is the
// root.
class GrowingTree {
 public:
  explicit GrowingTree(const TreeLimits& limits) : limits_(limits) {}

  // Adds the children of each node of a level. Returns the nodes to expand, likeliest first.
  std::vector<std::int32_t> extend(const std::vector<std::int32_t>& level,
                                   const std::vector<Ranked>* children, int depth);
  // Adds the likeliest paths through levels that were guessed independently of one another.
  void cross(const std::vector<Ranked>* levels, std::size_t count);
  // Returns the nodes with the highest reach.
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
