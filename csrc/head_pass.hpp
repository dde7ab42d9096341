// Runs rows of several requests through the networks of a head once.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "head_input.hpp"
#include "logits.hpp"
#include "network_run.hpp"
#include "plan.hpp"
#include "team.hpp"

namespace paradecode {

// The networks of a head with the memory to run them. One pass runs at a time.
struct HeadRuns {
  // Throws InvalidInput if the networks do not fit together.
  HeadRuns(HeadNetworks given, int threads);

  const HeadNetworks networks;
  const std::shared_ptr<Team> team;
  const std::shared_ptr<LogitStore> logit_store = std::make_shared<LogitStore>();
  std::unique_ptr<NetworkRun> enter;
  std::unique_ptr<NetworkRun> back;  // or null
  std::vector<std::unique_ptr<NetworkRun>> before;
  std::vector<std::unique_ptr<NetworkRun>> after;
  std::vector<std::unique_ptr<NetworkRun>> outs;
  std::vector<Buffer<float>> scores;  // one for each thread
};

struct HeadRow {
  std::size_t input;
  const float* from;  // features, or the state of the row above
  std::int64_t token;
  std::int32_t position;
  std::int32_t slot;
  int level;  // level of the guesses behind the row; -1 if none are wanted
};

// Rows of one request, which lie side by side, and the tokens that they see.
struct HeadSpan {
  std::size_t input;
  std::size_t first;
  std::size_t rows;
  std::unique_ptr<Plan> plan;
};

// The results of the rows whose guesses are wanted, in order.
struct HeadGuesses {
  std::vector<float> states;
  std::vector<std::vector<Ranked>> ranked;  // for each row, one output network after the other
};

class HeadPass {
 public:
  // `first` is the network that rows pass before the blocks; null if they are states already.
  HeadPass(HeadRuns& runs, const std::vector<HeadInput>& inputs, const std::vector<HeadRow>& rows,
           const std::vector<HeadSpan>& spans, NetworkRun* first);
  // Appends the states and the guesses of the rows whose guesses are wanted.
  void run(HeadGuesses& out);

 private:
  // Some rows of the pass, with the queries of each key/value head in groups.
  struct Queries {
    struct Tile {
      std::size_t span;
      int kv_head;
      int first, count;  // rows of the span in this list, times the query heads of the group
    };
    std::vector<std::size_t> rows;
    std::vector<std::size_t> begins;  // beginning of each span in `rows`
    std::vector<Tile> tiles;
  };

  Queries list(std::vector<std::size_t> rows) const;
  const Queries& queries(std::size_t block) const {
    return block + 1 == nets_.blocks.size() ? asked_ : all_;
  }
  // Returns whether the guesses of an output network are wanted for a listed row.
  bool ranks(std::size_t i, std::size_t out) const;
  // Returns the state of the i-th listed row that enters a block, or the output networks.
  const float* state_of(std::size_t block, std::size_t i);
  int phases() const;

  // Every thread runs these functions.
  void work(Member& member);
  void mix(Member& member, std::size_t block);
  // Rotates a row's queries and keys, and stores its keys and values.
  void turn(std::size_t block, int row);
  void attend(std::size_t block, const Queries::Tile& tile, Buffer<float>& scores);
  void rank(std::size_t out, std::size_t i);

  HeadRuns& runs_;
  const HeadNetworks& nets_;
  const Kernels& kernels_;
  const std::vector<HeadInput>& inputs_;
  const std::vector<HeadRow>& rows_;
  const std::vector<HeadSpan>& spans_;
  NetworkRun* const first_;
  Queries all_;
  Queries asked_;
  // of each output network whose guesses are wanted
  std::vector<std::shared_ptr<LogitRows>> logits_;
  std::vector<std::vector<Ranked>> made_;
};

}  // namespace paradecode
