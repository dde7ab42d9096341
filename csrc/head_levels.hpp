// Makes one draft of a head: it reads rows and grows trees. backends/heads/run.py is the same in
// Python.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "head_pass.hpp"
#include "head_tree.hpp"

namespace paradecode {

class HeadLevels {
 public:
  // The inputs must have been checked.
  HeadLevels(HeadRuns& runs, const std::vector<HeadInput>& inputs);
  // Returns a tree for each input, and the number of levels that were run.
  std::pair<std::vector<DraftTree>, int> draft();

 private:
  // The part of a request's tree that is being expanded.
  struct Branch {
    std::vector<std::int32_t> beam{-1};
    std::size_t first = 0;            // index of its first guesses
    std::vector<std::int32_t> nodes;  // nodes that have rows behind the committed ones
    std::vector<std::int32_t> positions;
  };

  // Runs the committed rows. Only the guesses behind the last row of each request are kept.
  void read();
  void read_piece();
  // Expands level after level (the dynamic tree of EAGLE-2), and returns the number of levels.
  int grow();
  void add_rows(std::size_t input, Branch& branch, const HeadGuesses& above, int level);
  // Lets each node see the committed rows and its own path.
  void plan_nodes(HeadSpan& span, Branch& branch);
  // Guesses all levels independently of one another, and builds the best tree from the guesses.
  void cross();

  void begin_spans();
  void plan(HeadSpan& span, SpanInput& asked);

  HeadRuns& runs_;
  const HeadNetworks& nets_;
  const std::vector<HeadInput>& inputs_;
  std::vector<GrowingTree> trees_;
  std::vector<HeadRow> rows_;  // rows of the next pass
  std::vector<HeadSpan> spans_;
  HeadGuesses guesses_;
};

}  // namespace paradecode
