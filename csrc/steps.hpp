// Several steps of one sequence in one call: draft, forward, coupled verification, commit.
#pragma once

#include <cstdint>
#include <vector>

#include "logits.hpp"
#include "lookup.hpp"
#include "model.hpp"

namespace paradecode {

constexpr std::int64_t kContextStep = 32;  // STEP of engine/cost.py

// What the sequence is when the call begins, and where it ends.
struct StepsInput {
  Tokens text;            // prompt and output; keys and values of all but the last token are stored
  Tokens pages;           // the page table: no step writes beyond it
  std::int64_t room = 0;  // tokens that may still be committed
  Tokens stops;           // ids that end the output
  Warp warp;
  std::uint64_t seed = 0;  // of the noise
  double limit = 0;        // seconds after which no further step begins
  // Of a step: [lines, 1 + most], of 1, 2, ... rows; line i is for texts of at least
  // (first_context + i) * kContextStep tokens. Empty when they were not measured.
  std::vector<double> seconds;
  std::int64_t first_context = 0;
};

struct CommittedStep {
  Draft draft;         // what was verified
  Tokens tokens;       // accepted ones, and the one that follows them
  double ended = 0;    // seconds since the call began
  double forward = 0;  // seconds of the forward
};

// Runs at least one step where that can be done, and returns those that were committed. A step that
// fails leaves nothing behind; it is not reported, because whoever runs it again learns why.
// `lookup` is null for plain decoding.
std::vector<CommittedStep> run_steps(Model& model, Lookup* lookup, StepsInput input);

}  // namespace paradecode
