// Runs several steps of several sequences in one call: draft, forward, coupled verification,
// commit. The Python versions are loop.py, plain.py and verifiers/coupled.py in methods/draft.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "costs.hpp"
#include "logits.hpp"
#include "lookup.hpp"
#include "model.hpp"

namespace paradecode {

// A sequence whose steps are made here.
struct StepSequence {
  std::unique_ptr<Lookup> lookup;  // null for plain decoding
  Tokens stops;                    // ids that end the output
  Warp warp;
  std::uint64_t seed = 0;   // seed of the noise
  bool scored = false;      // whether log-probabilities of its tokens are wanted
  std::vector<int> hidden;  // layers whose outputs are wanted for the rows that are kept

  Tokens text;           // prompt and output; keys and values of all but the last token are stored
  Tokens pages;          // the page table: no step writes beyond it
  WindowTables windows;  // the page tables of layers with windows
  StateInput states;     // where layers with a state read; `base` and `state` move on with the text
  // State slots that nobody else reads, at least two, into which states are written in turn.
  std::vector<std::int64_t> own_states;
  std::int64_t room = 0;   // number of tokens that may still be committed
  std::int64_t steps = 0;  // number of steps that may still be made
  std::int64_t rows = 1;   // number of its rows in the last forward
  std::atomic_flag busy;   // set by the thread that uses it

  // Slots that all page tables have.
  std::int64_t capacity() const;
};

struct StepsInput {
  std::vector<StepSequence*> sequences;  // distinct
  const CostCurve* curve = nullptr;      // null where it was not measured
  // The seconds of a step beside its forward, for the step and for each sequence, and of a draft.
  double step_seconds = 0;
  double sequence_seconds = 0;
  double draft_seconds = 0;
  // The numbers of rows and tokens of the last forward.
  std::int64_t spans = 1;
  std::int64_t rows = 1;
  // Draft rows that a step may have: of each group of sequences, and the group of each of them.
  std::vector<std::int64_t> spare;
  std::vector<std::size_t> groups;
  double limit = 0;  // seconds after which no further step begins
};

struct CommittedStep {
  struct Part {
    Draft draft;                   // the draft that was verified
    Tokens tokens;                 // the accepted tokens, and the one that follows them
    std::vector<double> logprobs;  // of each token, where they are wanted
    std::vector<float> hidden;     // of the row before each token: all wanted layers, side by side
  };
  std::vector<Part> parts;  // of each sequence
  double ended = 0;         // seconds since the call began
  double forward = 0;       // seconds of the forward
};

// Runs at least one step where that is possible, and returns the committed steps, up to the one
// that ends a sequence. A step that fails changes nothing and is not reported, because whoever runs
// it again gets the same error.
std::vector<CommittedStep> run_steps(Model& model, StepsInput input);

}  // namespace paradecode
