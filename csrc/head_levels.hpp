// One draft of a head: rows are read, and trees grow; backends/heads/run.py has the same in Python.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "head_pass.hpp"
#include "head_tree.hpp"

namespace paradecode {

class HeadLevels {
 public:
  // The inputs are checked.
  HeadLevels(HeadRuns& runs, const std::vector<HeadInput>& inputs);
  // A tree of each input, and the levels that were run.
  std::pair<std::vector<DraftTree>, int> draft();

 private:
  // The part of a request's tree that is being expanded.
  struct Branch {
    std::vector<std::int32_t> beam{-1};
    std::size_t first = 0;            // its first guesses
    std::vector<std::int32_t> nodes;  // with rows behind the committed ones
    std::vector<std::int32_t> positions;
  };

  // The committed rows. What is guessed behind the last of each request is left.
  void read();
  void read_piece();
  // Level after level (the dynamic tree of EAGLE-2); returns how many.
  int grow();
  void add_rows(std::size_t input, Branch& branch, const HeadGuesses& above, int level);
  // Nodes see what is committed, and their own path.
  void plan_nodes(HeadSpan& span, Branch& branch);
  // Every level's guesses, made without knowing the others', then the best tree of them.
  void cross();

  void begin_spans();
  void plan(HeadSpan& span, SpanInput& asked);

  HeadRuns& runs_;
  const HeadNetworks& nets_;
  const std::vector<HeadInput>& inputs_;
  std::vector<GrowingTree> trees_;
  std::vector<HeadRow> rows_;  // of the next pass
  std::vector<HeadSpan> spans_;
  HeadGuesses guesses_;
};

}  // namespace paradecode
