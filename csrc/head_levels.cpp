#include "head_levels.hpp"

#include <algorithm>
#include <numeric>

namespace paradecode {
namespace {

// The most rows of prompts that pass the networks together.
constexpr std::size_t kRowsAtOnce = 256;

}  // namespace

HeadLevels::HeadLevels(HeadRuns& runs, const std::vector<HeadInput>& inputs)
    : runs_(runs), nets_(runs.networks), inputs_(inputs) {
  for (const HeadInput& input : inputs) trees_.emplace_back(input.limits);
}

std::pair<std::vector<DraftTree>, int> HeadLevels::draft() {
  read();
  int levels = 1;
  if (nets_.mask.empty() && !nets_.blocks.empty())
    levels = grow();
  else
    cross();
  std::vector<DraftTree> out;
  for (const GrowingTree& tree : trees_) out.push_back(tree.best());
  return {std::move(out), levels};
}

void HeadLevels::read() {
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    const HeadInput& input = inputs_[i];
    const auto known = static_cast<std::int64_t>(input.tokens.size());
    const std::int64_t ahead = nets_.mask.empty() ? 0 : input.limits.depth - 1;
    for (std::int64_t k = nets_.blocks.empty() ? known - 1 : 0; k < known + ahead; ++k) {
      const bool masked = k >= known;
      rows_.push_back({i, masked ? nets_.mask.data() : input.features + k * nets_.features(),
                       masked ? nets_.mask_token : input.tokens[static_cast<std::size_t>(k)],
                       static_cast<std::int32_t>(input.start + k),
                       static_cast<std::int32_t>(input.length + k),
                       static_cast<int>(std::max<std::int64_t>(k - known + 1, -1))});
      if (rows_.size() == kRowsAtOnce) read_piece();
    }
  }
  if (!rows_.empty()) read_piece();
}

void HeadLevels::read_piece() {
  begin_spans();
  for (HeadSpan& span : spans_) {
    std::vector<std::int32_t> slots;
    std::vector<std::int32_t> positions;
    for (std::size_t k = span.first; k < span.first + span.rows; ++k) {
      slots.push_back(rows_[k].slot);
      positions.push_back(rows_[k].position);
    }
    SpanInput asked;
    asked.slots = slots.data();
    asked.positions = positions.data();
    asked.context = slots[0];
    plan(span, asked);
  }
  HeadPass(runs_, inputs_, rows_, spans_, runs_.enter.get()).run(guesses_);
  rows_.clear();
}

int HeadLevels::grow() {
  std::vector<Branch> branches(inputs_.size());
  for (std::size_t i = 0; i < branches.size(); ++i) branches[i].first = i;
  for (int level = 0;; ++level) {
    const HeadGuesses above = std::exchange(guesses_, {});
    rows_.clear();
    for (std::size_t i = 0; i < branches.size(); ++i)
      if (!branches[i].beam.empty()) add_rows(i, branches[i], above, level);
    if (rows_.empty()) return level + 1;
    begin_spans();
    for (HeadSpan& span : spans_) plan_nodes(span, branches[span.input]);
    HeadPass(runs_, inputs_, rows_, spans_, runs_.back.get()).run(guesses_);
  }
}

void HeadLevels::add_rows(std::size_t i, Branch& branch, const HeadGuesses& above, int level) {
  const HeadInput& input = inputs_[i];
  const auto known = static_cast<std::int64_t>(input.tokens.size());
  const auto width = static_cast<std::size_t>(nets_.width);
  const std::vector<std::int32_t> parents = std::move(branch.beam);
  branch.beam = trees_[i].extend(parents, above.ranked.data() + branch.first, level);
  const std::size_t states_at = branch.first;
  branch.first = rows_.size();
  for (std::size_t j = 0; j < branch.beam.size(); ++j) {
    const std::int32_t node = branch.beam[j];
    const auto parent = std::find(parents.begin(), parents.end(), trees_[i].parent(node));
    const auto place = states_at + static_cast<std::size_t>(parent - parents.begin());
    rows_.push_back({i, above.states.data() + place * width, trees_[i].token(node),
                     static_cast<std::int32_t>(input.start + known + level),
                     static_cast<std::int32_t>(input.length + known +
                                               static_cast<std::int64_t>(branch.nodes.size() + j)),
                     level + 1});
  }
}

void HeadLevels::plan_nodes(HeadSpan& span, Branch& branch) {
  const HeadInput& input = inputs_[span.input];
  const GrowingTree& tree = trees_[span.input];
  const auto base =
      static_cast<std::int32_t>(input.length) + static_cast<std::int32_t>(input.tokens.size());
  const std::size_t before = branch.nodes.size();
  branch.nodes.insert(branch.nodes.end(), branch.beam.begin(), branch.beam.end());
  std::vector<std::int32_t> slots(branch.nodes.size());
  std::iota(slots.begin(), slots.end(), base);
  branch.positions.resize(branch.nodes.size(), rows_[span.first].position);
  std::vector<std::uint8_t> mask;
  for (const std::int32_t node : branch.beam)
    for (const std::int32_t seen : branch.nodes) {
      std::int32_t at = node;
      while (at > seen) at = tree.parent(at);
      mask.push_back(at == seen ? 1 : 0);
    }
  SpanInput asked;
  asked.slots = slots.data() + before;
  asked.positions = branch.positions.data() + before;
  asked.context = base;
  asked.tail = slots.data();
  asked.tail_positions = branch.positions.data();
  asked.tail_count = static_cast<std::int64_t>(before);
  asked.mask = mask.data();
  plan(span, asked);
}

void HeadLevels::cross() {
  auto next = guesses_.ranked.begin();
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    std::vector<std::vector<Ranked>> levels;
    const int depth = inputs_[i].limits.depth;
    const std::size_t rows = nets_.mask.empty() ? 1 : static_cast<std::size_t>(depth);
    for (std::size_t k = 0; k < rows * nets_.outs.size(); ++k, ++next)
      if (!next->empty()) levels.push_back(std::move(*next));
    trees_[i].cross(levels.data(), levels.size());
  }
}

void HeadLevels::begin_spans() {
  spans_.clear();
  for (std::size_t k = 0; k < rows_.size(); ++k) {
    if (spans_.empty() || spans_.back().input != rows_[k].input)
      spans_.push_back({rows_[k].input, k, 0, nullptr});
    ++spans_.back().rows;
  }
}

void HeadLevels::plan(HeadSpan& span, SpanInput& asked) {
  if (nets_.blocks.empty()) return;
  HeadMemory& memory = *inputs_[span.input].memory;
  const std::int64_t end = std::int64_t{rows_[span.first + span.rows - 1].slot} + 1;
  memory.need(end);
  asked.rows = static_cast<std::int64_t>(span.rows);
  asked.pages = memory.pages.data();
  asked.page_count = static_cast<std::int64_t>(memory.pages.size());
  asked.embeddings = inputs_[span.input].features;
  asked.given_rows = asked.rows;  // No token is looked up.
  PlanLimits limits;
  limits.context_length = static_cast<int>(2 * kMostHeadRows);
  limits.pages = memory.cache.pages();
  span.plan =
      std::make_unique<Plan>(std::vector<SpanInput>{asked}, std::vector<LayerPart>(), limits);
  memory.known = std::max(memory.known, end);
}

}  // namespace paradecode
