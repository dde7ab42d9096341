#include "selftest.hpp"

#include <algorithm>
#include <array>

#include "steps.hpp"

namespace paradecode {

namespace {

// A sequence of `room` tokens to come, whose prompt is read into pages of its own.
std::unique_ptr<StepSequence> begun(Model& model, std::unique_ptr<Lookup> lookup,
                                    double temperature, int number, std::int64_t room) {
  auto made = std::make_unique<StepSequence>();
  StepSequence& sequence = *made;
  for (int i = 0; i < 40; ++i) sequence.text.push_back(i % 9 + 1);
  for (int page = 0; page < 10; ++page) sequence.pages.push_back(16 * number + (page * 7 + 3) % 16);
  sequence.lookup = std::move(lookup);
  sequence.room = sequence.steps = room;  // A step commits at least one.
  sequence.warp.temperature = temperature;
  sequence.warp.top_p = 0.9;
  sequence.seed = 11 + static_cast<std::uint64_t>(number);
  const std::size_t prompt = sequence.text.size();
  std::vector<std::int32_t> places(prompt);
  for (std::size_t i = 0; i < prompt; ++i) places[i] = static_cast<std::int32_t>(i);
  SpanInput span;
  span.pages = sequence.pages.data();
  span.page_count = static_cast<std::int64_t>(sequence.pages.size());
  span.tokens = sequence.text.data();
  span.positions = span.slots = places.data();
  span.rows = static_cast<std::int64_t>(prompt) - 1;
  model.forward({span}, kAllLayers);
  return made;
}

// Runs sequences of as much room to their end, in calls of several steps each; `limit`: seconds of
// a call.
void finish_steps(Model& model, const std::vector<StepSequence*>& sequences, double limit) {
  const CostCurve curve{{1, 64}, {0, 1000}, {{1.0, 7.3}, {1.0, 7.3}}};
  StepsInput input;
  input.sequences = sequences;
  input.curve = &curve;
  input.spare = {64};
  input.groups.assign(sequences.size(), 0);
  input.limit = limit;
  const auto open = [](const StepSequence* sequence) { return sequence->room > 0; };
  while (!input.sequences.empty()) {
    require(!run_steps(model, input).empty(), "a call makes a step");
    std::erase_if(input.sequences, [&](const StepSequence* one) { return !open(one); });
    input.groups.resize(input.sequences.size());
  }
  for (const StepSequence* sequence : sequences)
    require(sequence->room == 0, "no step commits too much");
}

constexpr std::int64_t kStepRoom = 90;

Tokens steps_of(Model& model, std::unique_ptr<Lookup> lookup, double limit, double temperature,
                int number = 0) {
  const auto sequence = begun(model, std::move(lookup), temperature, number, kStepRoom);
  finish_steps(model, {sequence.get()}, limit);
  require(sequence->text.size() == 40 + kStepRoom, "no step commits too much");
  return sequence->text;
}

std::unique_ptr<Lookup> copier(int most, std::int64_t patience,
                               std::shared_ptr<const NgramTable> table) {
  auto lookup = std::make_unique<Lookup>(1, 3, most, patience, std::move(table));
  const std::vector<double> kinds(LookupState::kKinds, 0.0);
  lookup->state.odds = {std::vector<double>(LookupState::kKinds, 0.6), kinds, kinds, kinds, kinds};
  lookup->state.table_odds = lookup->state.odds;
  return lookup;
}

}  // namespace

// Drafts, however they come about, and the size of calls change no token.
void check_steps() {
  const auto model = make_model(Format::Q4, true, 2);
  model->reserve(32);
  // What follows 1, 2, ... 9, 1, 2, ... whatever the size of the context.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> entries;
  for (std::int32_t row = 0; row < 9; ++row) {
    Tokens context;
    for (std::int32_t i = 0; i < NgramTable::kOrder; ++i) context.push_back((row + i) % 9 + 1);
    std::array<std::uint32_t, NgramTable::kOrder> keys{};
    NgramTable::keys_of(context.data(), NgramTable::kOrder, &keys);
    for (std::uint32_t size = 0; size < 4; ++size)
      entries.emplace_back(keys[size], (row + 4) % 9 + 1 + (size << NgramTable::kBucketShift));
  }
  std::sort(entries.begin(), entries.end());
  std::vector<std::uint32_t> known, values;
  for (const auto& [key, value] : entries) {
    known.push_back(key);
    values.push_back(value);
  }
  const auto table = std::make_shared<NgramTable>(known, values);
  for (const double temperature : {0.0, 0.9}) {
    const Tokens plain = steps_of(*model, nullptr, 10, temperature);
    for (const std::int64_t patience : {0, 3})
      for (const int most : {0, 1, 8})
        for (const bool with_table : {false, true})
          for (const double limit : {0.0, 10.0}) {
            require(steps_of(*model, copier(most, patience, with_table ? table : nullptr), limit,
                             temperature) == plain,
                    "several steps with drafts commit the tokens of plain decoding");
          }
  }
  for (const double temperature : {0.0, 0.9}) {
    const Tokens first = steps_of(*model, nullptr, 10, temperature);
    const Tokens second = steps_of(*model, nullptr, 10, temperature, 1);
    const auto one = begun(*model, copier(8, 3, table), temperature, 0, kStepRoom);
    const auto two = begun(*model, nullptr, temperature, 1, kStepRoom);
    finish_steps(*model, {one.get(), two.get()}, 10);
    require(one->text == first && two->text == second, "company changes no token");
  }
  const auto shown = begun(*model, nullptr, 0.0, 0, kStepRoom);
  shown->hidden = {1, 0};
  shown->steps = 3;
  StepsInput some;
  some.sequences = {shown.get()};
  some.spare = {64};
  some.groups = {0};
  some.limit = 10;
  const std::vector<CommittedStep> steps = run_steps(*model, some);
  require(steps.size() == 3 && run_steps(*model, some).empty(), "no step is made unasked");
  const auto size = static_cast<std::size_t>(model->shape().hidden_size);
  for (const CommittedStep& step : steps) {
    const auto& states = step.parts[0].hidden;
    require(states.size() == 2 * size, "a step holds the states that are asked for");
    require(!std::equal(states.begin(), states.begin() + size, states.begin() + size),
            "each layer has its own");
  }
  StepSequence bad;
  bad.lookup = copier(8, 0, nullptr);
  bad.text = {1, 2, 500};  // The model has no such token.
  bad.pages = {0, 1};
  bad.room = bad.steps = 4;
  StepsInput input;
  input.sequences = {&bad};
  input.spare = {64};
  input.groups = {0};
  input.limit = 10;
  require(run_steps(*model, input).empty(), "a step that fails is not reported");
  bad.lookup = nullptr;
  bad.text = Tokens(32, 1);
  require(run_steps(*model, input).size() == 1, "steps end with the page table");
}

}  // namespace paradecode
